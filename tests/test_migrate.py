"""`llamasrv migrate`: commands, units and compose files of other servers, rewritten."""

from __future__ import annotations

import random
import shlex

import pytest
import yaml

from llamasrv import cli
from llamasrv.config import OPTIONS, load
from llamasrv.config.foreign import RIVALS, foreign
from llamasrv.config.llama_flags import FLAGS


@pytest.fixture
def migrate(capsys):
    """Runs the command: (exit code, remarks, the rest of standard output, standard error)."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(["migrate", *map(str, words)])
        out, err = capsys.readouterr()
        lines = out.splitlines()
        remarks = [line for line in lines if line.startswith("# ")]
        return end.value.code, remarks, "\n".join(line for line in lines if line not in remarks), err

    return call


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (
            "vllm serve Qwen/Qwen3-8B-GGUF --max-model-len 8k --dtype half --served-model-name a b --port 1",
            "llamasrv serve hf:Qwen/Qwen3-8B-GGUF --alias a,b --port 1 --ctx-per-sequence 8000",
        ),
        ("vllm serve Qwen/Qwen3-8B", "llamasrv serve hf:Qwen/Qwen3-8B-GGUF --port 8000"),
        ("python3 -m vllm.entrypoints.openai.api_server --model a/b -tp 2", "llamasrv serve hf:a/b-GGUF --port 8000"),
        ("text-generation-launcher --model-id a/b --num-shard 2 --port 80", "llamasrv serve hf:a/b-GGUF --port 80"),
        ("ollama serve", "llamasrv serve --models-from ollama --port 11434"),
        ("OLLAMA_HOST=0.0.0.0:99 sudo ollama serve", "llamasrv serve --models-from ollama --host 0.0.0.0 --port 99"),
        ("ollama run llama3.2 'say hi'", "llamasrv run llama3.2 'say hi'"),
        ("ollama list", "llamasrv ls"),
        ("lms server start --port 5 --cors", "llamasrv serve --port 5 --cors-origins '*'"),
        ("lms load x --gpu max --identifier y", "llamasrv serve x --alias y --port 1234 --n-gpu-layers -1"),
        ("llama-server -m a.gguf -fa --jinja -ngl 99", "llamasrv serve a.gguf --n-gpu-layers 99 --flash-attn on"),
        (
            "LLAMA_ARG_CTX_SIZE=4096 /opt/llama-server -m a.gguf --no-mmap",
            "LLAMA_ARG_CTX_SIZE=4096 llamasrv serve a.gguf --load-mode none",
        ),
        (
            "docker run --rm --gpus all -v x:/data -e MAX_TOTAL_TOKENS=4096 -p 80:80"
            " ghcr.io/huggingface/text-generation-inference:3 --model-id a/b",
            "llamasrv serve hf:a/b-GGUF --port 3000 --ctx-per-sequence 4096",
        ),
    ],
)
def test_a_command_is_rewritten(migrate, words, new):
    for form in ([words], shlex.split(words)):
        code, _, out, err = migrate(*form)
        assert (code, out, err) == (0, new, "")


def test_what_is_printed_is_understood(migrate):
    """Every option that the tables set is written so that the command line reads it."""
    line = "vllm serve m --max-num-seqs 4 --allowed-origins '[\"*\"]' --disable-log-requests --swap-space 1"
    words = shlex.split(migrate(*shlex.split(line))[2])
    assert words[:3] == ["llamasrv", "serve", "m"]
    flags = {flag: option for option in OPTIONS for flag in option.flags}
    given, rest = {}, words[3:]
    while rest:
        word = rest.pop(0)
        option = flags.get(word) or flags[word.replace("--no-", "--")]
        given[option.name] = option.kind == "bool" and not word.startswith("--no-") or rest.pop(0) if rest else False
    settings = load(given | {"server_allow_keyless": True}, environ={})
    assert settings.engine.parallel == 4 and settings.server.cors_origins == ("*",) and not settings.log.requests


def test_each_change_is_a_remark_and_what_is_lost_sets_the_exit_code(migrate):
    code, remarks, out, _ = migrate("vllm", "serve", "m", "--quantization", "awq", "--dtype", "half", "--nonsense")
    assert code == 1 and out == "llamasrv serve m --port 8000"
    text = "\n".join(remarks)
    assert "not possible: --quantization awq: not supported: a GGUF file is quantised already" in text
    assert "left out: --dtype half: weights have the types of the GGUF file" in text
    assert "not possible: --nonsense: unknown flag of vLLM" in text


def test_a_unit_keeps_its_shape_and_its_secrets_out_of_the_command_line(migrate, tmp_path):
    path = tmp_path / "vllm.service"
    path.write_text(
        "[Unit]\nDescription=x\n[Service]\nEnvironment=VLLM_API_KEY=secret HF_HOME=/h\n"
        "ExecStart=/opt/vllm serve m \\\n  --max-num-seqs 32\nRestart=always\n"
    )
    code, _, out, _ = migrate(path)
    assert code == 0 and out.splitlines() == [
        "[Unit]",
        "Description=x",
        "[Service]",
        'Environment="LLAMASRV_API_KEY=secret"',
        'Environment="HF_HOME=/h"',
        "ExecStart=/usr/local/bin/llamasrv serve m --port 8000 --parallel 32",
        "Restart=always",
    ]


def test_a_compose_file_keeps_its_other_services(migrate, tmp_path):
    path = tmp_path / "compose.yml"
    path.write_text(
        "services:\n  llm:\n    image: ollama/ollama:latest\n    environment: [OLLAMA_KEEP_ALIVE=1h, A=b]\n"
        "    ports: ['11434:11434']\n  web: {image: ui}\n"
    )
    code, _, out, _ = migrate(path)
    services = yaml.safe_load(out)["services"]
    command = "serve --models-from ollama --keep-alive 3600 --port 11434 --host 0.0.0.0".split()
    assert code == 0 and services["web"] == {"image": "ui"}
    assert services["llm"] == {
        "image": "llamasrv",
        "ports": ["11434:11434"],
        "command": command,
        "environment": {"A": "b"},
    }


def test_a_script_gives_a_line_for_each_command(migrate, tmp_path):
    path = tmp_path / "start.sh"
    path.write_text("#!/bin/sh\nset -e\nexec vllm serve m \\\n  --max-num-seqs 3\n")
    assert migrate(path)[2] == "llamasrv serve m --port 8000 --parallel 3"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("x.service", "[Service]\nUser=x\n", "the unit has no ExecStart"),
        ("x.yml", "services: [1]\n", "not a compose file with services"),
        ("x.yml", "services:\n  a: &a [*a]\n", "not a compose file with services|no service of"),
        ("x.yml", "services: {a: {image: b}, c: 3}\n", "no service of Ollama"),
        ("x.sh", "echo hi\n", "no command of Ollama"),
        ("x.sh", "vllm 'serve\n", "no closing quotation"),
    ],
)
def test_what_is_none_of_them_is_refused_in_one_line(migrate, tmp_path, name, text, line):
    (tmp_path / name).write_text(text)
    code, _, out, err = migrate(tmp_path / name)
    assert code == 78 and out == "" and err.count("\n") == 1
    assert any(part in err for part in line.split("|"))


def test_no_command_line_ends_in_a_traceback(migrate):
    rng = random.Random(3)
    names = [name for flag in (*FLAGS, *foreign()) for name in (*flag.names, *flag.negations)]
    names += [f"{flag.variable}=x" for flags in RIVALS.values() for flag in flags if flag.variable]
    words = ["", "-", "x", "0", "1e999", "a=b", "é", "{", "/", "9" * 21, "--", "=", "--=", "[1]"]
    for _ in range(300):
        start = rng.choice([["vllm", "serve"], ["ollama"], ["lms", "load"], ["llama-server"], ["docker", "run"], []])
        line = [*start, *(rng.choice(rng.choice([names, words])) for _ in range(rng.randrange(6)))]
        assert migrate(*line)[0] in (0, 1, 64, 78), line
