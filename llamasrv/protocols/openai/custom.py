"""Custom tools: called with one string instead of a JSON object.

To the model such a tool is a function with one text argument, `input`. A pattern or a grammar constrains that text. The
client gets only that text instead of the call's arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from llamasrv.domain.request import Tool
from llamasrv.protocols.common.schema import Invalid, wrong_type


@dataclass(frozen=True, slots=True)
class CustomTool(Tool):
    """A tool whose argument is a single text."""


def custom_tool(name: str, description: str, form: dict[str, Any] | None, *path: int | str) -> CustomTool:
    """`form`: the tool's format, {"type": "grammar", "syntax", "definition"} or of type text. `path` leads to it."""
    text: dict[str, Any] = {"type": "string"}
    form = form or {}
    grammar = ""
    kind = form.get("type", "text")
    if kind == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if syntax not in ("lark", "regex"):
            raise Invalid("expected 'lark' or 'regex'.", *path, "syntax")
        if type(definition) is not str or not definition:
            raise wrong_type("a non-empty string", definition, *path, "definition")
        if syntax == "regex":
            text["pattern"] = f"^(?:{definition})$"
        else:
            grammar = definition
        description = f"{description}\nThe input follows this {syntax} grammar:\n{definition}".lstrip()
    elif kind != "text":
        raise Invalid("expected 'text' or 'grammar'.", *path, "type")
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    return CustomTool(name, description, parameters, strict=True, input_grammar=grammar)


def custom_arguments(text: str) -> str:
    """The arguments that the model sees for a call with this text."""
    return orjson.dumps({"input": text}).decode()


# The complete part of the only argument's value: no half escape, no half surrogate pair.
_VALUE_STARTS = re.compile(r'\s*\{\s*"[^"\\]*"\s*:\s*"')
_VALUE = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?:(?![dD][89abAB])[0-9a-fA-F]{4}|[0-9a-fA-F]{4}\\u[0-9a-fA-F]{4}))*')


class CustomInput:
    """Extracts a custom tool's input text from the call's arguments as they arrive."""

    def __init__(self) -> None:
        self._arguments = ""
        self._at: int | None = None  # start of the text not emitted yet, once the text has begun
        self._sent = ""

    def add(self, fragment: str) -> str:
        """The text that can be sent now."""
        self._arguments += fragment
        if self._at is None:
            start = _VALUE_STARTS.match(self._arguments)
            if start is None:
                return ""
            self._at = start.end()
        value = _VALUE.match(self._arguments, self._at)
        assert value is not None
        try:
            text: str = orjson.loads(f'"{value[0]}"')
        except orjson.JSONDecodeError:  # not JSON; `end` decides what it is
            return ""
        self._at = value.end()
        self._sent += text
        return text

    def end(self) -> str:
        """The rest of the text; all of it, if the call did not have the right form."""
        text = _text_of(self._arguments)
        return text[len(self._sent) :] if text.startswith(self._sent) else ""


def custom_input(arguments: str) -> str:
    """The text of a complete call; arguments in any other form stay as written."""
    text = CustomInput()
    return text.add(arguments) + text.end()


def _text_of(arguments: str) -> str:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    if type(value) is str:
        return value
    if type(value) is dict and len(value) == 1:
        (only,) = value.values()
        if type(only) is str:
            return only
    return arguments
