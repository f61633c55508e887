"""A stored response: enough to show it, to continue it, and to replay its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest

ENDED = frozenset(("completed", "incomplete", "failed", "cancelled"))
CHAINED = frozenset(("completed", "incomplete"))

GONE = "The server stopped while it generated this response."

Cuts = list[list[list[int]]]
"""For each output item its deltas: how many characters, and how many log-probabilities."""


class Stored(NamedTuple):
    """One response with its own input. Earlier turns belong to the response before it."""

    response: dict[str, Any]
    input: list[dict[str, Any]]
    cuts: Cuts
    silences: Sequence[int] = ()  # numbers of the keepalives among its events

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items that it contributes to the conversation."""
        return [*self.input, *self.response["output"]]

    def pack(self) -> bytes:
        return orjson.dumps(self._asdict())

    @classmethod
    def unpack(cls, data: bytes) -> Stored:
        value = orjson.loads(data)
        return cls(**value)

    def interrupted(self) -> Stored:
        """Its state after the process that generated it is gone."""
        error = {"code": "server_error", "message": GONE}
        return self._replace(response={**self.response, "status": "failed", "error": error})

    def check_continued(self) -> None:
        """Raises if no response can follow this one."""
        status = self.response["status"]
        if status not in CHAINED:
            raise InvalidRequest(
                f"Previous response with id '{self.response['id']}' is {status}: it cannot be continued.",
                param="previous_response_id",
                code="previous_response_not_completed" if status not in ENDED else "previous_response_failed",
            )


def not_found(id: str) -> InvalidRequest:
    """OpenAI's error for continuing a response that does not exist."""
    return InvalidRequest(
        f"Previous response with id '{id[:80]}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def deleted_body(id: str) -> bytes:
    return orjson.dumps({"id": id, "object": "response", "deleted": True})


def page_body(items: list[dict[str, Any]], *, after: str | None, limit: int, descending: bool) -> bytes:
    """One page of items. An unknown `after` is an error: otherwise the client would read the first page forever."""
    if descending:
        items = items[::-1]
    start = 0
    if after is not None:
        start = 1 + next((at for at, item in enumerate(items) if item["id"] == after), -2)
        if start < 0:
            raise InvalidRequest(f"No item with id '{after[:80]}'.", param="after")
    return orjson.dumps(page_of(items[start : start + limit], has_more=start + limit < len(items)))


def page_of(items: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
