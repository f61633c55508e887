"""GET /v1/models and GET /v1/models/<id>: the served models and their names.

OpenAI's and Anthropic's clients ask the same routes, so an entry has the fields of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import orjson

# llama-server leaves these empty, too: facts about a model are in `meta`.
_DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "",
    "families": [""],
    "parameter_size": "",
    "quantization_level": "",
}
_MODALITIES = {"vision": "image", "audio": "audio"}


class ModelCard(NamedTuple):
    """One model as a list shows it. Until it is loaded, `meta` has the facts from its file."""

    id: str
    created: int
    aliases: tuple[str, ...] = ()
    context: int | None = None
    meta: Mapping[str, Any] | None = None
    capabilities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    status: Mapping[str, Any] | None = None  # in llama-server's words
    is_found: bool = False  # found in the models folder, and not configured elsewhere
    is_created: bool = False  # created by a client from another model
    measured: Mapping[str, Any] | None = None  # its speed on this machine


def _entry(card: ModelCard) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "llamasrv",
        "aliases": card.aliases,
        "tags": card.tags,
        "type": "model",
        "display_name": card.id,
        "lifecycle": "active",
        "created_at": datetime.fromtimestamp(card.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if card.context is not None:
        entry["max_model_len"] = card.context
        entry["context_length"] = card.context
        entry["max_input_tokens"] = card.context
    meta = dict(card.meta or {})
    if card.capabilities:
        meta["capabilities"] = card.capabilities  # in the entry itself Anthropic's clients expect something else
    if meta:
        entry["meta"] = meta
    if card.measured is not None:
        entry["measured"] = card.measured
    if card.status is not None:
        entry["status"] = card.status
        entry["source"] = "created" if card.is_created else "models_dir" if card.is_found else "preset"
        entry["can_remove"] = card.is_found or card.is_created
    if "speech" in card.capabilities:
        entry["architecture"] = {"input_modalities": ["text"], "output_modalities": ["audio"]}
    if "vision" in card.capabilities or "completion" in card.capabilities:
        seen = ["text", *(kind for able, kind in _MODALITIES.items() if able in card.capabilities)]
        entry["architecture"] = {"input_modalities": seen, "output_modalities": ["text"]}
    return entry


def _brief(card: ModelCard) -> dict[str, Any]:
    """The model in the form that llama-server's clients look for."""
    is_multimodal = any(able in card.capabilities for able in _MODALITIES)
    able = [name for name in card.capabilities if name not in _MODALITIES]
    date = datetime.fromtimestamp(card.created, timezone.utc).strftime("%Y-%m-%d")  # TypeSafe's client wants one
    return {
        "name": card.id,
        "model": card.id,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "release_date": date,
        "tags": card.tags,
        "parameters": "",
        "details": _DETAILS,
        "capabilities": [*able, "multimodal"] if is_multimodal else able,
    }


def model_list(cards: Sequence[ModelCard]) -> bytes:
    ids = [card.id for card in cards]
    brief = {"models": [_brief(card) for card in cards]}
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    # Without it Anthropic's client asks for another page.
    page = {"first_id": first, "last_id": last, "has_more": False}
    return orjson.dumps({"object": "list", "data": [_entry(card) for card in cards], **page, **brief})


def model_body(card: ModelCard) -> bytes:
    return orjson.dumps(_entry(card))
