"""Reads Anthropic's content blocks into what the model is shown.

Every type is shown or refused by name. Knows nothing of turns (`turns.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from llamasrv.domain.request import Part, TextPart
from llamasrv.protocols.common.documents import document_at, document_file, document_of_data
from llamasrv.protocols.common.media import from_base64, from_url
from llamasrv.protocols.common.schema import Invalid, Refusal, check_length, expect, string_of, wrong_type

Path = tuple[Any, ...]


def blocks_of(content: Any, path: Path, most: int) -> list[dict[str, Any]]:
    if content is None:
        raise Invalid("missing. Expected a string or an array of content blocks.", *path, code="invalid_type")
    blocks: list[dict[str, Any]] = expect(list, content, *path, what="a string or an array of content blocks")
    check_length(blocks, most, "blocks", *path)
    for i, block in enumerate(blocks):
        expect(dict, block, *path, i)
        if type(block.get("type")) is not str:
            raise wrong_type("a string", block.get("type"), *path, i, "type")
    return blocks


def shown(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    read = _READERS.get(block["type"])
    if read is None:
        raise Invalid(f"unknown block type '{block['type'][:40]}'.", *path, "type")
    return read(block, path, most)


def text_parts(block: dict[str, Any], path: Path, most: int = 0) -> list[TextPart]:
    text = string_of(block, "text", *path)
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
    if kind == "file":
        return [document_file(source.get("file_id"), "messages", *here, "file_id", is_image=True)]
    raise Refusal("only images in base64, by URL or by file id are supported.", *here, "type")


def _document(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    _refuse_citations(block, path)
    source, here = _source(block, path)
    kind = source.get("type")
    parts: list[Part]
    if kind == "text":
        parts = [TextPart(string_of(source, "data", *here))]
    elif kind == "content" and type(source.get("content")) is str:
        parts = [TextPart(source["content"])]
    elif kind == "content":
        inside = (*here, "content")
        blocks = blocks_of(source.get("content"), inside, most)
        parts = [part for i, inner in enumerate(blocks) for part in _inner(inner, (*inside, i), most)]
    elif kind == "base64":
        parts = [document_of_data(source.get("data"), "", "messages", *here, "data")]
    elif kind == "url":
        parts = [document_at(source.get("url"), "", "messages", *here, "url")]
    elif kind == "file":
        parts = [document_file(source.get("file_id"), "messages", *here, "file_id")]
    else:
        raise Invalid("expected 'base64', 'text', 'content', 'url' or 'file'.", *here, "type")
    heads = [string_of(block, key, *path, required=False) for key in ("title", "context")]
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
    return list(text_parts(block, path))


def _search_result(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    _refuse_citations(block, path)
    here = (*path, "content")
    blocks = blocks_of(block.get("content"), here, most)
    parts = [part for i, inner in enumerate(blocks) for part in _inner(inner, (*here, i), most)]
    return [TextPart(f"{string_of(block, 'title', *path)}\n{string_of(block, 'source', *path)}\n\n"), *parts]


def _tool_reference(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    return [TextPart(string_of(block, "tool_name", *path))]


def _browser_state(block: dict[str, Any], path: Path, most: int) -> list[Part]:
    """The open tabs and the changes, one per line."""
    tabs: Any = block.get("tabs")
    changes: Any = block.get("state_changes") or []
    for name, entries in (("tabs", tabs), ("state_changes", changes)):
        if type(entries) is not list or not all(type(entry) is dict for entry in entries):
            raise wrong_type("an array of objects", entries, *path, name)
    lines = ["Open tabs:" if tabs else "There are no open tabs."]
    for tab in tabs:
        active = " (active)" if tab.get("active") else ""
        lines.append(f"- {tab.get('tab_id', '')}{active}: {tab.get('title', '')} {tab.get('url', '')}".rstrip())
    lines += [orjson.dumps(change).decode() for change in changes]
    return [TextPart("\n".join(lines))]


_READERS: dict[str, Callable[[dict[str, Any], Path, int], list[Any]]] = {
    "text": text_parts,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "browser_state": _browser_state,
}


def _source(block: dict[str, Any], path: Path) -> tuple[dict[str, Any], Path]:
    return expect(dict, block.get("source"), *path, "source"), (*path, "source")
