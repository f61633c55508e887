"""Paginated lists as Anthropic's clients read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from llamasrv.errors import InvalidRequest


def page_body(
    items: list[Any], show: Callable[[Any], Any], *, after: str | None, before: str | None, limit: int
) -> bytes:
    """One page of what is stored, latest first. Raises InvalidRequest for an unknown id."""
    start, end = 0, len(items)
    ids = [item.id for item in items]
    for name, id in (("after_id", after), ("before_id", before)):
        if id is not None and id not in ids:
            raise InvalidRequest(f"{name}: nothing with id '{id[:80]}'", param=name)
    if after is not None:
        start = ids.index(after) + 1
    if before is not None:
        end = ids.index(before)
        start = max(start, end - limit)
    page = items[start:end][:limit]
    return orjson.dumps(
        {
            "data": [show(item) for item in page],
            "has_more": start > 0 if before is not None else start + len(page) < end,
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
        }
    )
