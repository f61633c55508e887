"""Tools that Anthropic defines by type alone and that the client runs: what they do, and their schemas.

    CLIENT_TOOLS   one tool to a type: bash, text editor, memory, computer
    TOOLSETS       a type with many members: computer, browser. A member has its own tool in the prompt

Shapes: anthropic 2.14, `types/beta/beta_tool_*_param.py`, `beta_{computer,browser}_*_input.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_SECONDS: Schema = {"type": "number"}
_POINT: Schema = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_REGION: Schema = {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4}
_DIRECTION: Schema = {"type": "string", "enum": ["up", "down", "left", "right"]}
_PLACE: Schema = {
    "type": "object",
    "properties": {"type": {"const": "coordinate"}, "coordinate": _POINT},
    "required": ["type", "coordinate"],
}
_REFERENCE: Schema = {
    "type": "object",
    "properties": {"type": {"const": "ref"}, "ref": _TEXT},
    "required": ["type", "ref"],
}
_TARGET: Schema = {"anyOf": [_PLACE, _REFERENCE]}


def _object(required: Sequence[str] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _commands(names: Sequence[str], **properties: Schema) -> Schema:
    return _object(["command"], command={"type": "string", "enum": list(names)}, **properties)


_ACTIONS = (
    "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
    "triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "cursor_position", "screenshot",
    "zoom",
)  # fmt: skip

CLIENT_TOOLS: dict[str, tuple[str, Schema]] = {
    "bash_": (
        "Run a command in a bash shell that keeps its state between calls.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command to run."},
                "restart": {"type": "boolean", "description": "Start the shell anew instead."},
            },
        },
    ),
    "text_editor_": (
        "View, create and edit text files.",
        _commands(
            ("view", "create", "str_replace", "insert"),
            path=_TEXT,
            view_range=_POINT,
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_NUMBER,
            insert_text=_TEXT,
        ),
    ),
    "memory_": (
        "Keep notes in files under /memories.",
        _commands(
            ("view", "create", "str_replace", "insert", "delete", "rename"),
            path=_TEXT,
            view_range=_POINT,
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_NUMBER,
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
    "computer_": (
        "Use the mouse, the keyboard and the screen of a computer.",
        _object(
            ["action"],
            action={"type": "string", "enum": list(_ACTIONS)},
            coordinate=_POINT,
            start_coordinate=_POINT,
            text=_TEXT,
            duration=_SECONDS,
            scroll_direction=_DIRECTION,
            scroll_amount=_NUMBER,
            region=_REGION,
        ),
    ),
}
"""By the beginning of their type."""


class Toolset(NamedTuple):
    name: str  # the name that calls use
    members: Mapping[str, tuple[str, Schema]]
    disabled: frozenset[str] = frozenset()  # members that are off by default


def _click(what: str) -> tuple[str, Schema]:
    return f"{what} at a point, or where the pointer is. `text` holds keys down.", _object(
        coordinate=_POINT, text=_TEXT
    )


_COMPUTER: dict[str, tuple[str, Schema]] = {
    "key": ("Press a key or a combination such as ctrl+s.", _object(["text"], text=_TEXT, repeat=_NUMBER)),
    "hold_key": ("Hold a key for some seconds.", _object(["text", "duration"], text=_TEXT, duration=_NUMBER)),
    "type": ("Type a text.", _object(["text"], text=_TEXT)),
    "cursor_position": ("Tell where the pointer is.", _object()),
    "mouse_move": ("Move the pointer to a point.", _object(["coordinate"], coordinate=_POINT)),
    "left_mouse_down": ("Press the left button.", _object()),
    "left_mouse_up": ("Release the left button.", _object()),
    "left_click": _click("Click"),
    "right_click": _click("Click the right button"),
    "middle_click": _click("Click the middle button"),
    "double_click": _click("Double-click"),
    "triple_click": _click("Triple-click"),
    "left_click_drag": (
        "Drag from one point to another.",
        _object(["start_coordinate", "coordinate"], start_coordinate=_POINT, coordinate=_POINT, text=_TEXT),
    ),
    "scroll": (
        "Scroll at a point.",
        _object(
            ["scroll_direction", "scroll_amount"],
            scroll_direction=_DIRECTION,
            scroll_amount=_NUMBER,
            coordinate=_POINT,
            text=_TEXT,
        ),
    ),
    "wait": ("Wait some seconds.", _object(["duration"], duration=_NUMBER)),
    "screenshot": ("Take a picture of the screen.", _object()),
    "zoom": ("Take a picture of a part of the screen: x0, y0, x1, y1.", _object(["region"], region=_REGION)),
}


def _tab(required: Sequence[str] = (), **properties: Schema) -> Schema:
    return _object(required, **properties, tab_id=_TEXT)


def _browser_click(what: str) -> tuple[str, Schema]:
    return f"{what} on a point or an element.", _tab(["target"], target=_TARGET, modifiers=_TEXT)


_BROWSER: dict[str, tuple[str, Schema]] = {
    "navigate": ("Open an address, or go 'back' or 'forward'.", _tab(["url"], url=_TEXT)),
    "list_tabs": ("List the open tabs.", _object()),
    "new_tab": ("Open a tab.", _object()),
    "switch_tab": ("Go to a tab.", _object(["tab_id"], tab_id=_TEXT)),
    "close_tab": ("Close a tab.", _object(["tab_id"], tab_id=_TEXT)),
    "read_page": (
        "Read the elements of the page, each with its ref.",
        _tab(filter={"type": "string", "enum": ["all", "interactive"]}, depth=_NUMBER, ref=_TEXT),
    ),
    "get_page_text": ("Read the text of the page.", _tab()),
    "read_console": ("Read the page's console.", _tab()),
    "read_network": ("Read the page's network requests.", _tab()),
    "find": ("Find elements by a description.", _tab(["query"], query=_TEXT)),
    "form_input": (
        "Set the value of a form element.",
        _tab(["target", "value"], target=_REFERENCE, value={"type": ["string", "number", "boolean"]}),
    ),
    "file_upload": (
        "Choose files in a file input.",
        _tab(
            ["target"],
            target=_REFERENCE,
            paths={"type": "array", "items": _TEXT},
            document_ids={"type": "array", "items": _TEXT},
        ),
    ),
    "scroll_to": ("Scroll an element into view.", _tab(["target"], target=_REFERENCE)),
    "screenshot": ("Take a picture of the page.", _tab()),
    "zoom": ("Take a picture of a part of the page: x0, y0, x1, y1.", _tab(["region"], region=_REGION)),
    "left_click": _browser_click("Click"),
    "right_click": _browser_click("Click the right button"),
    "middle_click": _browser_click("Click the middle button"),
    "double_click": _browser_click("Double-click"),
    "triple_click": _browser_click("Triple-click"),
    "hover": ("Move the pointer onto a point or an element.", _tab(["target"], target=_TARGET)),
    "left_click_drag": (
        "Drag from one point to another.",
        {**_tab(["from", "target"], target=_PLACE), "properties": {"from": _PLACE, "target": _PLACE, "tab_id": _TEXT}},
    ),
    "mouse_move": ("Move the pointer to a point.", _tab(["target"], target=_PLACE)),
    "left_mouse_down": ("Press the left button at a point.", _tab(["target"], target=_PLACE)),
    "left_mouse_up": ("Release the left button at a point.", _tab(["target"], target=_PLACE)),
    "scroll": (
        "Scroll at a point.",
        _tab(["scroll_direction", "target"], scroll_direction=_DIRECTION, target=_PLACE, scroll_amount=_NUMBER),
    ),
    "type": ("Type a text.", _tab(["text"], text=_TEXT)),
    "key": ("Press a key or a combination such as ctrl+s.", _tab(["text"], text=_TEXT, repeat=_NUMBER)),
    "hold_key": ("Hold a key for some seconds.", _tab(["text", "duration"], text=_TEXT, duration=_SECONDS)),
    "wait": ("Wait some seconds.", _tab(["duration"], duration=_SECONDS)),
    "javascript_exec": ("Run JavaScript in the page.", _tab(["text"], text=_TEXT)),
}

TOOLSETS: dict[str, Toolset] = {
    "computer_toolset_": Toolset("computer", _COMPUTER),
    "browser_toolset_": Toolset("browser", _BROWSER, frozenset(("javascript_exec",))),
}
"""By the beginning of their type."""

SEPARATOR = "__"


def prompt_name_of(name: str, toolset: str | None) -> str:
    """A member's name in the prompt: members of two toolsets may have one name."""
    return name if not toolset else f"{toolset}{SEPARATOR}{name}"


def member_of(prompt_name: str) -> tuple[str, str] | None:
    """The toolset and the member with this name in the prompt; None if there is none."""
    toolset, separator, name = prompt_name.partition(SEPARATOR)
    known = next((known for known in TOOLSETS.values() if known.name == toolset), None)
    return (toolset, name) if separator and known is not None and name in known.members else None
