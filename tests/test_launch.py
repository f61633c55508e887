"""`llamasrv launch`: other programs with the server that runs here, or with one started for them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from llamasrv import cli
from llamasrv.commands.launch_programs import PROGRAMS, as_text, filled
from llamasrv.domain.option import PREFIX

REPORTER = """#!{python}
import json, os, sys, urllib.request
variables = {{name: value for name, value in os.environ.items()}}
url = next((v for n, v in variables.items() if n.endswith("BASE_URL") or n.endswith("API_BASE")), None)
found = {{"arguments": sys.argv[1:], "variables": variables, "url": url}}
found["files"] = [open(word).read() for word in sys.argv if word.endswith(".json")]
if url:
    with urllib.request.urlopen(url.removesuffix("/v1") + "/v1/models") as reply:
        found["models"] = [one["id"] for one in json.load(reply)["data"]]
json.dump(found, open({report!r}, "w"))
{more}
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program of any name on the path, which reports what it was told and exits with 3."""
    for name in [name for name in os.environ if name.startswith((PREFIX, "ANTHROPIC_", "OPENAI_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    report = tmp_path / "report"

    def install(name, more=""):
        path = tmp_path / name
        path.write_text(REPORTER.format(python=sys.executable, report=str(report), more=more))
        path.chmod(0o755)
        return lambda: json.loads(report.read_text())

    return install


def launch(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(["launch", *map(str, arguments)])
    out = capfd.readouterr()
    return end.value.code, out.out, out.err


def test_a_program_talks_to_the_server_that_runs_here(serve, program, capfd, tmp_path):
    server = serve("--model", "demo")
    told = program("claude")
    code, out, err = launch(capfd, "claude", "--port", server.url.rpartition(":")[2], "--", "--continue", "-p", "hi")
    assert code == 3 and out == ""
    assert told()["arguments"] == ["--continue", "-p", "hi"] and told()["models"] == ["demo"]
    variables = told()["variables"]
    assert variables["ANTHROPIC_BASE_URL"] == server.url and variables["ANTHROPIC_MODEL"] == "demo"
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "2048"
    assert err.count("\n") == 1 and "claude uses demo at" in err and "larger --ctx-size" in err


def test_without_a_server_one_is_started_and_ends_with_the_program(program, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in the checkout `python -m llamasrv` would be another package than the installed one
    told = program("aider")
    code, _, err = launch(capfd, "aider", "--model", "demo", "--port", 9)
    assert code == 3, err
    assert told()["models"] == ["demo"] and told()["url"].startswith("http://127.0.0.1:")
    metadata = json.loads(told()["files"][0])
    assert metadata["openai/demo"]["max_input_tokens"] == 2048
    assert not any(os.path.exists(word) for word in told()["arguments"] if word.endswith(".json"))
    with pytest.raises(OSError):
        import urllib.request

        urllib.request.urlopen(told()["url"] + "/models", timeout=5)


def test_codex_gets_a_catalogue_with_the_model():
    """Without one it warned at each start, and its first prompt had 3,500 tokens of instructions."""
    codex = PROGRAMS["codex"]
    facts = {"model": "demo", "context": 8192, "folder": "/f", "url": "http://h", "key": "none"}
    (model,) = json.loads(json.dumps(filled(codex.files, facts)))["models.json"]["models"]
    assert (model["slug"], model["context_window"]) == ("demo", 8192) and "apply_patch" in model["base_instructions"]
    assert 'model_catalog_json="/f/models.json"' in [filled(one, facts) for one in codex.arguments]


def test_sigterm_ends_the_server_that_was_started(program, tmp_path):
    told = program("aider", more="import time; time.sleep(60)")
    words = [sys.executable, "-m", "llamasrv", "launch", "aider", "--model", "demo", "--port", "9"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    while not (tmp_path / "report").exists() or not (tmp_path / "report").stat().st_size:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(OSError):
        import urllib.request

        urllib.request.urlopen(told()["url"] + "/models", timeout=5)


def test_print_writes_lines_for_a_shell(serve, capfd, program):
    server = serve("--model", "demo")
    code, out, err = launch(capfd, "claude", "--print", "--port", server.url.rpartition(":")[2])
    assert code == 0 and err == ""
    done = subprocess.run(["sh", "-c", f"{out}\nprintf %s $ANTHROPIC_BASE_URL"], capture_output=True, text=True)
    assert done.stdout == server.url
    assert launch(capfd, "claude", "--print", "--port", 9)[0] == 69


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("launch nothing", 78, "known: claude, codex"),
        ("launch cluade", 78, "did you mean claude?"),
        ("launch qwen", 127, "qwen is not installed: npm install -g @qwen-code/qwen-code"),
        ("launch", 78, "Missing argument 'PROGRAM'"),
    ],
)
def test_what_cannot_be_launched_is_one_line(capfd, monkeypatch, line, code, part):
    monkeypatch.setattr("shutil.which", lambda name: None)
    status, out, err = launch(capfd, *shlex.split(line)[1:])
    assert status == code and part in err and err.count("\n") == 1 and out == ""


def test_without_a_model_that_can_call_tools_the_line_says_what_to_do(program, capfd):
    program("claude")
    code, _, err = launch(capfd, "claude", "--port", 9)
    assert code == 78 and "no local model that can call tools" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_text_of_the_table_is_filled(name):
    program = PROGRAMS[name]
    facts = {"url": "http://u", "key": "k", "model": "m", "context": 40960, "output": 8192, "folder": "/f"}
    facts["share"] = 0.027344
    values = [*program.environment.values(), *program.arguments, program.files]
    texts = [as_text(filled(value, facts)) for value in values]
    told = "\n".join(texts)
    assert "{url}" not in told and "{key}" not in told and "{folder}" not in told and "{model}" not in told
    assert "http://u" in told and "k" in {*texts, *re.findall(r'"apiKey": "(\w+)"', told)}
    assert "40960" in told or "0.027344" in told or name == "copilot"  # which has no setting for it


def test_json_has_numbers_and_texts_as_they_are():
    assert filled({"{a}": ["{a}", 1], "b": "{a}", "c": "x{a}"}, {"a": 5}) == {5: [5, 1], "b": 5, "c": "x5"}
