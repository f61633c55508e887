"""Programs of other people, whole and headless: they read, edit and test through tool calls, and find their prompts.

`tox -e programs`. Each is started by `llamasrv launch`, on loopback, with a home of its own; what is not installed is
skipped. The model plays a script (scripted_model.py); all else is a real server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chat.chat_samples import HERMES_APART
from chat.vectors import COLLECTION
from clients.conftest import wait_until_ready
from conftest import ServerProcess

from llamasrv.commands.launch_programs import PROGRAMS

MODEL = Path(__file__).with_name("scripted_model.py")
SECONDS = 240
MARK = "zq-greeting"
ORDER = f"Do {MARK}: mend greeting.py, and run its test."
BEFORE = 'def greeting(name):\n    return "Helo, " + name\n'
AFTER = 'def greeting(name):\n    return "Hello, \\"" + name + "\\"!\\n"  # <b>ü</b>\n'
OLD, NEW = BEFORE.splitlines()[1].strip(), AFTER.splitlines()[1].strip()
TEST = 'from greeting import greeting\n\nassert greeting("Jörg") == "Hello, \\"Jörg\\"!\\n"\nprint("it " + "passed")\n'
RUN = "python3 test_greeting.py"
DONE = "The test has passed, says qk9."
NOWHERE = "http://127.0.0.1:9"  # a proxy that is not there: nothing leaves this machine
TEMPLATES = {"hermes": HERMES_APART} | {
    name: (COLLECTION / f"{name}.jinja").read_text("utf-8")
    for name in ("Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B")
    if (COLLECTION / f"{name}.jinja").is_file()
}

pytestmark = pytest.mark.timeout(SECONDS + 60)


@dataclass(frozen=True)
class Program:
    """A headless run: what it is told, how it is started, and the calls that its tools understand."""

    command: str
    arguments: tuple[str, ...]
    calls: Any  # of the folder: one list of calls for each turn


def _claude(folder: Path) -> list[Any]:
    path, test = str(folder / "greeting.py"), str(folder / "test_greeting.py")
    return [
        [("Read", {"file_path": path}), ("Read", {"file_path": test})],
        [("Edit", {"file_path": path, "old_string": OLD, "new_string": NEW})],
        [("Bash", {"command": RUN, "description": "Run the test"})],
    ]


def _codex(folder: Path) -> list[Any]:
    patch = f"*** Begin Patch\n*** Update File: greeting.py\n@@\n-    {OLD}\n+    {NEW}\n*** End Patch"
    return [
        [("exec_command", {"cmd": "cat greeting.py"}), ("exec_command", {"cmd": "cat test_greeting.py"})],
        [("exec_command", {"cmd": f"apply_patch <<'EOF'\n{patch}\nEOF"})],
        [("exec_command", {"cmd": RUN})],
    ]


def _opencode(folder: Path) -> list[Any]:
    path, test = str(folder / "greeting.py"), str(folder / "test_greeting.py")
    return [
        [("read", {"filePath": path}), ("read", {"filePath": test})],
        [("edit", {"filePath": path, "oldString": OLD, "newString": NEW})],
        [("bash", {"command": RUN})],
    ]


CLAUDE = ("-p", ORDER, "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash,Edit")
CODEX = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json", ORDER)


def _claude_finding(folder: Path) -> list[Any]:
    """It looks for a tool that its first prompt does not show, and calls it."""
    return [[("ToolSearch", {"query": "select:CronList", "max_results": 5})], [("CronList", {})], *_claude(folder)]


HEADLESS = {
    "claude": Program("claude", CLAUDE, _claude),
    "claude with deferred tools": Program("claude", CLAUDE, _claude_finding),
    "codex": Program("codex", CODEX, _codex),
    "codex over a WebSocket": Program(
        "codex", ("-c", "model_providers.llamasrv.supports_websockets=true", *CODEX), _codex
    ),
    "opencode": Program("opencode", ("run", "--format", "json", ORDER), _opencode),
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "greeting.py").write_text(BEFORE, "utf-8")
    (folder / "test_greeting.py").write_text(TEST, "utf-8")
    return folder


@pytest.fixture
def server(tmp_path):
    """`server(template, orders)` starts one whose model plays these orders."""
    started = []

    def start(template: str, orders: list[Any], *flags: str) -> ServerProcess:
        jinja, script = tmp_path / "template.jinja", tmp_path / "script.json"
        jinja.write_text(template, "utf-8")
        script.write_text(json.dumps({"template": str(jinja), "orders": orders}), "utf-8")
        started.append(
            ServerProcess(
                ["--fake", "--port", "0", "--chat-template-file", str(jinja), *flags],
                command=(sys.executable, str(MODEL), "serve"),
                environ={"SCRIPT": str(script)},
            )
        )
        return wait_until_ready(started[-1])

    yield start
    for one in started:
        one.end()


def order(calls: list[Any], *, mark: str = MARK, done: str = DONE) -> dict[str, Any]:
    """What the model does about an order: a turn for each list of calls, and a last word."""
    turns = [
        {"thought": f"I think about step {n}.", "text": f"This is step {n} of {mark[3:]}.", "calls": one}
        for n, one in enumerate(calls, 1)
    ]
    return {"mark": mark, "tool": calls[0][0][0], "turns": [*turns, {"thought": "It is done.", "text": done}]}


def installed(program: Program) -> Program:
    if shutil.which(program.command) is None:
        pytest.skip(f"{program.command} is not installed: {PROGRAMS[program.command].install}")
    return program


def run(program: Program, server: ServerProcess, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program to its end, in `folder`, with a home of its own beside it and no way out of this machine."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "DISABLE_TELEMETRY": "1",
        **{name: NOWHERE for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")},
        **{name: "127.0.0.1,localhost" for name in ("NO_PROXY", "no_proxy")},
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }
    port = server.url.rpartition(":")[2]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "llamasrv",
            "launch",
            program.command,
            "--model",
            "fake",
            "--port",
            port,
            "--",
            *program.arguments,
        ],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def answered(server: ServerProcess) -> list[dict[str, str]]:
    """The log's lines of what the model answered; nothing was refused."""
    lines = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in server.lines if re.search(r"\brequest id=", line)]
    lines = [line for line in lines if line["route"] != "/readyz"]
    assert not [line for line in lines if line["status"] >= "400" or "error" in line], server.log
    return [line for line in lines if "prompt" in line]


def check_reuse(lines: list[dict[str, str]], share: float = 0.97) -> None:
    """Each turn finds the prompt of the turn before."""
    sizes = [(int(line["cached"]), int(line["prompt"])) for line in lines]
    for (_, before), (cached, prompt) in zip(sizes, sizes[1:]):
        assert prompt > before and cached >= share * before, sizes


def main_turns(lines: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without titles and the like, whose prompts are much shorter, and without prompts that were only computed."""
    lines = [line for line in lines if line["completion"] != "0"]
    return [line for line in lines if int(line["prompt"]) > max(int(one["prompt"]) for one in lines) / 2]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", HEADLESS)
def test_it_reads_edits_and_tests(name, template, folder, server):
    program = installed(HEADLESS[name])
    calls = program.calls(folder)
    running = server(TEMPLATES[template], [order(calls)])
    done = run(program, running, folder)
    told = f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{running.log[-3000:]}"
    assert done.returncode == 0, told
    assert (folder / "greeting.py").read_text("utf-8") == AFTER, told
    assert "it passed" in done.stdout and DONE in done.stdout, told
    assert "fallback metadata" not in done.stdout, told  # Codex's word for a model that it does not know
    turns = main_turns(answered(running))
    assert [turn["finish"] for turn in turns] == ["tool_calls"] * len(calls) + ["stop"], told
    check_reuse(turns)


def test_a_helper_of_claude_has_a_conversation_of_its_own(folder, server):
    """The main conversation goes on from its prefix behind a helper's turns."""
    program = installed(HEADLESS["claude"])
    look = "Do zq-look: tell the word that greeting.py returns."
    task = {"description": "Find the word", "prompt": look, "subagent_type": "claude", "run_in_background": False}
    calls = [[("Agent", task)], *_claude(folder)]
    helper = order([_claude(folder)[0]], mark="zq-look", done="The word is Helo, says qk8.")
    running = server(TEMPLATES["hermes"], [order(calls), helper])
    done = run(program, running, folder)
    told = f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{running.log[-3000:]}"
    assert done.returncode == 0 and DONE in done.stdout and "qk8" in done.stdout, told
    assert (folder / "greeting.py").read_text("utf-8") == AFTER, told
    first, *helpers, _, _, _, _ = answered(running)
    assert [turn["finish"] for turn in helpers] == ["tool_calls", "stop"], told
    check_reuse([first, *answered(running)[3:]])
    check_reuse(helpers)
