"""models.list and models.get under /v1beta."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest

MOST = 1000  # max models per page
_PAGE = 50  # default page size


class GeminiModel(NamedTuple):
    """One model as a list shows it. `context` is None until it is known."""

    name: str
    context: int | None = None
    answers: bool = True
    thinks: bool = False
    speaks: bool = False


def page_of(size: str | None, token: str | None) -> tuple[int, int]:
    """The index of the first entry and the number of entries, from `pageSize` and `pageToken`. Raises
    InvalidRequest."""
    numbers = []
    for name, text, default in (("pageToken", token, 0), ("pageSize", size, _PAGE)):
        if text and not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidRequest(f"Invalid '{name}': expected a number.", param=name)
        numbers.append(int(text) if text else default)
    start, most = numbers
    return start, min(most or _PAGE, MOST)


def list_body(cards: Sequence[GeminiModel], start: int, most: int) -> bytes:
    body: dict[str, Any] = {"models": [_entry(card) for card in cards[start : start + most]]}
    if start + most < len(cards):
        body["nextPageToken"] = str(start + most)
    return orjson.dumps(body)


def model_body(card: GeminiModel) -> bytes:
    return orjson.dumps(_entry(card))


def _entry(card: GeminiModel) -> dict[str, Any]:
    methods = ["generateContent", "countTokens"] if card.answers else ["generateContent"] if card.speaks else []
    entry: dict[str, Any] = {
        "name": f"models/{card.name}",
        "baseModelId": card.name,
        "version": "1",
        "displayName": card.name,
        "description": "",
        "supportedGenerationMethods": methods,
        "thinking": card.thinks,
    }
    if card.context is not None:
        entry |= {"inputTokenLimit": card.context, "outputTokenLimit": card.context}
    return entry
