"""Reads Anthropic's turns and content blocks into neutral messages.

A user turn may hold tool results beside text: each result becomes a message of its own, in front of the text, and
images inside one move to the text behind it. Blocks of tools that Anthropic's servers run are skipped; they mean
nothing to another model. Everything else is shown to the model or refused by name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from llamasrv.domain.request import Message, Part, TextPart, ToolCall
from llamasrv.protocols.anthropic.threads import Continued
from llamasrv.protocols.common.documents import document_at, document_file, document_of_data
from llamasrv.protocols.common.media import from_base64, from_url
from llamasrv.protocols.common.schema import Invalid, Refusal, WireField, check_length, check_messages, wrong_type

Path = tuple[Any, ...]

_ROLES = {
    "user": "user", "assistant": "assistant", "system": "system", "developer": "system",
    "ctx": "system", "msg": "user",  # as Claude Code writes them in the middle of a conversation
}  # fmt: skip
_PLAIN = frozenset(("user", "assistant"))

BILLING = "x-anthropic-billing-header:"
"""Starts a line of bookkeeping in front of the system prompt. It differs in each request: a model has no use for it,
and with it no prefix would ever be found again."""

SEALED = "thinking:"
"""Starts the signature of a thinking block whose text was left out; the rest is that text, so that the next turn brings
it back."""

_SKIPPED = frozenset(("redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_result"))


class AnthropicMessages(WireField):
    """A non-empty list of turns."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Message, ...]:
        limits = self.limits
        out: list[Message] = []
        names: dict[str, str] = {}  # of the calls so far, by id
        if type(value) is Continued:
            earlier, value = value
            if type(value) is list and len(earlier) + len(value) > limits.messages:
                raise Invalid(f"the thread is too long: expected at most {limits.messages} messages in total.")
            _read(earlier, limits.parts, names, out)
        check_messages(value, limits)
        _read(value, limits.parts, names, out)
        return tuple(out)


class System(WireField):
    """A text, or text blocks."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | tuple[Part, ...] | None:
        return _system(value, (), self.limits.parts)


def _read(messages: list[Any], most: int, names: dict[str, str], out: list[Message]) -> None:
    for at, wire in enumerate(messages):
        if type(wire) is not dict:
            raise wrong_type("an object", wire, at)
        role, content = wire.get("role"), wire.get("content")
        if type(content) is str and type(role) is str and role in _PLAIN:  # nearly all of them
            out.append(Message(role, content))
            continue
        out += _turn(_role(role, at), content, (at, "content"), most, names)


def _role(name: Any, at: int) -> str:
    if type(name) is not str:
        if name is None:
            raise Invalid("missing. Every message needs a role.", at, "role", code="missing_required_parameter")
        raise wrong_type("a string", name, at, "role")
    role = _ROLES.get(name)
    if role is None:
        raise Invalid(f"unknown role. Expected 'user', 'assistant' or 'system', but got '{name[:40]}'.", at, "role")
    return role


def _turn(role: str, content: Any, path: Path, most: int, names: dict[str, str]) -> list[Message]:
    if role == "system":
        text = _system(content, path, most)
        return [Message("system", text)] if text else []
    if type(content) is str:
        return [Message(role, content)]
    blocks = _blocks(content, path, most)
    return [_assistant(blocks, path, names)] if role == "assistant" else _user(blocks, path, most, names)


def _blocks(content: Any, path: Path, most: int) -> list[dict[str, Any]]:
    if content is None:
        raise Invalid("missing. Expected a string or an array of content blocks.", *path, code="invalid_type")
    if type(content) is not list:
        raise wrong_type("a string or an array of content blocks", content, *path)
    check_length(content, most, "blocks", *path)
    for i, block in enumerate(content):
        if type(block) is not dict:
            raise wrong_type("an object", block, *path, i)
        if type(block.get("type")) is not str:
            raise wrong_type("a string", block.get("type"), *path, i, "type")
    return content


def _system(content: Any, path: Path, most: int) -> str | tuple[Part, ...] | None:
    if type(content) is str:
        if content.startswith(BILLING):
            content = content.partition("\n")[2].lstrip("\n")
        return content or None
    parts = []
    for i, block in enumerate(_blocks(content, path, most)):
        if block["type"] != "text":
            raise Invalid("expected 'text'.", *path, i, "type")
        parts += [part for part in _text(block, (*path, i)) if not part.text.startswith(BILLING)]
    return _joined(parts)


def _joined(parts: list[Any]) -> str | tuple[Part, ...] | None:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return tuple(parts) or None


def _assistant(blocks: list[dict[str, Any]], path: Path, names: dict[str, str]) -> Message:
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(blocks):
        kind, here = block["type"], (*path, i)
        if kind == "text":
            parts += _text(block, here)
        elif kind == "thinking":
            thoughts.append(_thinking(block, here))
        elif kind == "tool_use":
            call = _call(block, here)
            names[call.id] = call.name
            calls.append(call)
        elif kind == "compaction":
            parts += [TextPart(text)] if (text := _string(block, "content", here, required=False)) else []
        elif not _skipped(kind):
            raise Invalid("this type of block is not allowed in an assistant message.", *here, "type")
    return Message("assistant", _joined(parts), reasoning="".join(thoughts) or None, tool_calls=tuple(calls))


def _user(blocks: list[dict[str, Any]], path: Path, most: int, names: dict[str, str]) -> list[Message]:
    results: list[Message] = []
    parts: list[Part] = []
    for i, block in enumerate(blocks):
        kind, here = block["type"], (*path, i)
        if kind == "tool_result":
            result, images = _result(block, here, most, names)
            results.append(result)
            parts += images
        elif not _skipped(kind):
            parts += _shown(block, here, most)
    if parts or not results:
        results.append(Message("user", _joined(parts) or ""))
    return results


def _skipped(kind: str) -> bool:
    return kind in _SKIPPED or (kind.endswith("_tool_result") and kind != "tool_result")


def _result(block: dict[str, Any], path: Path, most: int, names: dict[str, str]) -> tuple[Message, list[Part]]:
    id = _string(block, "tool_use_id", path)
    if id not in names:
        text = f"no earlier 'tool_use' block has the id '{id[:80]}'."
        raise Invalid(text, *path, "tool_use_id", about=("unexpected tool_result",))
    content = block.get("content")
    parts: list[Part] = []
    if type(content) is str:
        parts.append(TextPart(content))
    elif content is not None:
        here = (*path, "content")
        for i, inner in enumerate(_blocks(content, here, most)):
            parts += _shown(inner, (*here, i), most)
    texts = [part for part in parts if isinstance(part, TextPart)]
    if block.get("is_error") is True and not (texts and texts[0].text.lower().startswith("error")):
        first = texts[0].text if texts else "the tool failed"
        texts[:1] = [TextPart(f"Error: {first}")]
    others: list[Part] = [replace(part, result_of=id) for part in parts if not isinstance(part, TextPart)]
    return Message("tool", _joined(texts) or "", name=names[id], tool_call_id=id), others


def _call(block: dict[str, Any], path: Path) -> ToolCall:
    arguments = block.get("input")
    if arguments is None:
        arguments = {}
    if type(arguments) is not dict:
        raise wrong_type("an object", arguments, *path, "input")
    return ToolCall(_string(block, "id", path), _string(block, "name", path), orjson.dumps(arguments).decode())


def _thinking(block: dict[str, Any], path: Path) -> str:
    text = _string(block, "thinking", path)
    signature = block.get("signature")
    if not text and type(signature) is str and signature.startswith(SEALED):
        try:
            return base64.b64decode(signature[len(SEALED) :], validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            text = "this signature was not issued by this server."
            raise Invalid(text, *path, "signature", about=("thinking signature",)) from None
    return text


def sealed(thinking: str) -> str:
    """A signature from which thinking that is not shown can be restored."""
    return SEALED + base64.b64encode(thinking.encode()).decode()


# ---------------------------------------------------------------- what a model is shown


def _shown(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    read = _READERS.get(block["type"])
    if read is None:
        raise Invalid(f"unknown block type '{block['type'][:40]}'.", *path, "type")
    return read(block, path, most)


def _text(block: dict[str, Any], path: Path, most: int = 0) -> list[TextPart]:
    text = _string(block, "text", path)
    return [TextPart(text)] if text else []


def _image(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    try:
        return _image_of(block, path)
    except (Invalid, Refusal) as error:
        error.complaint.about = ("image",)
        raise


def _image_of(block: dict[str, Any], path: Path) -> list[Part]:
    source, here = _source(block, path)
    kind = source.get("type")
    if kind == "base64":
        return [from_base64(source.get("data"), "image", "messages", *here, "data")]
    if kind == "url":
        return [from_url(source.get("url"), "image", "messages", *here, "url")]
    raise Refusal("only images in base64 or by URL are supported.", *here, "type")


def _document(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    _refuse_citations(block, path)
    source, here = _source(block, path)
    kind = source.get("type")
    parts: list[Part]
    if kind == "text":
        parts = [TextPart(_string(source, "data", here))]
    elif kind == "content" and type(source.get("content")) is str:
        parts = [TextPart(source["content"])]
    elif kind == "content":
        inside = (*here, "content")
        blocks = _blocks(source.get("content"), inside, most)
        parts = [part for i, inner in enumerate(blocks) for part in _inner(inner, (*inside, i), most)]
    elif kind == "base64":
        parts = [document_of_data(source.get("data"), "", "messages", *here, "data")]
    elif kind == "url":
        parts = [document_at(source.get("url"), "", "messages", *here, "url")]
    elif kind == "file":
        parts = [document_file(source.get("file_id"), "messages", *here, "file_id")]
    else:
        raise Invalid("expected 'base64', 'text', 'content', 'url' or 'file'.", *here, "type")
    heads = [_string(block, key, path, required=False) for key in ("title", "context")]
    head = "\n".join(text for text in heads if text)
    return [TextPart(head + "\n\n"), *parts] if head else parts


def _refuse_citations(block: dict[str, Any], path: Path) -> None:
    citations = block.get("citations")
    if type(citations) is dict and citations.get("enabled"):
        raise Refusal(
            "'citations' is not supported by this server. Leave it out, or set 'enabled' to false.", *path, "citations"
        )


def _inner(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    """A block inside a document or a search result."""
    if block["type"] == "image":
        return _image(block, path, most)
    if block["type"] != "text":
        raise Invalid("expected 'text' or 'image'.", *path, "type")
    return list(_text(block, path))


def _search_result(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    _refuse_citations(block, path)
    here = (*path, "content")
    blocks = _blocks(block.get("content"), here, most)
    parts = [part for i, inner in enumerate(blocks) for part in _inner(inner, (*here, i), most)]
    return [TextPart(f"{_string(block, 'title', path)}\n{_string(block, 'source', path)}\n\n"), *parts]


def _tool_reference(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    return [TextPart(_string(block, "tool_name", path))]


def _container_upload(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    raise Refusal("container files are not available on this server.", *path, "type")


_READERS: dict[str, Callable[[dict[str, Any], Path, int], list[Any]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "container_upload": _container_upload,
}


def _source(block: dict[str, Any], path: Path) -> tuple[dict[str, Any], Path]:
    source = block.get("source")
    if type(source) is not dict:
        raise wrong_type("an object", source, *path, "source")
    return source, (*path, "source")


def _string(wire: dict[str, Any], key: str, path: Path, *, required: bool = True) -> Any:
    value = wire.get(key)
    if type(value) is not str and (required or value is not None):
        raise wrong_type("a string", value, *path, key)
    return value
