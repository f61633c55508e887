"""GET /v1/models and GET /v1/models/<id>: what is served, under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson


class ModelCard(NamedTuple):
    """One model as a list shows it. `context` and `meta` are empty until it has loaded."""

    id: str
    created: int
    aliases: tuple[str, ...] = ()
    context: int | None = None
    meta: Mapping[str, Any] | None = None


def _entry(card: ModelCard) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": card.id, "object": "model", "created": card.created, "owned_by": "llamasrv", "aliases": card.aliases,
    }  # fmt: skip
    if card.context is not None:
        entry["max_model_len"] = card.context
        entry["context_length"] = card.context
    if card.meta is not None:
        entry["meta"] = card.meta
    return entry


def model_list(cards: Sequence[ModelCard]) -> bytes:
    return orjson.dumps({"object": "list", "data": [_entry(card) for card in cards]})


def model_body(card: ModelCard) -> bytes:
    return orjson.dumps(_entry(card))
