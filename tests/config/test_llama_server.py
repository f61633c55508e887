"""llama-server's flags, variables and command lines: each has a verdict, and what is accepted has its effect."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from model.tiny_models import llama

from llamasrv import cli
from llamasrv.commands import serve as serve_command
from llamasrv.config import OPTIONS, check, load
from llamasrv.config.llama_flags import FLAGS
from llamasrv.config.llama_models import NAMED_MODELS
from llamasrv.config.settings import value_of
from llamasrv.errors import ConfigError
from llamasrv.models.pull import Reference
from llamasrv.startup.model_options import repository

DATA = Path(__file__).parent / "data"
OPTION = {option.key: option for option in OPTIONS}
NAME = re.compile(r"(?:^|, )(--?[A-Za-z][\w.-]*)")


def lines(name):
    return [line for line in (DATA / name).read_text("utf-8").splitlines() if line and not line.startswith("# ")]


THEIRS = [
    (NAME.findall(spec), variable)
    for spec, _, variable in (line.partition("\t") for line in lines("llama_server_flags.txt"))
]
BY_NAME = {name: flag for flag in FLAGS for name in (*flag.names, *flag.negations)}


@pytest.fixture
def given(monkeypatch):
    """The settings that a command line of `serve` gives, as `llamasrv` would serve them; or the refusal."""
    seen = []
    monkeypatch.setattr(serve_command, "run", seen.append)
    monkeypatch.setattr(check, "in_container", lambda: True)
    for name in [name for name in os.environ if name.startswith(("LLAMASRV_", "LLAMA_"))]:
        monkeypatch.delenv(name)

    def parse(*arguments, environ=None):
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        seen.clear()
        result = CliRunner().invoke(cli.cli, list(arguments), standalone_mode=False)
        for name in environ or {}:
            monkeypatch.delenv(name)
        if result.exception is not None:
            raise result.exception
        return seen[-1]

    return parse


# Verdicts


@pytest.mark.parametrize(("names", "variable"), THEIRS, ids=lambda value: value[0] if type(value) is list else "")
def test_every_flag_of_llama_server_has_one_verdict(names, variable):
    flags = {id(BY_NAME[name]) for name in names}
    flag = BY_NAME[names[0]]
    assert len(flags) == 1 and set(names) == {*flag.names, *flag.negations}
    if variable != "HF_TOKEN":  # read by the library that fetches
        assert (flag.variable or "") == variable


def test_no_flag_is_made_up():
    """Only those that its earlier versions had are told beside its own."""
    theirs = {name for names, _ in THEIRS for name in names}
    assert {*BY_NAME} - theirs == {"--mlock", "--no-mmap"}


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.verdict == "same"], ids=lambda flag: flag.long_name)
def test_the_same_is_the_same_name_short_form_and_negation(flag):
    option = OPTION[flag.option]
    assert set(flag.names) <= set(option.flags)
    assert all(name in option.off or f"--{name.removeprefix('--no-')}" in option.flags for name in flag.negations)
    assert bool(flag.hint) == (option.kind != "bool")


HUB = "https://huggingface.co/ggml-org/models"


@pytest.mark.parametrize(
    ("url", "repo", "file"),
    [
        (f"{HUB}/resolve/main/tinyllamas/stories15M-q4_0.gguf", "ggml-org/models", "tinyllamas/stories15M-q4_0.gguf"),
        (f"{HUB}/blob/v1.0/a.gguf?download=true", "ggml-org/models@v1.0", "a.gguf"),
    ],
)
def test_the_url_of_a_file_on_the_hub_names_it(given, url, repo, file):
    model = given("serve", "-mu", url).model
    assert (model.hf_repo, model.hf_file) == (repo, file)
    assert str(Reference.parse(repository(given("serve", "-mu", url)))) == f"hf:ggml-org/models:{file}"


@pytest.mark.parametrize("url", ["https://example.com/a.gguf", f"{HUB}/resolve/main/a.bin", "a.gguf"])
def test_other_urls_are_refused(given, url):
    with pytest.raises(ConfigError, match="must be a .gguf file on huggingface.co"):
        given("serve", "--model-url", url)


VALUES = {"N": "1", "": None}


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.verdict == "no"], ids=lambda flag: flag.long_name)
def test_what_cannot_be_honoured_ends_with_one_line_that_says_what_to_do(flag, given):
    for name in flag.names:
        with pytest.raises(ConfigError) as refusal:
            given("serve", "--fake", name, *(["7"] if flag.hint else []))
        assert str(refusal.value).startswith(flag.long_name) and "not supported: " + flag.note in str(refusal.value)
    for value in flag.ok:
        assert any("nothing to do" in note for note in given("serve", "--fake", flag.names[0], value).notes)
    for name in flag.negations:
        assert given("serve", "--fake", name).notes


@pytest.mark.parametrize(
    "flag",
    [flag for flag in FLAGS if flag.verdict == "already" and "-h" not in flag.names and flag.long_name != "--version"],
    ids=lambda flag: flag.long_name,
)
def test_flags_without_effect_are_logged_at_debug_level(flag, given):
    for name in flag.names:
        assert flag.note in given("serve", "--fake", name, *(["7"] if flag.hint else [])).notes[-1]
    for name in flag.negations:
        if flag.off:
            with pytest.raises(ConfigError, match="not supported"):
                given("serve", "--fake", name)
        else:
            assert given("serve", "--fake", name).notes


def test_notes_and_refusals_are_written_as_parts_of_a_line():
    for flag in FLAGS:
        assert "\n" not in flag.note and not flag.note.endswith("."), flag
        assert flag.note or flag.verdict == "same"


# Values


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["-fa"], "engine.flash_attn", "on"),
        (["-fa", "off"], "engine.flash_attn", "off"),
        (["-fa", "--jinja"], "engine.flash_attn", "on"),
        (["-fa", "1"], "engine.flash_attn", "on"),
        (["-fa", "true"], "engine.flash_attn", "on"),
        (["-fa", "0"], "engine.flash_attn", "off"),
        (["-fit", "disabled"], "engine.fit", "off"),
        (["-rea", "enabled"], "model.reasoning", "on"),
        (["-ub", "4096"], "engine.batch_size", 4096),
        (["--no-warmup"], "engine.warmup", False),
        (["--embd-normalize", "-1"], "model.embd_normalize", -1),
        (["-hft", "hf_x"], "model.hf_token", "hf_x"),
        (["-devd", "none"], "engine.draft_n_gpu_layers", 0),
        (["--reasoning-budget-message", "Time is up."], "model.reasoning_budget_message", "Time is up."),
        (["--n_gpu_layers", "-1"], "engine.n_gpu_layers", None),
        (["-ngl", "all"], "engine.n_gpu_layers", None),
        (["-np", "-1"], "engine.parallel", None),
        (["-b", "64"], "engine.ubatch_size", 64),
        (["-cram", "-1"], "cache.ram", 2**50),
        (["-cram", "100"], "cache.ram", 100 * 2**20),
        (["-to", "600"], "limits.timeout", 600.0),
        (["--sse-ping-interval", "-1"], "server.keepalive", None),
        (["--no-webui"], "server.ui", False),
        (["--no-slots"], "server.slots", False),
        (["--rerank"], "engine.pooling", "rank"),
        (["--log-jsonl"], "log.format", "json"),
        (["--log-disable"], "log.level", "error"),
        (["-lv", "5"], "log.level", "debug"),
        (["-v"], "log.verbose", True),
        (["--reasoning"], "model.reasoning", "on"),
        (["-rea", "off"], "model.reasoning", "off"),
        (["--reasoning-budget", "-1"], "model.reasoning_budget", None),
        (["--reasoning-budget", "0"], "model.reasoning_budget", 0),
        (["--reasoning-effort", "default"], "model.reasoning_effort", None),
        (["--chat-template-kwargs", '{"a": [1]}'], "model.chat_template_kwargs", {"a": [1]}),
        (["--models-max", "0"], "models.max", None),
        (["--no-models-autoload"], "models.autoload", False),
        (["--sleep-idle-seconds", "-1"], "model.sleep_idle_seconds", None),
        (["--alias", "a,b", "--alias", "c"], "model.alias", ("a", "b", "c")),
        (["-nkvo"], "engine.kv_offload", False),
        (["--rope-scale", "4"], "engine.rope_freq_scale", 0.25),
        (["--yarn-ext-factor", "-1.0"], "engine.yarn_ext_factor", None),
        (["-nr"], "engine.repack", False),
        (["--mlock"], "engine.load_mode", "mmap+mlock"),
        (["--no-mmap"], "engine.load_mode", "none"),
        (["-ts", "3,1"], "engine.tensor_split", (3.0, 1.0)),
        (["-ts", "3/1"], "engine.tensor_split", (3.0, 1.0)),
        (["-dev", "none"], "engine.device", ("none",)),
        (
            ["-ncmoe", "2"],
            "engine.override_tensor",
            tuple(rf"blk\.{n}\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU" for n in (0, 1)),
        ),
        (["--cpu-mask", "0xB"], "engine.cpu_range", (0, 1, 3)),
        (["-C", "1", "-Cr", "4-6"], "engine.cpu_range", (0, 4, 5, 6)),
        (["--prio", "-1"], "engine.prio", -1),
        (["--poll", "0"], "engine.poll", 0),
        (["--override-kv", "a.b=int:3,c=str:x"], "engine.override_kv", ("a.b=int:3", "c=str:x")),
        (["--control-vector-layer-range", "3", "7"], "model.control_vector_layers", (3, 7)),
        (["-fit", "off"], "engine.fit", "off"),
        (["-fitt", "512,1024"], "engine.fit_target", (512 * 2**20, 1024 * 2**20)),
        (["-fitc", "8192"], "engine.fit_ctx", 8192),
        (["--sampler-seq", "kta"], "sampling.samplers", ("top_k", "temperature", "adaptive_p")),
        (["--adaptive-target", "0.3"], "sampling.adaptive_target", 0.3),
        (["-ot", "a=CPU", "-cmoe"], "engine.override_tensor", ("a=CPU", r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU")),
    ],
)
def test_a_flag_means_what_it_means_there(given, arguments, key, value):
    assert value_of(given("serve", "--fake", *arguments), OPTION[key]) == value


@pytest.mark.parametrize(("flag", "values"), NAMED_MODELS.items())
def test_a_flag_may_name_a_model_with_its_settings(given, flag, values):
    """What plugins of editors tell people to start, such as --fim-qwen-7b-default, was refused."""
    settings = given(flag)
    by_name = {option.name: value_of(settings, option) for option in OPTIONS}
    assert {name: by_name[name] for name in values} == {
        **values,
        **({"engine_ctx_size": None} if not values["engine_ctx_size"] else {}),
    }


def test_what_is_given_beside_it_goes_before_it(given):
    for line in (["--fim-qwen-7b-default", "--port", "9000"], ["--port", "9000", "--fim-qwen-7b-default"]):
        settings = given(*line, "-ub", "512")
        assert (settings.server.port, settings.engine.ubatch_size, settings.engine.batch_size) == (9000, 512, 1024)


def test_adapters_may_be_repeated_and_scaled(given):
    settings = given("serve", "--lora", "a.gguf", "--lora", "x/b.gguf,c.gguf@2", "--lora-scaled", "d.gguf:0.5")
    assert {(one.name, one.path, one.scale) for one in settings.engine.adapters} == {
        ("a", "a.gguf", 1.0),
        ("b", "x/b.gguf", 1.0),
        ("c", "c.gguf", 2.0),
        ("d", "d.gguf", 0.5),
    }


def test_control_vectors_may_be_repeated_and_scaled(given):
    settings = given("serve", "--control-vector", "a.gguf", "--control-vector-scaled", "x/b.gguf:-0.5,c.gguf:2")
    assert {(one.name, one.path, one.scale) for one in settings.engine.control_vectors} == {
        ("a", "a.gguf", 1.0),
        ("b", "x/b.gguf", -0.5),
        ("c", "c.gguf", 2.0),
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--reasoning-format", "deepseek-legacy"], "must be one of auto, none, deepseek"),
        (["--chat-template-kwargs", "[]"], "must be a JSON object"),
        (["--models-max", "-1"], "must be a whole number"),
        (["-lv", "9"], "must be a whole number, 0 to 5"),
        (["--hf-file", "a.gguf"], "requires its repository"),
        (["--hf-repo", "a/b"], "give the repository or the model, not both"),
        (["-ub", "4096", "-b", "2048"], "is more than engine.batch_size"),
        (["-fa", "maybe"], "must be one of auto, on, off"),
        (["-devd", "GPU0"], "must be none"),
        (["-ts", "0,0"], "must be numbers"),
        (["--api-prefix", "llm"], "must be a path such as /llm"),
        (["--api-prefix", "/a//b"], "must be a path such as /llm"),
        (["--rope-scale", "0"], "must be a number above 0"),
        (["-sm", "none", "-ts", "1,1"], "the whole model on one device"),
        (["--rpc", "h:1", "--device", "GPU0"], "a fake model cannot run on other machines|all local devices"),
        (["-ncmoe", "many"], "must be a whole number"),
        (["--cpu-mask", "0"], "must be a hexadecimal mask"),
        (["--cpu-range", "5-2"], "must be CPUs such as"),
        (["--prio", "4"], "-1 to 3"),
        (["--poll", "101"], "0 to 100"),
        (["--control-vector-layer-range", "0", "7"], "must be two layers"),
        (["--sampler-seq", "kq"], "must consist of the letters"),
        (["-fitt", "much"], "must be sizes such as 512MiB"),
    ],
)
def test_a_bad_value_is_refused(given, arguments, line):
    with pytest.raises(ConfigError, match=line):
        given("serve", "--fake", *arguments)


# The environment


@pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if flag.variable and flag.verdict == "same"], ids=lambda flag: flag.variable
)
def test_a_variable_of_llama_server_sets_the_option(flag):
    option = OPTION[flag.option]
    text = {
        "int": "5",
        "float": "0.5",
        "bool": "false" if option.default else "1",
        "size": "7",
        "list": "a,b",
        "path": "/x",
        "text": "/x" if option.key == "server.api_prefix" else "a/b",
        "json": "{}",
        "endpoints": "h:1",
        "ratios": "1,2",
        "sizes": "1,2",
    }.get(option.kind) or option.choices[-1]
    text = {"engine.fit": "off", "engine.fit_ctx": "512"}.get(option.key, text)
    environ = {flag.variable: text}
    if option.key == "model.hf_file":
        environ["LLAMA_ARG_HF_REPO"] = "a/b"
    if option.key.startswith("server.ssl_"):
        environ |= {"LLAMA_ARG_SSL_KEY_FILE": "/x", "LLAMA_ARG_SSL_CERT_FILE": "/x"}
    if option.key == "models.preset":
        with pytest.raises(ConfigError, match="/x: No such file"):
            load(environ=environ)
    else:
        settings = load(
            {"server_allow_keyless": True, "engine_batch_size": 2048 if option.key == "engine.ubatch_size" else None},
            environ=environ | ({"LLAMA_ARG_N_PARALLEL": "1"} if option.key == "engine.batch_size" else {}),
        )
        assert value_of(settings, option) != option.default


@pytest.mark.parametrize(("text", "meant"), [("-1", "auto"), ("1", "on"), ("FALSE", "off"), ("enabled", "on")])
def test_a_switch_may_be_written_in_any_of_its_spellings(text, meant):
    assert load(environ={"LLAMA_ARG_FLASH_ATTN": text}).engine.flash_attn == meant


def test_a_token_for_the_hub_is_where_the_library_looks_for_it(monkeypatch):
    """And in no line of the log."""
    monkeypatch.setenv("HF_TOKEN", "older")
    seen = []
    monkeypatch.setattr("llamasrv.commands.pull.fetch", lambda settings: seen.append(os.environ["HF_TOKEN"]))
    settings = load({"model_hf_repo": "no/such", "model_hf_token": "hf_secret", "model_offline": True}, environ={})
    with pytest.raises(ConfigError):  # it is not here
        serve_command.run(settings)
    assert seen == ["hf_secret"] and "hf_secret" not in repr(settings)


def test_own_variables_go_before_llama_servers_and_both_before_the_file(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[engine]\nparallel = 2\nthreads = 2\nctx_size = 2\n")
    environ = {"LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_THREADS": "3", "LLAMASRV_THREADS": "4"}
    engine = load({"engine_parallel": None}, environ=environ, config=path).engine
    assert (engine.parallel, engine.threads, engine.context_cells) == (3, 4, 2)
    assert load({"engine_parallel": 5}, environ=environ).engine.parallel == 5


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"LLAMA_ARG_VIDEO_FPS": "2"}, "environment: LLAMA_ARG_VIDEO_FPS='2': not supported"),
        ({"LLAMA_ARG_UI_MCP_PROXY": "1"}, "environment: LLAMA_ARG_UI_MCP_PROXY='1': not supported"),
        ({"LLAMA_ARG_CTX_SIZE": "much"}, "environment: LLAMA_ARG_CTX_SIZE='much': must be a whole number"),
        ({"LLAMA_ARG_CONT_BATCHING": "0"}, "environment: LLAMA_ARG_CONT_BATCHING='0': not supported"),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "maybe"}, "must be true or false"),
    ],
)
def test_a_variable_that_cannot_be_honoured_is_refused(environ, line):
    with pytest.raises(ConfigError) as refusal:
        load(environ=environ)
    assert line in str(refusal.value)


def test_variables_that_ask_for_nothing_are_accepted():
    environ = {
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
        "LLAMA_ARG_NO_CONTEXT_SHIFT": "1",
        "LLAMA_ARG_MLOCK": "1",
        "LLAMA_ARG_CPU_MOE": "false",
        "LLAMA_ARG_CONTEXT_SHIFT": "0",
        "LLAMA_ARG_MMPROJ": "",
        "LLAMA_ARG_NO_UI": "1",
        "SSL_CERT_FILE": "/x",
    }
    settings = load(environ=environ)
    assert settings.server.ui is False
    assert any("LLAMA_ARG_MLOCK: unknown variable, ignored" in note for note in settings.notes)


def test_an_unknown_variable_of_ollama_is_reported_with_the_likely_one():
    environ = {"OLLAMA_KEEPALIVE": "1h", "OLLAMA_HOST": "", "OLLAMA_SERVICE_HOST": "10.0.0.1", "OLLAMA_PORT_1_TCP": "x"}
    (note,) = load(environ=environ).notes
    assert note == "environment: OLLAMA_KEEPALIVE: unknown variable, ignored; did you mean OLLAMA_KEEP_ALIVE?"


def test_vertex_ai_says_where_a_container_answers():
    environ = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "8085", "AIP_HEALTH_ROUTE": "alive"}
    server = load(environ=environ).server
    assert (server.port, server.predict_route, server.health_route) == (8085, "/predict", "/alive")
    assert (
        load(environ={**environ, "AIP_PREDICT_ROUTE": "/v1/endpoints/1:predict"}).server.predict_route
        == "/v1/endpoints/1:predict"
    )
    assert load(environ={**environ, "AIP_MODE": ""}).server.predict_route is None
    with pytest.raises(ConfigError, match="AIP_HTTP_PORT='x': must be a whole number"):
        load(environ={**environ, "AIP_HTTP_PORT": "x"})
    with pytest.raises(ConfigError, match="must be a path such as /predict"):
        load(environ={**environ, "AIP_PREDICT_ROUTE": "/a b"})


# Presets


def test_a_preset_is_a_table_of_models(tmp_path):
    path = tmp_path / "models.ini"
    path.write_text(
        "version = 1\n; all\n[*]\nc = 8192\nn-gpu-layers = 8\nport = 1\n"
        "[org/repo:Q8_0]\nchat-template = chatml\njinja = true\nc = 4096\nLLAMA_ARG_CACHE_RAM = 0\nload-on-startup = on\n"
        "[custom]\nmodel = /x/y.gguf\nstop-timeout = 5\n"
    )
    settings = load({"models_preset": path, "engine_n_gpu_layers": "3"}, environ={})
    first, second = settings.tables
    assert (first.name, first.load, second.name, second.load) == ("org/repo:Q8_0", True, "custom", False)
    own = settings.of(first)
    assert (own.engine.context_cells, own.engine.gpu_layers, own.engine.cache_bytes) == (4096, 3, 0)
    assert own.model.chat_template == "chatml"
    assert settings.of(second).engine.context_cells == 8192 and str(settings.of(second).model.path) == "/x/y.gguf"
    assert any("port" in note and "ignored" in note for note in settings.notes)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[a]\nmodle = x", r"\[a\]: modle = 'x': unknown key; did you mean model"),
        ("[a]\nctx-size = x", r"\[a\]: ctx-size = 'x': must be a whole number"),
        ("[a]\nvideo-fps = 2", r"\[a\]: video-fps = '2': not supported"),
        ("[a]\nhf-repo = x/y\nmodel = z.gguf", "not both"),
        ("[a]\ndedup-cache-models = maybe", "must be true or false"),
        ("[a]\njinja = maybe", "must be true or false"),
        ("[a\n", "not a valid INI file"),
    ],
)
def test_a_wrong_preset_is_reported_with_its_place(tmp_path, text, line):
    path = tmp_path / "models.ini"
    path.write_text(text)
    with pytest.raises(ConfigError, match=line):
        load({"models_preset": path}, environ={})


# Whole command lines


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder in which the files of the command lines are."""
    for name in ("models/7B/ggml-model.gguf", "model.gguf", "template.jinja", "models_directory/m.gguf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("") if name.endswith("jinja") else llama(tmp_path / name)
    (tmp_path / "my-models.ini").write_text("[custom]\nmodel = model.gguf\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMANDS = dict(line.partition("  # ")[::2] for line in lines("llama_server_commands.txt"))


@pytest.mark.parametrize(("line", "refusal"), COMMANDS.items())
def test_command_lines_of_llama_server_give_settings(line, refusal, given, place):
    program, *arguments = shlex.split(line)
    assert program == "llama-server"
    if refusal:
        with pytest.raises(ConfigError, match=refusal):
            given(*arguments)
        return
    if arguments == ["--list-devices"]:
        return  # it gives none: see below
    settings = given(*(arguments or ["serve"]))
    named = [arguments[at + 1] for at, argument in enumerate(arguments) if argument in ("-m", "--model", "-hf")]
    assert [str(settings.model.path or settings.model.hf_repo)] == named or not named


README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
COMING = re.findall(r"\| `(llamasrv [^`]*)` \|$", README, re.MULTILINE)


def test_the_readme_says_what_becomes_of_other_servers_commands():
    assert len(COMING) >= 12


@pytest.mark.parametrize("line", COMING)
def test_the_commands_for_users_of_other_servers_are_right(line, given, place, monkeypatch):
    """As the README writes them: each is accepted, and its options arrive."""
    program, *arguments = shlex.split(line)
    (place / "models.ini").write_text("[custom]\nmodel = model.gguf\n")
    if arguments[0] in ("pull", "run"):
        called = []
        function = {"pull": "pull.run", "run": "chat.run_model"}[arguments[0]]
        monkeypatch.setattr(f"llamasrv.commands.{function}", lambda *given: called.append(given))
        CliRunner().invoke(cli.cli, arguments, standalone_mode=False, catch_exceptions=False)
        assert called
    else:
        settings = given(*arguments)
        assert settings.model.path or settings.model.hf_repo or settings.models.preset or settings.server.port == 11434


def status(server):
    port = server.address[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
        return answer.status


@pytest.mark.parametrize(
    "line",
    [
        "llama-server -m model.gguf --jinja --flash-attn on --cont-batching --parallel 8 --n-gpu-layers -1",
        "llama-server --models-preset ./my-models.ini",
        "llama-server -m models/7B/ggml-model.gguf -c 512 --host 0.0.0.0 --port 8080 --n-gpu-layers 99",
    ],
)
def test_command_lines_of_llama_server_start(line, place, serve):
    assert line in COMMANDS
    arguments = shlex.split(line)[1:]
    ours = ["127.0.0.1" if argument == "0.0.0.0" else "0" if argument == "8080" else argument for argument in arguments]
    server = serve(*ours)
    assert status(server) == 200


def unit(text):
    """The variables and the command of a unit file."""
    fields = [line.partition("=")[::2] for line in text.replace("\\\n", " ").splitlines()]
    environ = dict(one.split("=", 1) for key, value in fields if key == "Environment" for one in value.split())
    return environ, shlex.split(next(value for key, value in fields if key == "ExecStart"))


def image(text):
    """The variables and the command of a container's file, and what its health check asks for."""
    fields = [line.partition(" ")[::2] for line in text.splitlines()]
    environ = dict(value.split("=", 1) for key, value in fields if key == "ENV")
    commands = [json.loads(value) for key, value in fields if key in ("ENTRYPOINT", "CMD")]
    health = json.loads(dict(fields)["HEALTHCHECK"].removeprefix("CMD "))
    assert health[-1] == f"http://localhost:{environ['LLAMA_ARG_PORT']}/health"
    return environ, [word for words in commands for word in words]


@pytest.mark.parametrize(("name", "read"), [("llama_server.service", unit), ("llama_server.Dockerfile", image)])
def test_a_file_written_for_llama_server_starts_llamasrv_with_the_programs_name_changed(name, read, place, serve):
    """And the port, which is a free one here."""
    port = str(free_port())
    environ, (program, *arguments) = read((DATA / name).read_text("utf-8").replace("8080", port))
    assert program.endswith("/llama-server")
    server = serve(*arguments, command=(sys.executable, "-m", "llamasrv"), environ={**environ, "container": "docker"})
    server.wait_for("serves")
    with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=30) as answer:  # as the health check asks
        assert answer.status == 200


def test_a_container_made_for_llama_server_starts_with_its_variables_alone(place, serve):
    """Its image sets LLAMA_ARG_HOST, its composition the rest; the program gets no argument, and is asked /health."""
    environ = {
        "LLAMA_ARG_HOST": "0.0.0.0",
        "LLAMA_ARG_PORT": "0",
        "LLAMA_ARG_MODEL": "model.gguf",
        "LLAMA_ARG_CTX_SIZE": "4096",
        "LLAMA_ARG_N_PARALLEL": "2",
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
        "container": "docker",
    }
    server = serve(command=(sys.executable, "-m", "llamasrv"), environ=environ)
    assert status(server) == 200
    assert "no API key is set" in server.log


def test_devices_are_named(given, capsys):
    assert (
        CliRunner().invoke(cli.cli, ["serve", "--list-devices"], standalone_mode=False).output == "Available devices:\n"
    )


def test_it_listens_on_several_addresses(place, serve):
    port = free_port()
    serve("--fake", "--host", "127.0.0.1,127.0.0.2", "--port", port).wait_for("serves")
    for host in ("127.0.0.1", "127.0.0.2"):
        with urllib.request.urlopen(f"http://{host}:{port}/health", timeout=30) as answer:
            assert answer.status == 200


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_notes_are_logged_at_debug_level(serve):
    server = serve("--fake", "--jinja", "--log-level", "debug", environ={"LLAMA_ARG_CONT_BATCHING": "1"})
    server.wait_for("--jinja: nothing to do: templates are always Jinja")
    server.wait_for("LLAMA_ARG_CONT_BATCHING='1': nothing to do: sequences join")
