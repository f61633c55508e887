"""The `mcpServers` object: what is read, what is skipped, what is refused."""

import pytest

from llamasrv.tools.definitions import Definition, read_definitions


def read(document):
    lines = []
    return read_definitions(document, lines.append), lines


def test_every_field_of_an_entry_is_read():
    entry = {"command": "uvx", "args": ["a", "b"], "env": {"A": "1"}, "cwd": "/tmp", "timeout_ms": 500, "type": "stdio"}
    assert read({"mcpServers": {"files": entry}}) == (
        [Definition("files", "uvx", ("a", "b"), {"A": "1"}, "/tmp", 0.5)],
        [],
    )


def test_only_the_command_is_required():
    assert read({"mcpServers": {"x": {"command": "y"}}})[0] == [Definition("x", "y")]


def test_a_remote_server_is_skipped_with_a_warning():
    found, lines = read({"mcpServers": {"far": {"url": "https://example.com/mcp"}, "x": {"command": "y"}}})
    assert [one.name for one in found] == ["x"] and len(lines) == 1 and "mcpServers.far" in lines[0]


@pytest.mark.parametrize("document", [{}, {"mcpServers": {}}])
def test_no_usable_server_is_a_warning(document):
    assert read(document) == ([], ["mcpServers contains no usable server"])


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"mcpServers": []}, "mcpServers must be"),
        ({"mcpServers": {str(n): {"command": "x"} for n in range(33)}}, "at most 32"),
        ({"mcpServers": {"": {"command": "x"}}}, "a name must have"),
        ({"mcpServers": {"n" * 65: {"command": "x"}}}, "a name must have"),
        ({"mcpServers": {"x": "y"}}, "mcpServers.x must"),
        ({"mcpServers": {"x": {"command": ["y"]}}}, "mcpServers.x.command"),
        ({"mcpServers": {"x": {"command": "y", "args": "z"}}}, "mcpServers.x.args"),
        ({"mcpServers": {"x": {"command": "y", "args": ["\0"]}}}, "mcpServers.x.args"),
        ({"mcpServers": {"x": {"command": "y", "env": {"A": 1}}}}, "mcpServers.x.env"),
        ({"mcpServers": {"x": {"command": "y", "env": {"A=B": "1"}}}}, "mcpServers.x.env"),
        ({"mcpServers": {"x": {"command": "y", "cwd": 3}}}, "mcpServers.x.cwd"),
        ({"mcpServers": {"x": {"command": "y", "timeout_ms": 0}}}, "mcpServers.x.timeout_ms"),
        ({"mcpServers": {"x": {"command": "y", "timeout_ms": True}}}, "mcpServers.x.timeout_ms"),
    ],
)
def test_the_error_names_the_wrong_entry(document, where):
    with pytest.raises(ValueError) as refusal:
        read(document)
    assert where in str(refusal.value)
