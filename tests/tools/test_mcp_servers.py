"""MCP servers as local programs: listing tools, calls, and all the ways in which they end."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from clients.talk import is_running, wait_for

from llamasrv.tools import mcp_servers
from llamasrv.tools.line_process import OutputLimits
from llamasrv.tools.mcp_servers import as_response, as_tool


def call(servers, name, stop=lambda: False, **arguments):
    tool = next(tool for tool in servers.tools() if tool.remote_name == name)
    return servers.call(tool, arguments, stop)


def pid_of(servers):
    """Of one with the tool pid."""
    return int(call(servers, "pid")["plain_text_response"])


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_tools_are_listed_under_the_name_of_their_server(run_servers, fake):
    tools = run_servers(fake(name="one"), fake(name="two")).tools()
    assert [tool.name for tool in tools][:2] == ["one_say", "one_wait"] and tools[-1].name == "two_babble"
    assert (tools[0].kind, tools[0].description, tools[0].parameters["type"]) == ("mcp", "to say", "object")


def test_a_paginated_list_is_read_completely(run_servers, fake):
    assert len(run_servers(fake("--pages", "3")).tools()) == 10


def test_a_call_returns_the_text(run_servers, fake):
    servers = run_servers(fake())
    assert call(servers, "say", text="hello\nw\u00f6rld") == {"plain_text_response": "hello\nw\u00f6rld"}


def test_a_server_keeps_running_between_calls(run_servers, fake):
    servers = run_servers(fake("--more", "pid"))
    first = pid_of(servers)
    call(servers, "say", text="y")
    assert pid_of(servers) == first


def test_a_failure_of_the_tool_is_an_error(run_servers, fake):
    servers = run_servers(fake())
    assert call(servers, "fail") == {"error": "it did not work"}
    unknown = as_tool("fake", {"name": "other"})
    assert servers.call(unknown, {}, lambda: False) == {"error": "no such tool"}


def test_lines_that_are_not_replies_are_skipped(run_servers, fake):
    assert call(run_servers(fake()), "noise") == {"plain_text_response": "through the noise"}


def test_requests_of_a_server_are_answered(run_servers, fake):
    assert call(run_servers(fake()), "ask") == {"plain_text_response": "[{}, -32601]"}


def test_it_runs_in_its_folder_with_its_variables_and_without_our_keys(run_servers, fake, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    servers = run_servers(fake(cwd=str(tmp_path), env={"FAKE": "yes"}))
    assert call(servers, "where") == {"plain_text_response": f"{tmp_path.resolve()} yes None"}


@pytest.mark.parametrize("tool", ["flood", "babble"])
def test_a_server_that_floods_us_is_killed(run_servers, fake, caplog, tool):
    """It kept running, and took two fifths of the hub's core long after the call had timed out."""
    servers = run_servers(fake("--more", "pid", seconds=60))
    first = pid_of(servers)
    assert "has ended" in call(servers, tool)["error"]
    wait_for(lambda: not is_running(first))
    assert "floods the server" in caplog.text
    assert call(servers, "say", text="again") == {"plain_text_response": "again"} and pid_of(servers) != first


def test_slow_unsolicited_output_is_allowed_forever(run_servers, fake):
    """The limit is on the rate: a server that reports progress is not killed for its age."""
    limits = OutputLimits(unsolicited_burst=500, unsolicited_rate=100_000_000)
    servers = run_servers(fake("--more", "pid"), limits=limits)
    first = pid_of(servers)
    for _ in range(20):
        call(servers, "noise")
    assert pid_of(servers) == first


def test_a_call_times_out_and_the_next_one_succeeds(run_servers, fake):
    servers = run_servers(fake(seconds=2))
    assert call(servers, "wait", seconds=2.5) == {"error": "request timed out"}
    assert call(servers, "say", text="x") == {"plain_text_response": "x"}


def test_a_call_is_cancelled_when_its_client_leaves(run_servers, fake):
    servers, left = run_servers(fake()), threading.Event()
    servers.tools()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(call, servers, "wait", left.is_set, seconds=20)
        left.set()
        assert waiting.result(10) == {"error": "cancelled"}


def test_a_server_that_dies_fails_its_call_and_is_restarted(run_servers, fake, caplog):
    servers = run_servers(fake())
    assert call(servers, "die") == {"error": "the MCP server has ended with exit code 3"}
    assert call(servers, "say", text="again") == {"plain_text_response": "again"}
    assert "MCP server fake ended with exit code 3; restarting it" in caplog.text


def test_concurrent_calls_get_their_own_replies(run_servers, fake):
    servers = run_servers(fake())
    servers.tools()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: call(servers, "say", text=str(n)), range(24)))
    assert replies == [{"plain_text_response": str(n)} for n in range(24)]


def test_a_command_that_cannot_be_started_does_not_delay_others(run_servers, fake, caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    bad = mcp_servers.Definition("bad", "no-such-program-here")
    servers = run_servers(bad, fake())
    assert {tool.server for tool in servers.tools()} == {"fake"}
    assert [record.message for record in caplog.records if "bad" in record.message] == [
        "MCP server bad: 'no-such-program-here' cannot be started: No such file or directory"
    ]
    tool = as_tool("bad", {"name": "say"})
    unavailable = {"error": "MCP server unavailable: bad"}
    assert servers.call(tool, {"text": "x"}, lambda: False) == unavailable
    eager = run_servers(bad, cooldown=0.0)
    assert eager.call(tool, {"text": "x"}, lambda: False) == unavailable
    program = tmp_path / "no-such-program-here"
    program.write_text(f"#!/bin/sh\nexec {fake().command} {fake().args[0]}\n")
    program.chmod(0o755)
    assert servers.call(tool, {"text": "x"}, lambda: False) == unavailable  # not tried again so soon
    assert eager.call(tool, {"text": "x"}, lambda: False) == {"plain_text_response": "x"}


def test_a_server_that_ends_at_once_is_a_warning_with_its_error(run_servers, fake, caplog):
    assert run_servers(fake("--die-at-start")).tools() == []
    assert "no configuration was found" in caplog.text


def test_a_server_that_does_not_respond_has_no_tools(run_servers, fake, caplog):
    assert run_servers(fake("--deaf", "initialize"), list_seconds=0.2).tools() == []
    assert "cannot list its tools: request timed out" in caplog.text


def test_an_endless_line_ends_the_server(run_servers, fake):
    servers = run_servers(fake(), limits=OutputLimits(longest_line=10_000))
    assert "has ended" in call(servers, "long")["error"]


def test_a_server_that_does_not_read_blocks_no_other(run_servers, fake, tmp_path):
    reader = tmp_path / "reader.py"
    reader.write_text("import time; time.sleep(60)")
    servers = run_servers(mcp_servers.Definition("stuck", fake().command, (str(reader),), seconds=0.3))
    tool = as_tool("stuck", {"name": "say"})
    start = time.monotonic()
    assert "request timed out" in servers.call(tool, {"text": "x" * 300_000}, lambda: False)["error"]
    assert time.monotonic() - start < 5


def test_close_ends_servers_and_pending_calls(run_servers, fake):
    servers = run_servers(fake("--more", "pid"))
    pid = pid_of(servers)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(call, servers, "wait", seconds=20)
        servers.close()
        assert "error" in waiting.result(5)
    assert is_gone(pid)
    assert "error" in call(servers, "say", text="x")


def test_children_of_a_server_end_with_it(run_servers, tmp_path, fake):
    """A grandchild kept the pipes open, and the reader waited forever."""
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import subprocess, sys, runpy\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        f"sys.argv[0] = {fake().args[0]!r}\n"
        f"runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    servers = run_servers(mcp_servers.Definition("parent", fake().command, (str(parent),)))
    assert call(servers, "say", text="x") == {"plain_text_response": "x"}
    grandchild = int((tmp_path / "pid").read_text())
    servers.close()
    wait_for(lambda: not is_running(grandchild))


@pytest.mark.parametrize(
    ("result", "response"),
    [
        ({}, {"plain_text_response": ""}),
        ({"content": "x"}, {"plain_text_response": ""}),
        (
            {"content": [1, {"type": "text"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"plain_text_response": "a\nb"},
        ),
        (
            {
                "content": [
                    {"type": "image", "mimeType": "image/png", "data": "eA==", "annotations": {}},
                    {"type": "image", "data": 1},
                ]
            },
            {"plain_text_response": "", "images": [{"mimeType": "image/png", "data": "eA=="}]},
        ),
        ({"isError": True}, {"error": "MCP tool returned an error"}),
    ],
)
def test_a_result_becomes_text_and_images(result, response):
    assert as_response(result) == response


def test_a_tool_without_a_name_is_none():
    assert as_tool("s", {"description": "x"}) is None
    assert as_tool("s", {"name": "t", "inputSchema": 3}).parameters == {}
