"""Tools as the server runs them: in child processes, with limits."""

from __future__ import annotations

import json
import threading
import time

import pytest

from llamasrv.errors import InvalidRequest, NotFound, QueueFull, Unavailable
from llamasrv.tools import file_tools
from llamasrv.tools.catalogue import NAMES
from llamasrv.tools.tool import Invocation
from llamasrv.tools.toolbox import MOST_AT_ONCE, Toolbox, check_params


@pytest.fixture
def tools():
    toolbox = Toolbox(("all",))
    yield toolbox
    toolbox.close()


def ask(tools, name, cwd="/", **params):
    tool = tools.find(name)
    return Invocation(tool, check_params(tool, params), str(cwd))


def use(tools, name, cwd="/", **params):
    return json.loads(tools.call(ask(tools, name, cwd, **params)))


def test_names_select_tools():
    assert [tool.name for tool in Toolbox(("all",)).tools()] == list(NAMES)
    assert [tool.name for tool in Toolbox(("get_info", "read_file")).tools()] == ["read_file", "get_info"]
    assert not Toolbox().is_on and Toolbox().tools() == []
    with pytest.raises(NotFound):
        Toolbox(("read_file",)).find("write_file")


def test_file_tools_run_in_child_processes(tools, tmp_path):
    assert use(tools, "write_file", tmp_path, path="a", content="x\u00e9")["bytes"] == 3
    assert use(tools, "read_file", tmp_path, path="a") == {"plain_text_response": "x\u00e9\n"}
    assert use(tools, "read_file", tmp_path, path="b") == {"error": "cannot stat file: b"}
    assert use(tools, "get_info", tmp_path)["cwd"] == str(tmp_path)


def test_modules_in_the_folder_are_not_imported(tools, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    (tmp_path / "a").write_text("x")
    assert use(tools, "read_file", tmp_path, path="a") == {"plain_text_response": "x\n"}


def test_an_endless_pattern_times_out(tools, tmp_path):
    (tmp_path / "a").write_text("a" * 60)
    invocation = ask(tools, "grep_search", tmp_path, path="a", pattern="(a+)+b")
    reply = file_tools.run(invocation, lambda: False, seconds=1.0)
    assert json.loads(reply) == {"error": "grep_search took more than 1 s"}


def test_a_shell_command_returns_its_output_and_exit_code(tools, tmp_path):
    (tmp_path / "f").write_text("x")
    assert use(tools, "exec_shell_command", tmp_path, command="ls; exit 2") == {
        "plain_text_response": "f\n\n[exit code: 2]"
    }
    timed_out = use(tools, "exec_shell_command", command="echo a; sleep 60", timeout=3)["plain_text_response"]
    assert timed_out == "a\n\n[exit code: -9] [exit due to timed out]"
    cut = use(tools, "exec_shell_command", command="echo abcdef", max_output_size=3)["plain_text_response"]
    assert cut == "abc\n[output truncated]\n[exit code: 0]"
    assert "cannot be started" in use(tools, "exec_shell_command", tmp_path / "none", command="ls")["error"]


def test_a_stream_keeps_characters_together(tools):
    invocation = ask(tools, "exec_shell_command", command="printf '\\303'; sleep 0.2; printf '\\251'")
    assert list(tools.stream(invocation, 100)) == ["\u00e9", "\n[exit code: 0]"]


def test_a_stream_yields_pauses(tools):
    invocation = ask(tools, "exec_shell_command", command="sleep 60")
    stream = tools.stream(invocation, 0.05)
    assert next(stream) == ""
    invocation.cancel()
    assert "".join(stream) == "\n[exit code: -9]"


def test_a_tool_is_cancelled_when_its_client_leaves(tools):
    invocation = ask(tools, "exec_shell_command", command="sleep 60")
    threading.Timer(0.1, invocation.cancel).start()
    began = time.monotonic()
    tools.call(invocation)
    assert time.monotonic() - began < 10


def test_close_stops_running_tools_and_refuses_new_calls():
    tools = Toolbox(("all",))
    invocation = ask(tools, "exec_shell_command", command="sleep 60")
    threading.Timer(0.1, tools.close).start()
    began = time.monotonic()
    tools.call(invocation)
    assert time.monotonic() - began < 10
    with pytest.raises(Unavailable):
        tools.call(invocation)


def test_concurrent_calls_are_limited(tools):
    invocation = ask(tools, "exec_shell_command", command="true")
    held = [tools.place() for _ in range(MOST_AT_ONCE)]
    for place in held:
        place.__enter__()
    with pytest.raises(QueueFull):
        tools.call(invocation)
    held.pop().__exit__(None, None, None)
    assert b"exit code: 0" in tools.call(invocation)


@pytest.mark.parametrize(
    ("name", "params", "field"),
    [
        ("read_file", {}, "params.path"),
        ("read_file", {"path": None}, "params.path"),
        ("read_file", {"path": 3}, "params.path"),
        ("read_file", {"path": "a", "start_line": "1"}, "params.start_line"),
        ("read_file", {"path": "a", "append_loc": 1}, "params.append_loc"),
        ("edit_file", {"path": "a", "edits": {}}, "params.edits"),
        ("exec_shell_command", {"command": "a", "timeout": 0}, "params.timeout"),
        ("exec_shell_command", {"command": "a", "max_output_size": -1}, "params.max_output_size"),
    ],
)
def test_errors_name_the_wrong_parameter(tools, name, params, field):
    with pytest.raises(InvalidRequest) as refusal:
        check_params(tools.find(name), params)
    assert refusal.value.param == field


def test_made_up_parameters_are_dropped(tools):
    assert check_params(tools.find("read_file"), {"path": "a", "cwd": "/x", "end_line": None}) == {"path": "a"}


def test_a_built_in_tool_keeps_its_name(fake, caplog):
    caplog.set_level("DEBUG")
    tools = Toolbox(("all",), [fake("--more", "file", "--more", "other", name="read")])
    tools.start()
    assert [tool.kind for tool in tools.tools() if tool.name == "read_file"] == ["server"]
    assert tools.find("read_other").kind == "mcp" and "the name is taken" in caplog.text
    tools.close()
