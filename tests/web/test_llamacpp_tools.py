"""GET and POST /tools: off, on, streamed, and in the real worker process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from clients.talk import is_running, wait_for
from faults.front import worker_of

from llamasrv.domain.key import Key
from llamasrv.tools.definitions import Definition
from llamasrv.web.service import WebOptions

FAKE = str(Path(__file__).resolve().parents[1] / "tools" / "fake_mcp.py")
MCP = {"mcpServers": {"fake": {"command": sys.executable, "args": [FAKE]}}}


@pytest.fixture
def tools(start):
    service = start(web=WebOptions(tools=("all",), mcp_servers=(Definition("fake", sys.executable, (FAKE,)),)))
    service.service.tools.start()
    yield service.client
    service.service.tools.close()


def use(client, name, headers=None, **params):
    return client.post("/tools", json={"tool": name, "params": params}, headers=headers)


def test_without_the_option_there_are_no_tools(client):
    for reply in (client.get("/tools"), use(client, "get_info")):
        assert reply.status_code == 403 and "--tools" in reply.get_json()["error"]["message"]


def test_they_are_listed_as_llama_server_does(tools):
    listed = {tool["tool"]: tool for tool in tools.get("/tools").get_json()}
    assert listed["exec_shell_command"] | {"definition": None} == {
        "display_name": "Execute shell command",
        "tool": "exec_shell_command",
        "type": "server",
        "permissions": {"write": True},
        "uses_cwd": True,
        "definition": None,
    }
    function = listed["fake_say"]["definition"]["function"]
    assert function == {
        "name": "fake_say",
        "description": "to say",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    assert listed["fake_say"]["type"] == "mcp" and listed["read_file"]["permissions"] == {"write": False}


def test_their_definitions_are_tools_of_a_chat(tools):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    body["tools"] = [tool["definition"] for tool in tools.get("/tools").get_json() if tool["tool"] == "fake_say"]
    reply = tools.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.get_json()


def test_they_are_called(tools, tmp_path):
    (tmp_path / "f").write_text("here")
    reply = use(tools, "read_file", {"x-tool-cwd": str(tmp_path)}, path="f", cwd="/nowhere")
    assert reply.get_json() == {"plain_text_response": "here\n"}
    assert use(tools, "read_file", {"x-tool-cwd": str(tmp_path), "x-resp-type": "base64"}, path="f").get_json() == {
        "base64": "aGVyZQ==",
        "size_bytes": 4,
    }
    assert use(tools, "fake_say", text="x").get_json() == {"plain_text_response": "x"}
    assert tools.post("/tools", json={"tool": "get_info"}).get_json()["cwd"] == os.getcwd()


def test_the_folder_of_the_client_may_have_any_letters(tools, tmp_path):
    folder = tmp_path / "w\u00f6rk"
    folder.mkdir()
    headers = {"x-tool-cwd": str(folder).encode().decode("latin-1")}
    assert use(tools, "get_info", headers).get_json()["cwd"] == str(folder)
    assert use(tools, "get_info", {"x-tool-cwd": "\xff"}).status_code == 400


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("fake:x", "unknown tool runtime"),
        ("ssh:-oX=y", "invalid ssh target"),
        ("docker-container:-x", "invalid container"),
    ],
)
def test_a_runtime_that_is_none_runs_nothing_here(tools, tmp_path, runtime, words):
    reply = use(tools, "write_file", {"x-tool-runtime": runtime, "x-tool-cwd": str(tmp_path)}, path="f", content="x")
    assert reply.status_code == 500 and words in reply.get_json()["error"]["message"]
    assert not list(tmp_path.iterdir())


def test_a_runtime_is_no_matter_of_mcp_servers(tools):
    assert use(tools, "fake_say", {"x-tool-runtime": "fake:x"}, text="x").get_json() == {"plain_text_response": "x"}


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 400, "tool"),
        ({"tool": 3}, 400, "tool"),
        ({"tool": "none"}, 404, "tool"),
        ({"tool": "read_file", "params": []}, 400, "params"),
        ({"tool": "read_file"}, 400, "params.path"),
        ({"tool": "get_info", "stream": True}, 404, "stream"),
        ({"tool": "fake_say", "stream": 1}, 400, "stream"),
    ],
)
def test_a_call_that_cannot_be_is_refused(tools, body, status, field):
    reply = tools.post("/tools", json=body)
    assert reply.status_code == status and reply.get_json()["error"]["param"] == field


def events(reply):
    lines = reply.get_data(as_text=True).split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_output_is_streamed(tools):
    body = {"tool": "exec_shell_command", "params": {"command": "echo a; sleep 0.3; echo b"}, "stream": True}
    reply = tools.post("/tools", json=body)
    assert reply.content_type.startswith("text/event-stream")
    assert events(reply) == [{"chunk": "a\n"}, {"chunk": "b\n"}, {"chunk": "\n[exit code: 0]"}, {"done": True}]


def test_a_command_that_cannot_be_started_ends_its_stream_with_the_reason(tools):
    body = {"tool": "exec_shell_command", "params": {"command": "ls"}, "stream": True}
    reply = events(tools.post("/tools", json=body, headers={"x-tool-cwd": "/no/such/folder"}))
    assert len(reply) == 1 and reply[0]["done"] and "No such file" in reply[0]["error"]


def test_a_stream_that_is_left_ends_its_command(tools, start, tmp_path):
    command = f"echo $$ > {tmp_path}/pid; echo a; sleep 60"
    body = {"tool": "exec_shell_command", "params": {"command": command}, "stream": True}
    reply = tools.post("/tools", json=body)
    pieces = reply.iter_encoded()
    assert b"a" in next(pieces)
    reply.close()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_key_needs_the_scope(start):
    keys = (Key.of("user", "sk-user", ("infer", "admin")), Key.of("agent", "sk-agent", ("tools",)))
    client = start(web=WebOptions(tools=("get_info",), keys=keys)).client
    statuses = [
        client.open("/tools", method=method, json={"tool": "get_info"}, headers={"x-api-key": key}).status_code
        for method in ("GET", "POST")
        for key in ("sk-agent", "sk-user", "sk-other")
    ]
    assert statuses == [200, 403, 401] * 2
    assert client.get("/tools").status_code == 401


def ask(server, method="POST", body=None, timeout=30):
    connection = http.client.HTTPConnection(*server.address, timeout=timeout)
    try:
        connection.request(method, "/tools", None if body is None else json.dumps(body))
        reply = connection.getresponse()
        return json.loads(reply.read())
    finally:
        connection.close()


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_real_worker_runs_them_beside_everything_else(serve):
    """In the worker nothing waits for a tool but its own client; and they end with it, at once, with all they started."""
    server = serve("--fake", "--tools", "all", "--mcp-servers-json", json.dumps(MCP))
    assert server.wait_for("clients of this server can use the tools read_file")
    names = {tool["tool"] for tool in ask(server, "GET")}
    assert {"fake_wait", "read_file"} <= names
    waiting = [
        {"tool": "fake_wait", "params": {"seconds": 50}},
        {"tool": "exec_shell_command", "params": {"command": "sleep 50 & sleep 50", "timeout": 60}},
    ]
    replies = []
    threads = [threading.Thread(target=lambda body=body: replies.append(ask(server, body=body))) for body in waiting]
    for thread in threads:
        thread.start()
    assert ask(server, body={"tool": "exec_shell_command", "params": {"command": "echo x"}}) == {
        "plain_text_response": "x\n\n[exit code: 0]"
    }
    worker = worker_of(server)
    end = time.monotonic() + 10
    while len(children_of(worker)) < 3:  # with the one that would end them
        assert time.monotonic() < end
        time.sleep(0.01)
    groups = children_of(worker)
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0 and time.monotonic() - began < 10
    for thread in threads:
        thread.join()
    assert len(replies) == 2
    wait_for(lambda: not any(is_running(pid) for pid in groups))


def test_a_wrong_list_of_servers_ends_the_start(serve, tmp_path):
    server = serve("--fake", "--mcp-servers-config", str(tmp_path / "none.json"))
    assert server.exit_code() == 78 and "none.json" in server.log
