"""vLLM's, TGI's and LM Studio's flags and Ollama's variables: each is honoured, harmless, or refused with what to use."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from llamasrv import cli
from llamasrv.commands import serve as serve_command
from llamasrv.config import OPTIONS, check, load
from llamasrv.config.foreign import RIVALS, foreign, is_read
from llamasrv.config.settings import value_of
from llamasrv.domain.option import PREFIX
from llamasrv.errors import ConfigError

OPTION = {option.key: option for option in OPTIONS}
ALL = [flag for flags in RIVALS.values() for flag in flags]


@pytest.fixture
def given(monkeypatch):
    """The settings that a command line of `serve` gives."""
    seen = []
    monkeypatch.setattr(serve_command, "run", seen.append)
    monkeypatch.setattr(check, "in_container", lambda: True)
    for name in [name for name in os.environ if name.startswith(PREFIX) or is_read(name)]:
        monkeypatch.delenv(name)

    def parse(*arguments):
        result = CliRunner().invoke(cli.cli, ["serve", "--fake", *arguments], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return seen[-1]

    return parse


def test_no_name_has_two_meanings():
    own = [flag for option in OPTIONS for flag in (*option.flags, *option.off)]
    names = own + [name for flag in foreign() for name in (*flag.names, *flag.negations)]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        # vLLM
        (["--served-model-name", "a", "b", "--dtype", "auto"], "model.alias", ("a", "b")),
        (["--max-model-len", "8192"], "engine.ctx_per_sequence", 8192),
        (["--max-model-len", "8k"], "engine.ctx_per_sequence", 8000),
        (["--max_model_len=8K"], "engine.ctx_per_sequence", 8192),
        (["--max-model-len", "auto"], "engine.ctx_per_sequence", None),
        (["--max-num-seqs", "8"], "engine.parallel", 8),
        (["--max-num-batched-tokens", "4096"], "engine.batch_size", 4096),
        (["--kv-cache-dtype", "fp8"], "engine.cache_type_v", "q8_0"),
        (["--kv-cache-dtype", "auto"], "engine.cache_type_k", "f16"),
        (["--swap-space", "4"], "cache.swap", 4 << 30),
        (["--task", "embed"], "engine.embeddings", True),
        (["--task", "score"], "engine.pooling", "rank"),
        (["--override-generation-config", '{"temperature": 0.5}'], "sampling.temp", 0.5),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}'], "engine.draft_max", 5),
        (["--allowed-origins", '["https://a.example"]'], "server.cors_origins", ("https://a.example",)),
        (["--ssl-keyfile", "/k", "--ssl-certfile", "/c"], "server.ssl_key_file", check.Path("/k")),
        (["--uds", "/run/x.sock"], "server.host", "/run/x.sock"),
        (["--root-path", "/llm"], "server.api_prefix", "/llm"),
        (["--uvicorn-log-level", "warning"], "log.level", "warning"),
        (["--disable-log-requests"], "log.requests", False),
        (["--no-enable-log-requests"], "log.requests", False),
        (["--allowed-media-domains", "a.example", "b.example"], "media.hosts", ("a.example", "b.example")),
        (["--max-logprobs", "5"], "limits.top_logprobs", 5),
        # TGI
        (["--hostname", "::1"], "server.host", "::1"),
        (["--max-concurrent-requests", "7"], "engine.queue_limit", 7),
        (["--max-total-tokens", "4096"], "engine.ctx_per_sequence", 4096),
        (["--json-output"], "log.format", "json"),
        # LM Studio
        (["--gpu", "off"], "engine.n_gpu_layers", 0),
        (["--context-length", "4096"], "engine.ctx_per_sequence", 4096),
        (["--ttl", "60"], "models.keep_alive", 60.0),
        (["--identifier", "x"], "model.alias", ("x",)),
        (["--cors"], "server.cors_origins", ("*",)),
    ],
)
def test_a_flag_means_what_it_means_there(given, arguments, key, value):
    assert value_of(given(*arguments), OPTION[key]) == value


def test_adapters_are_named_in_either_form(given):
    settings = given("--lora-modules", "a=x.gguf", "b=y.gguf", "--lora-modules", '{"name": "c", "path": "z.gguf"}')
    assert {(one.name, one.path) for one in settings.engine.adapters} == {
        ("a", "x.gguf"),
        ("b", "y.gguf"),
        ("c", "z.gguf"),
    }


@pytest.mark.parametrize("flag", [flag for flag in ALL if flag.verdict == "no"], ids=lambda flag: flag.long_name)
def test_what_cannot_be_honoured_says_what_to_do(flag, given):
    with pytest.raises(ConfigError) as refusal:
        given(flag.long_name, *(["7"] if flag.hint else []))
    assert "not supported: " + flag.note in str(refusal.value)
    for value in flag.ok:
        assert any("nothing to do" in note for note in given(flag.names[0], value).notes)


@pytest.mark.parametrize(
    "flag", [flag for flag in ALL if flag.verdict == "already" and flag.names], ids=lambda flag: flag.long_name
)
def test_what_has_no_effect_is_said_once(flag, given):
    notes = given(flag.long_name, *(["7"] if flag.hint else [])).notes
    assert [note for note in notes if flag.note in note] == list(notes) and len(notes) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--max-model-len", "many"], "must be a number of tokens"),
        (["--max-num-seqs", "0x"], "must be a whole number"),
        (["--override-generation-config", '{"heat": 1}'], "'heat' is not one of temperature"),
        (["--override-generation-config", "[" * 9000], "must be a JSON object"),
        (["--speculative-config", '{"method": "eagle"}'], "must be one of ngram"),
        (["--allowed-origins", "[1]"], "must be a JSON list of origins"),
        (["--lora-modules", "{}"], 'must be NAME=FILE, or JSON with "name" and "path"'),
        (["--swap-space", "much"], "must be a number of GiB"),
        (["--uds", "/run/x"], "must end in .sock"),
        (["--task", "paint"], "must be one of auto"),
        (["--gpu", "0.5"], "--n-gpu-layers N"),
        (["--no-enable-prefix-caching"], "send cache_prompt: false"),
    ],
)
def test_a_bad_value_is_refused(given, arguments, line):
    with pytest.raises(ConfigError) as refusal:
        given(*arguments)
    assert line in str(refusal.value)


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("OLLAMA_HOST", "10.0.0.1", "server.host", "10.0.0.1"),
        ("OLLAMA_HOST", "10.0.0.1", "server.port", 11434),
        ("OLLAMA_HOST", "http://localhost:1234/", "server.port", 1234),
        ("OLLAMA_HOST", ":1234", "server.host", "127.0.0.1"),
        ("OLLAMA_HOST", "[::1]:80", "server.host", "::1"),
        ("OLLAMA_HOST", "https://a.example", "server.port", 443),
        ("OLLAMA_KEEP_ALIVE", "1h30m", "models.keep_alive", 5400.0),
        ("OLLAMA_KEEP_ALIVE", "-1m", "models.keep_alive", -1.0),
        ("OLLAMA_LOAD_TIMEOUT", "0", "models.load_timeout", 86_400.0),
        ("OLLAMA_CONTEXT_LENGTH", "8192", "engine.ctx_per_sequence", 8192),
        ("OLLAMA_NUM_PARALLEL", "4", "engine.parallel", 4),
        ("OLLAMA_FLASH_ATTENTION", "1", "engine.flash_attn", "on"),
        ("OLLAMA_FLASH_ATTENTION", "false", "engine.flash_attn", "off"),
        ("OLLAMA_KV_CACHE_TYPE", "q8_0", "engine.cache_type_k", "q8_0"),
        ("OLLAMA_MULTIUSER_CACHE", "true", "cache.prefix_scope", "all"),
        ("OLLAMA_GPU_OVERHEAD", str(1 << 30), "engine.fit_target", (1 << 30,)),
        ("OLLAMA_DEBUG", "1", "log.level", "debug"),
        ("OLLAMA_DEBUG", "0", "log.level", "info"),
        ("OLLAMA_ORIGINS", "app://x", "server.cors_origins", ("localhost", "app://x")),
        ("VLLM_API_KEY", "secret", "server.api_key", ("secret",)),
    ],
)
def test_a_variable_means_what_it_means_there(monkeypatch, variable, text, key, value):
    monkeypatch.setattr(check, "in_container", lambda: True)
    settings = load({"server_allow_keyless": True}, environ={variable: text})
    assert value_of(settings, OPTION[key]) == value
    assert "secret" not in repr(settings.notes)


def test_a_variable_that_is_used_is_said_once_and_loses_to_llama_servers():
    settings = load(environ={"OLLAMA_NUM_PARALLEL": "4", "LLAMA_ARG_N_PARALLEL": "5"})
    assert settings.engine.parallel == 5
    assert settings.notes == ("environment: OLLAMA_NUM_PARALLEL='4': used as --parallel",)


@pytest.mark.parametrize(
    "variable", ["OLLAMA_KEEP_ALIVE", "OLLAMA_HOST", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_NUM_PARALLEL"]
)
def test_a_bad_variable_is_refused_with_its_name(variable):
    with pytest.raises(ConfigError, match=f"environment: {variable}='a b:c'"):
        load(environ={variable: "a b:c"})


def test_notes_are_written_as_parts_of_a_line():
    for flag in ALL:
        assert flag.note and "\n" not in flag.note and not flag.note.endswith("."), flag
