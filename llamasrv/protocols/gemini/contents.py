"""Reads Google's contents and parts into neutral messages.

Calls need no ids there: results find theirs by id, else by name and order. Thoughts come back as parts that are marked
as such, or sealed in the signature of a call; either way the template sees them where it shows earlier reasoning.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Any

import orjson

from llamasrv.domain.request import Message, Part, TextPart, ToolCall
from llamasrv.protocols.common.media import from_base64, from_url
from llamasrv.protocols.common.schema import (
    Invalid,
    Refusal,
    WireField,
    check_length,
    check_messages,
    expect_or_none,
    string_of,
)
from llamasrv.protocols.gemini.wire import Path, list_of, object_of

SEALED = b"llamasrv:"
"""Starts the signature of a call: the rest of it is what was thought before the call."""

_KINDS = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
_ROLES = {"user": "user", "function": "user", "model": "assistant"}

Given = tuple[dict[str, Any], Path]
"""A part and its place."""


class Contents(WireField):
    """A list of turns, or a single turn. `pairs`: every result needs its call. To count tokens it does not: clients
    count a tool's result alone, before it joins its conversation."""

    def __init__(self, note: str = "", *, pairs: bool = True, **place: Any) -> None:
        super().__init__(note, **place)
        self.pairs = pairs

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Message, ...]:
        limits = self.limits
        if type(value) is dict:
            value = [value]
        check_messages(value, limits)
        out: list[Message] = []
        open_calls: list[ToolCall] = []  # calls that have no result yet
        for at, role, parts in _turns(value, limits.parts):
            if role == "user":
                out += _user(parts, open_calls, self.pairs)
            elif (message := _model(parts, at)) != Message("assistant"):
                out.append(message)
                open_calls += message.tool_calls
        return tuple(out)


def _turns(contents: list[Any], most: int) -> list[tuple[int, str, list[Given]]]:
    """The place, role and parts of each turn. Adjacent contents of the model are one turn: Google's clients keep every
    chunk of a stream as a separate content."""
    out: list[tuple[int, str, list[Given]]] = []
    for at, wire in enumerate(contents):
        given = object_of(wire, at)
        name = given.get("role") or "user"
        role = _ROLES.get(name) if type(name) is str else None
        if role is None:
            raise Invalid("expected 'user' or 'model'.", at, "role")
        parts = _parts(given.get("parts"), most, (at, "parts"))
        if role == "assistant" and out and out[-1][1] == role:
            out[-1][2].extend(parts)
        else:
            out.append((at, role, parts))
    return out


class SystemInstruction(WireField):
    """A content whose parts are texts; or a single text."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | tuple[Part, ...] | None:
        if type(value) is str:
            return value or None
        parts = _parts(object_of(value).get("parts"), self.limits.parts, ("parts",))
        for wire, path in parts:
            if _kind(wire, path) != "text":
                raise Invalid("expected 'text'.", *path)
        return _joined([TextPart(string_of(wire, "text", *path)) for wire, path in parts])


def seal(thoughts: str) -> str:
    """A signature from which the thoughts can be restored."""
    return base64.b64encode(SEALED + thoughts.encode()).decode()


def _unsealed(wire: dict[str, Any], path: Path) -> str:
    """The thoughts in a part's signature, if this server wrote it. Clients re-encode base64, in any alphabet."""
    text = string_of(wire, "thoughtSignature", *path, required=False) or ""
    try:
        data = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
        return data[len(SEALED) :].decode() if data.startswith(SEALED) else ""
    except (binascii.Error, ValueError):
        return ""


def _parts(value: Any, most: int, path: Path) -> list[Given]:
    parts = list_of(value, *path)
    check_length(parts, most, "parts", *path)
    return [(object_of(wire, *path, i), (*path, i)) for i, wire in enumerate(parts)]


def _kind(wire: dict[str, Any], path: Path) -> str:
    found = [kind for kind in _KINDS if wire.get(kind) is not None]
    if len(found) != 1:
        raise Invalid("expected a part with one of 'text', 'inlineData', 'functionCall', 'functionResponse'.", *path)
    return found[0]


def _joined(parts: list[Any]) -> str | tuple[Part, ...] | None:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return tuple(parts) or None


def _model(parts: list[Given], at: int) -> Message:
    content: list[Part] = []
    thoughts: list[str] = []
    sealed: list[str] = []
    calls: list[ToolCall] = []
    for wire, path in parts:
        sealed.append(_unsealed(wire, path))
        if _only_signed(wire):  # the end of a stream may be nothing else
            continue
        kind = _kind(wire, path)
        if kind == "text" and wire.get("thought") is True:
            thoughts.append(string_of(wire, "text", *path))
        elif kind == "functionCall":
            calls.append(_call(object_of(wire[kind], *path, kind), (*path, kind), f"call_{at}_{len(calls)}"))
        else:
            content += _shown(wire, kind, path)
    reasoning = "".join(thoughts) or "".join(sealed)
    if content and all(isinstance(part, TextPart) for part in content):
        content = [TextPart("".join(part.text for part in content if isinstance(part, TextPart)))]
    return Message("assistant", _joined(content), reasoning=reasoning or None, tool_calls=tuple(calls))


def _only_signed(wire: dict[str, Any]) -> bool:
    return "thoughtSignature" in wire and all(wire.get(kind) is None for kind in _KINDS)


def _call(wire: dict[str, Any], path: Path, unnamed: str) -> ToolCall:
    arguments = expect_or_none(dict, wire.get("args"), *path, "args")
    id = string_of(wire, "id", *path, required=False)
    return ToolCall(id or unnamed, string_of(wire, "name", *path), orjson.dumps(arguments or {}).decode())


def _user(parts: list[Given], open_calls: list[ToolCall], pairs: bool) -> list[Message]:
    """Function results become messages of their own, before everything else in the turn. `pairs`: see Contents."""
    results: list[Message] = []
    shown: list[Part] = []
    is_behind_result = (
        False  # data there belongs to the result: Gemini CLI writes it so for models that it does not know
    )
    for wire, path in parts:
        kind = _kind(wire, path)
        is_behind_result = kind == "functionResponse" or is_behind_result and kind in ("inlineData", "fileData")
        if kind == "functionResponse":
            here = (*path, kind)
            given = object_of(wire[kind], *here)
            if not pairs and _call_of(given, here, open_calls) is None:  # a result may be counted without its call
                call = ToolCall(f"call_{len(results)}", string_of(given, "name", *here), "{}")
                results.append(Message("assistant", tool_calls=(call,)))
                open_calls.append(call)
            results.append(_result(given, here, open_calls))
            for inner, place in _parts(given.get("parts"), len(parts) + 16, (*here, "parts")):
                shown += _returned(inner, place, results)
        elif is_behind_result:
            shown += _returned(wire, path, results)
        else:
            shown += _shown(wire, kind, path)
    if shown or not results:
        results.append(Message("user", _joined(shown) or ""))
    return results


def _returned(wire: dict[str, Any], path: Path, results: list[Message]) -> list[Part]:
    """What is shown of data in the last of the results. Data of a kind that this server cannot read is named there
    instead: a refusal would end the session, because results are part of the conversation from then on."""
    result = results[-1]
    kind = _kind(wire, path)
    if kind in ("inlineData", "fileData"):
        media = string_of(object_of(wire[kind], *path, kind), "mimeType", *path, kind, required=False) or "image/"
        if not _is_readable(media, kind):
            results[-1] = replace(
                result, content=f"{result.content}[data of type {media[:80]}: it cannot be read here]"
            )
            return []
    parts = _shown(wire, kind, path)
    return [part if isinstance(part, TextPart) else replace(part, result_of=result.tool_call_id) for part in parts]


def _is_readable(media: str, kind: str) -> bool:
    what = media.partition("/")[0]
    return what in ("image", "audio") or (what == "text" and kind == "inlineData")


def _call_of(wire: dict[str, Any], path: Path, open_calls: list[ToolCall]) -> ToolCall | None:
    """The call that this result belongs to: by id, else the first of that name."""
    id, name = string_of(wire, "id", *path, required=False), string_of(wire, "name", *path)
    found = [call for call in open_calls if call.id == id] if id else []
    found = found or [call for call in open_calls if call.name == name]
    return found[0] if found else None


def _result(wire: dict[str, Any], path: Path, open_calls: list[ToolCall]) -> Message:
    call = _call_of(wire, path, open_calls)
    if call is None:
        raise Invalid(f"no earlier 'functionCall' is named '{wire['name'][:80]}'.", *path)
    response = expect_or_none(dict, wire.get("response"), *path, "response")
    open_calls.remove(call)
    return Message("tool", _said(response or {}), name=call.name, tool_call_id=call.id)


def _said(response: dict[str, Any]) -> str:
    """What a function returned; by convention, under `output` or `result`."""
    if len(response) == 1 and (name := next(iter(response))) in ("output", "result"):
        value = response[name]
        return value if type(value) is str else orjson.dumps(value).decode()
    return orjson.dumps(response).decode()


# ---------------------------------------------------------------- what a model is shown


def _shown(wire: dict[str, Any], kind: str, path: Path) -> list[Part]:
    if kind == "text":
        text = string_of(wire, "text", *path)
        return [TextPart(text)] if text else []
    if kind not in ("inlineData", "fileData"):
        raise Invalid(f"a part with '{kind}' is not allowed here.", *path)
    here = (*path, kind)
    given = object_of(wire[kind], *here)
    media = string_of(given, "mimeType", *here, required=kind == "inlineData") or "image/"
    if not _is_readable(media, kind):
        raise Refusal(f"data of type '{media[:80]}' is not supported by this server.", *here, "mimeType")
    what = media.partition("/")[0]
    if what == "text":
        return [TextPart(_text(given, here))]
    if kind == "inlineData":
        return [from_base64(given.get("data"), what, "contents", *here, "data")]  # type: ignore[arg-type]
    return [from_url(given.get("fileUri"), what, "contents", *here, "fileUri")]  # type: ignore[arg-type]


def _text(given: dict[str, Any], path: Path) -> str:
    try:
        return base64.b64decode(string_of(given, "data", *path)).decode()
    except ValueError:
        raise Invalid("expected text in UTF-8, as base64.", *path, "data") from None
