"""Tools that run on the server: what is refused at the start, whom it opens them to, and what it says of it."""

from __future__ import annotations

import json

import pytest

from llamasrv import startup
from llamasrv.config import load
from llamasrv.errors import ConfigError
from llamasrv.startup import service as startup_service
from llamasrv.startup import tools
from llamasrv.tools.runtime import Image

MCP = {"mcpServers": {"one": {"command": "x"}, "two": {"command": "y"}}}


def loaded(**flags):
    return load({"model_fake": True, **flags}, environ={})


def test_without_an_option_nothing_runs():
    settings = loaded()
    made = startup_service.web_options(settings)
    assert (made.tools, made.mcp_servers, made.origins, tools.opened(settings)) == ((), (), (), None)


def test_tools_are_named():
    made = startup_service.web_options(loaded(tools_names="read_file, get_info"))
    assert made.tools == ("read_file", "get_info")
    with pytest.raises(ConfigError, match="tools.names: 'read_fil' is not one of all, .*; did you mean read_file?"):
        startup.prepare(loaded(tools_names="read_fil"))


def test_a_runtime_is_read_at_the_start():
    settings = loaded(tools_names="get_info", tools_runtime="docker:alpine")
    assert startup_service.web_options(settings).tools_runtime == Image("docker", "alpine")
    assert tools.opened(settings) == "use the tools get_info in docker:alpine"
    for flags, reason in (
        ({"tools_runtime": "docker:alpine"}, "--tools enables no built-in"),
        ({"tools_runtime": "fake:x", "tools_names": "all"}, "tools.runtime: unknown tool runtime: fake:x"),
    ):
        with pytest.raises(ConfigError, match=reason):
            startup.prepare(loaded(**flags))


def test_servers_come_from_the_file_and_from_the_line(tmp_path):
    (tmp_path / "mcp.json").write_text(json.dumps(MCP))
    inline = {"mcpServers": {"two": {"command": "other"}, "three": {"command": "z"}, "far": {"url": "https://x"}}}
    settings = loaded(tools_mcp_servers_config=str(tmp_path / "mcp.json"), tools_mcp_servers_json=json.dumps(inline))
    lines = []
    found = tools.mcp_servers(settings, lines.append)
    assert [(one.name, one.command) for one in found] == [("one", "x"), ("two", "y"), ("three", "z")]
    assert ["far" in lines[0], "two is defined twice" in lines[1]] == [True, True]
    assert "call the MCP servers one, two, three" in tools.opened(settings)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not JSON", "invalid JSON"),
        ("[]", "expected a JSON object"),
        ('{"mcpServers": 1}', "must be an object"),
        ("[" * 200_000, "invalid JSON"),
        (" " * (2**20 + 1), "larger than"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_wrong_file_ends_the_start(tmp_path, text, reason):
    path = tmp_path / "mcp.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=f"mcp.json.*{reason}"):
        startup.prepare(loaded(tools_mcp_servers_config=str(path)))


def test_a_file_that_is_not_there_and_a_line_that_is_no_json_end_the_start(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        startup.prepare(loaded(tools_mcp_servers_config=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="JSON object"):
        loaded(tools_mcp_servers_json="not JSON")


@pytest.mark.parametrize(
    ("given", "keys", "origins"),
    [
        ((), (), ("localhost",)),
        (("https://a.example",), (), ("https://a.example",)),
        (("*",), (), ("localhost",)),
        (("https://a.example", "*"), (), ("https://a.example", "localhost")),
        (("*",), ("sk-x",), ("*",)),
    ],
)
def test_pages_of_other_sites_have_to_be_named(given, keys, origins):
    """Without keys every page that somebody opens on this machine could run programs."""
    settings = loaded(tools_names="all", server_cors_origins=given, server_api_key=keys)
    lines = []
    tools.opened(settings, lines.append)
    assert startup_service.web_options(settings).origins == origins
    assert bool(lines) == ("*" in given and not keys)


def test_an_address_that_others_reach_needs_keys_even_in_a_container(monkeypatch):
    monkeypatch.setenv("container", "podman")
    assert loaded(server_host="0.0.0.0")
    with pytest.raises(ConfigError, match="could run programs here"):
        loaded(server_host="0.0.0.0", tools_names="get_info")
    with pytest.raises(ConfigError, match="could run programs here"):
        loaded(server_host="0.0.0.0", tools_mcp_servers_json='{"mcpServers": {}}')
    assert loaded(server_host="0.0.0.0", tools_names="get_info", server_api_key="x")
    assert loaded(server_host="0.0.0.0", tools_names="get_info", server_allow_keyless=True)


def test_the_agents_flag_means_the_tools():
    assert load(environ={"LLAMA_ARG_AGENT": "1"}).tools.names == ("all",)
    assert load(environ={"LLAMA_ARG_AGENT": "0"}).tools.names == ()
