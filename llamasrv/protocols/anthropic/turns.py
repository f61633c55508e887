"""Reads Anthropic's turns into neutral messages.

A user turn may hold tool results beside text: each result becomes a message of its own, in front of the text, and
images inside one move to the text behind it. Calls of tools that Anthropic's servers ran, and of a tool search, stand
in an assistant's turn together with their results: these become messages of their own, too. What is only carried from
request to request (`CARRIED`) is not shown; a header names its types. A summary (`compaction`) stands for all turns
before it. Everything else is shown to the model or refused by name.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.found_tools import found_message
from llamasrv.domain.request import Message, Part, TextPart, Tool, ToolCall
from llamasrv.domain.summary import SUMMARY, with_tools_of
from llamasrv.protocols.anthropic.blocks import Path, blocks_of, shown, text_parts
from llamasrv.protocols.anthropic.client_tools import prompt_name_of
from llamasrv.protocols.anthropic.threads import Continued
from llamasrv.protocols.anthropic.tools import Offer, check_same_type, offer_of, tool_of, type_of
from llamasrv.protocols.common.kept import unseal_turns
from llamasrv.protocols.common.schema import (
    Invalid,
    WireField,
    check_messages,
    expect,
    expect_given,
    expect_or_none,
    string_of,
)
from llamasrv.protocols.common.thinking import EFFORTS
from llamasrv.protocols.limits import Limits

_ROLES = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
    "ctx": "system",
    "msg": "user",  # roles that Claude Code writes in the middle of a conversation
}
_PLAIN = frozenset(("user", "assistant"))

BILLING = "x-anthropic-billing-header:"
"""Starts a line of bookkeeping in front of the system prompt. It differs in each request: a model has no use for it,
and with it no prefix would ever be found again."""

SEALED = "thinking:"
"""Starts the signature of a thinking block whose text was left out; the rest is that text, so that the next turn brings
it back."""

CARRIED = frozenset(("redacted_thinking", "fallback", "mcp_tool_listing", "container_upload", "connector_text"))
"""Types of blocks that another service made for itself. A client that has changed servers still sends them."""

_HOSTED_CALLS = frozenset(("server_tool_use", "mcp_tool_use"))

NOT_OFFERED = 10_000  # max tools that a conversation may define midway


class ReadTurns(NamedTuple):
    """The turns of a request, and settings found in them."""

    messages: tuple[Message, ...]
    effort: str | None = None  # set by the latest effort turn
    carried: tuple[str, ...] = ()  # types of blocks not shown to the model


@dataclass
class TurnReader:
    """Reads turns one by one, and keeps what earlier ones defined."""

    limits: Limits
    wire_tools: Any = None  # `tools` as written in the body
    names: dict[str, str] = field(default_factory=dict)  # tool names by call id
    carried: dict[str, None] = field(default_factory=dict)
    defined: dict[str, Tool] = field(default_factory=dict)  # tools defined by `tool_definition`, by name
    types: dict[str, str] = field(default_factory=dict)  # their types
    effort: str | None = None
    next_effort: str | None = None  # takes effect with the next user turn
    last_user: int = -1  # index of the last user turn
    summary: str | None = None  # from a turn that begins with a summary, which replaces everything before it
    kept: tuple[Message, ...] | None = None  # the turns to show for it, if this server wrote the summary
    _offer: Offer | None = None

    @property
    def most(self) -> int:
        return self.limits.parts

    def define(self, tool: Tool, kind: str, *path: int | str) -> None:
        """Raises Invalid if another tool has the name."""
        earlier = self.types.get(tool.name)
        if earlier is None and type(self.wire_tools) is list:
            given = (w for w in self.wire_tools if type(w) is dict and w.get("name") == tool.name)
            earlier = next(map(type_of, given), None)
        check_same_type(tool.name, kind, earlier, *path)
        self.defined[tool.name], self.types[tool.name] = tool, kind

    def tool(self, name: str, *path: int | str) -> Tool:
        """The tool that a reference names. Raises Invalid."""
        if name in self.defined:
            return self.defined[name]
        if self._offer is None:
            wire = self.wire_tools
            self._offer = offer_of(wire, self.limits.tools) if type(wire) is list else Offer()
        return self._offer.find(name, *path)


class AnthropicMessages(WireField):
    """A non-empty list of turns."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ReadTurns:
        limits = self.limits
        out: list[Message] = []
        seen = TurnReader(limits, data.get("tools"))
        earlier: list[Any] = []
        if type(value) is Continued:
            earlier, value = value
            if type(value) is list and len(earlier) + len(value) > limits.messages:
                raise Invalid(f"the thread is too long: expected at most {limits.messages} messages in total.")
        check_messages(value, limits)
        if earlier:
            # What the new messages clear of them is cleared.
            _read(earlier, seen, out, more=any(type(wire) is dict and wire.get("role") == "user" for wire in value))
        _read(value, seen, out)
        return ReadTurns(tuple(out), seen.effort, tuple(seen.carried))


class System(WireField):
    """A text, or text blocks."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | tuple[Part, ...] | None:
        return _system(value, (), self.limits.parts)[0]


def _read(messages: list[Any], seen: TurnReader, out: list[Message], *, more: bool = False) -> None:
    """`more`: user turns follow."""
    seen.last_user = len(messages) if more else _last_user(messages)
    for at, wire in enumerate(messages):
        expect(dict, wire, at)
        role, content = wire.get("role"), wire.get("content")
        if role == "user" and seen.next_effort is not None:
            seen.effort, seen.next_effort = seen.next_effort, None
        if type(content) is str and type(role) is str and role in _PLAIN and "clear_at" not in wire:  # nearly all
            out.append(Message(role, content))
            continue
        role = _role(role, at)
        if role == "system":
            out += _system_turn(wire, at, seen)
        elif wire.get("clear_at") is not None:
            raise Invalid("clear_at is only permitted on role 'system' messages.", at, "clear_at")
        else:
            turn = _turn(role, content, (at, "content"), seen)
            if seen.summary is not None:
                out[:] = seen.kept or [with_tools_of(Message("user", SUMMARY + seen.summary), out)]
                seen.summary = seen.kept = None
                seen.names.update((call.id, call.name) for message in out for call in message.tool_calls)
            out += turn


def _last_user(messages: list[Any]) -> int:
    for at in range(len(messages) - 1, -1, -1):
        if type(messages[at]) is dict and messages[at].get("role") == "user":
            return at
    return -1


def _role(name: Any, at: int) -> str:
    role = _ROLES.get(expect_given(str, name, at, "role", absent="missing. Every message needs a role."))
    if role is None:
        raise Invalid(f"unknown role. Expected 'user', 'assistant' or 'system', but got '{name[:40]}'.", at, "role")
    return role


def _system_turn(wire: dict[str, Any], at: int, seen: TurnReader) -> list[Message]:
    """A text, tools to add or remove, and an effort that takes effect with the next user turn."""
    content, config, clear = wire.get("content"), wire.get("output_config"), wire.get("clear_at")
    expect_or_none(dict, config, at, "output_config")
    effort = None if config is None else config.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise Invalid(f"expected one of {', '.join(EFFORTS)}.", at, "output_config", "effort")
    if content is None and effort is None:
        raise Invalid("missing. A system message needs content or output_config.", at, "content", code="invalid_type")
    if clear not in (None, "never", "next_user_message"):
        raise Invalid("expected 'never' or 'next_user_message'.", at, "clear_at")
    text, added, removed = (None, [], []) if content is None else _system(content, (at, "content"), seen.most, seen)
    if clear == "next_user_message":
        marked = type(content) is list and any("cache_control" in block for block in content or ())
        if added or removed or effort is not None or marked:
            text = "a turn-scoped system message supports text blocks only (clear_at: 'next_user_message')."
            raise Invalid(text, at)
        if at < seen.last_user:
            return []
    if effort is not None:
        seen.next_effort = effort
    if not (text or added or removed):
        return []
    return [Message("system", text, added_tools=tuple(added), removed_tools=tuple(removed))]


def _turn(role: str, content: Any, path: Path, seen: TurnReader) -> list[Message]:
    if type(content) is str:
        return [Message(role, content)]
    blocks = blocks_of(content, path, seen.most)
    return _assistant(blocks, path, seen) if role == "assistant" else _user(blocks, path, seen)


def _system(
    content: Any, path: Path, most: int, seen: TurnReader | None = None
) -> tuple[str | tuple[Part, ...] | None, list[Tool], list[str]]:
    """The system text. In a turn (`seen`) it may also add and remove tools."""
    if type(content) is str:
        if content.startswith(BILLING):
            content = content.partition("\n")[2].lstrip("\n")
        return content or None, [], []
    parts: list[TextPart] = []
    added: list[Tool] = []
    removed: list[str] = []
    for i, block in enumerate(blocks_of(content, path, most)):
        if seen is not None and block["type"] in _CHANGES:
            _change(block, (*path, i), seen, added, removed)
        elif block["type"] != "text":
            raise Invalid("expected 'text'.", *path, i, "type")
        else:
            parts += [part for part in text_parts(block, (*path, i)) if not part.text.startswith(BILLING)]
    return _joined(parts), added, removed


_CHANGES = frozenset(("tool_addition", "tool_removal"))


def _change(block: dict[str, Any], path: Path, seen: TurnReader, added: list[Tool], removed: list[str]) -> None:
    """Tools that are added or removed from here on."""
    here = (*path, "tool")
    wire = expect(dict, block.get("tool"), *here)
    kind, adds = wire.get("type"), block["type"] == "tool_addition"
    if kind in ("mcp_tool_reference", "mcp_toolset_reference"):
        seen.carried[str(kind)] = None  # this server calls no MCP servers for clients
    elif kind == "tool_definition" and adds:
        if len(seen.defined) >= NOT_OFFERED:
            raise Invalid(f"expected at most {NOT_OFFERED} tools that are defined in messages.", *here)
        tool = tool_of(wire.get("definition"), *here, "definition")
        if tool is None:
            seen.carried[str(wire["definition"]["type"])] = None
            return
        seen.define(tool, type_of(wire["definition"]), *here, "definition", "name")
        added.append(tool)
    elif kind == "tool_reference":
        name = string_of(wire, "name", *here)
        tool = seen.tool(name, *here, "name")
        if adds:
            added.append(tool)
        else:
            removed.append(name)
    else:
        raise Invalid("expected 'tool_reference', or 'tool_definition' in an addition.", *here, "type")


def _joined(parts: list[Any]) -> str | tuple[Part, ...] | None:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return tuple(parts) or None


class _Answer:
    """An assistant's turn as it is read. Results of hosted tools end one message and begin the next."""

    def __init__(self) -> None:
        self.out: list[Message] = []
        self.parts: list[Part] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.results: list[Message] = []  # results of the calls above
        self.hosted: dict[str, str] = {}  # by id: names of the calls above that still lack a result

    @property
    def is_empty(self) -> bool:
        return not (self.parts or self.thoughts or self.calls)

    def goes_on(self) -> None:
        """Text, thoughts or calls follow: if the message has tool results, it ends with them."""
        if self.results:
            self.end()

    def end(self) -> None:
        if not (self.is_empty and self.out):
            thoughts = "".join(self.thoughts) or None
            self.out.append(Message("assistant", _joined(self.parts), reasoning=thoughts, tool_calls=tuple(self.calls)))
        missing = [Message("tool", "", name=name, tool_call_id=id) for id, name in self.hosted.items()]
        self.out += [*self.results, *missing]
        self.parts, self.thoughts, self.calls, self.results, self.hosted = [], [], [], [], {}


def _assistant(blocks: list[dict[str, Any]], path: Path, seen: TurnReader) -> list[Message]:
    turn = _Answer()
    added: list[Tool] = []
    removed: list[str] = []
    for i, block in enumerate(blocks):
        kind, here = block["type"], (*path, i)
        if kind == "text":
            turn.goes_on()
            turn.parts += text_parts(block, here)
        elif kind == "thinking":
            turn.goes_on()
            turn.thoughts.append(_thinking(block, here))
        elif kind == "tool_use":
            turn.goes_on()
            call = _call(block, here)
            seen.names[call.id] = call.name
            turn.calls.append(call)
        elif kind in _HOSTED_CALLS:
            turn.goes_on()
            call = _call(block, here)
            turn.hosted[call.id] = call.name
            turn.calls.append(call)
        elif kind == "compaction":
            if text := string_of(block, "content", *here, required=False):
                seen.summary, turn = text, _Answer()
                seen.kept = unseal_turns(block.get("encrypted_content"), seen.limits)
        elif kind in _CHANGES:
            _change(block, here, seen, added, removed)
        elif kind in CARRIED:
            seen.carried[kind] = None
        elif _is_hosted_result(kind):
            _hosted_result(block, here, seen, turn)
        else:
            raise Invalid("this type of block is not allowed in an assistant message.", *here, "type")
    if seen.summary is None or not turn.is_empty:
        turn.end()
    if added or removed:
        turn.out.append(Message("system", None, added_tools=tuple(added), removed_tools=tuple(removed)))
    return turn.out


def _is_hosted_result(kind: str) -> bool:
    return kind.endswith("_tool_result") and kind != "tool_result"


def _hosted_result(block: dict[str, Any], path: Path, seen: TurnReader, turn: _Answer) -> None:
    """The result of a tool that was run during the answer; for a tool search, tools that can be called from there
    on."""
    id = string_of(block, "tool_use_id", *path)
    name = turn.hosted.pop(id, None)
    if name is None:
        seen.carried[block["type"]] = None  # its call was not shown either
        return
    content = block.get("content")
    if type(content) is dict and content.get("type") == "tool_search_tool_search_result":
        names = _references(content, path)
        found = tuple(seen.tool(name, *path, "content", "tool_references", i) for i, name in enumerate(names))
        message = found_message(name, id, found)
    else:
        message = Message("tool", _plain(content), name=name, tool_call_id=id)
    turn.results.append(message)


def _references(content: dict[str, Any], path: Path) -> list[str]:
    here = (*path, "content", "tool_references")
    references = expect(list, content.get("tool_references"), *here, what="an array of tool references")
    for i, reference in enumerate(references):
        expect(dict, reference, *here, i)
    return [string_of(reference, "tool_name", *here, i) for i, reference in enumerate(references)]


def _plain(content: Any) -> str:
    """The result of a hosted tool as text, without parts that only its service can read."""
    if type(content) is str:
        return content
    if type(content) is list and all(type(block) is dict and block.get("type") == "text" for block in content):
        return "\n".join(str(block.get("text", "")) for block in content)
    return orjson.dumps(_readable(content)).decode()


def _readable(value: Any) -> Any:
    if type(value) is dict:
        return {key: _readable(inner) for key, inner in value.items() if not key.startswith("encrypted_")}
    return [_readable(inner) for inner in value] if type(value) is list else value


def _user(blocks: list[dict[str, Any]], path: Path, seen: TurnReader) -> list[Message]:
    results: list[Message] = []
    parts: list[Part] = []
    added: list[Tool] = []
    removed: list[str] = []
    for i, block in enumerate(blocks):
        kind, here = block["type"], (*path, i)
        if kind == "tool_result":
            result, images = _result(block, here, seen)
            results.append(result)
            parts += images
        elif kind in _CHANGES:
            _change(block, here, seen, added, removed)
        elif kind == "compaction":
            if text := string_of(block, "content", *here, required=False):
                seen.summary, seen.kept = text, unseal_turns(block.get("encrypted_content"), seen.limits)
                results.clear()
                parts.clear()
        elif kind in CARRIED or kind in _HOSTED_CALLS or _is_hosted_result(kind):
            seen.carried[kind] = None
        else:
            parts += shown(block, here, seen.most)
    if parts or not (results or added or removed or seen.summary):
        results.append(Message("user", _joined(parts) or ""))
    if added or removed:
        results.append(Message("system", None, added_tools=tuple(added), removed_tools=tuple(removed)))
    return results


def _result(block: dict[str, Any], path: Path, seen: TurnReader) -> tuple[Message, list[Part]]:
    id, names = string_of(block, "tool_use_id", *path), seen.names
    if id not in names:
        text = f"no earlier 'tool_use' block has the id '{id[:80]}'."
        raise Invalid(text, *path, "tool_use_id", about=("unexpected tool_result",))
    content = block.get("content")
    parts: list[Part] = []
    found: list[Tool] = []
    if type(content) is str:
        parts.append(TextPart(content))
    elif content is not None:
        here = (*path, "content")
        for i, inner in enumerate(blocks_of(content, here, seen.most)):
            if inner["type"] == "tool_reference":
                found.append(seen.tool(string_of(inner, "tool_name", *here, i), *here, i))
            else:
                parts += shown(inner, (*here, i), seen.most)
    texts = [part for part in parts if isinstance(part, TextPart)]
    if block.get("is_error") is True and not (texts and texts[0].text.lower().startswith("error")):
        first = texts[0].text if texts else "the tool failed"
        texts[:1] = [TextPart(f"Error: {first}")]
    others: list[Part] = [replace(part, result_of=id) for part in parts if not isinstance(part, TextPart)]
    if found and not texts:
        return found_message(names[id], id, tuple(found)), others
    return Message("tool", _joined(texts) or "", name=names[id], tool_call_id=id, added_tools=tuple(found)), others


def _call(block: dict[str, Any], path: Path) -> ToolCall:
    arguments = block.get("input")
    if arguments is None:
        arguments = {}
    expect(dict, arguments, *path, "input")
    id, name = string_of(block, "id", *path), string_of(block, "name", *path)
    name = prompt_name_of(name, string_of(block, "toolset_name", *path, required=False))
    return ToolCall(id, name, orjson.dumps(arguments).decode())


def _thinking(block: dict[str, Any], path: Path) -> str:
    text: str = string_of(block, "thinking", *path)
    signature = block.get("signature")
    if not text and type(signature) is str and signature.startswith(SEALED):
        try:
            return base64.b64decode(signature[len(SEALED) :], validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            text = "this signature was not issued by this server."
            raise Invalid(text, *path, "signature", about=("thinking signature",)) from None
    return text


def sealed(thinking: str) -> str:
    """A signature from which hidden thinking can be restored."""
    return SEALED + base64.b64encode(thinking.encode()).decode()
