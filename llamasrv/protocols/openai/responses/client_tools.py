"""Tools that the Responses API defines by type and that the client runs: the functions that a model is shown for them,
and the items that carry their calls.

The arguments of the function are the item's own object: `action` of a shell call, `operation` of a patch. Shapes:
openai 3.57, `types/responses/response_{function_shell,apply_patch,tool_search}_*.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_NUMBER = {"type": "integer"}


class ClientTool(NamedTuple):
    description: str
    parameters: dict[str, Any]
    call: str  # type of the item that carries a call
    prefix: str  # prefix of its id
    key: str  # key of the arguments in that item


CLIENT_TOOLS: dict[str, ClientTool] = {
    "shell": ClientTool(
        "Run commands in a shell, one after another.",
        {
            "type": "object",
            "properties": {"commands": _TEXTS, "timeout_ms": _NUMBER, "max_output_length": _NUMBER},
            "required": ["commands"],
        },
        "shell_call",
        "sh",
        "action",
    ),
    "local_shell": ClientTool(
        "Run one command: the program and its arguments.",
        {
            "type": "object",
            "properties": {
                "type": {"const": "exec"},
                "command": _TEXTS,
                "env": {"type": "object", "additionalProperties": _TEXT},
                "timeout_ms": _NUMBER,
                "user": _TEXT,
                "working_directory": _TEXT,
            },
            "required": ["type", "command", "env"],
        },
        "local_shell_call",
        "lsh",
        "action",
    ),
    "apply_patch": ClientTool(
        "Create, update or delete a file. `diff` is in the V4A format: lines that begin with a space, + or -, after @@ "
        "lines that say where.",
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"type": {"enum": ["create_file", "update_file"]}, "path": _TEXT, "diff": _TEXT},
                    "required": ["type", "path", "diff"],
                },
                {
                    "type": "object",
                    "properties": {"type": {"const": "delete_file"}, "path": _TEXT},
                    "required": ["type", "path"],
                },
            ]
        },
        "apply_patch_call",
        "apc",
        "operation",
    ),
    "tool_search": ClientTool(
        "Find further tools, which are not shown until they are found.",
        {"type": "object", "properties": {"query": _TEXT}, "required": ["query"]},
        "tool_search_call",
        "tsc",
        "arguments",
    ),
}
"""By type, which is the function's name, too."""

CALLS = {tool.call: (name, tool.key) for name, tool in CLIENT_TOOLS.items()}
"""The function's name and the place of its arguments, by the type of a call."""

PATHS = {
    "type": "object",
    "properties": {"paths": {**_TEXTS, "description": "Names of tools or of groups of tools."}},
    "required": ["paths"],
}
"""The arguments of a tool search that the server runs."""


def runs_here(wire: dict[str, Any]) -> bool:
    """Whether a client would run such a tool: a shell in a container belongs to a service."""
    environment = wire.get("environment")
    return type(environment) is not dict or environment.get("type", "local") == "local"
