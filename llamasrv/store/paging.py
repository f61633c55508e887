"""Pagination that reads only the records it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from llamasrv.errors import InvalidRequest
from llamasrv.store.shelf import AT_ONCE

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    items: list[T]
    has_more: bool


class UnknownPlace(InvalidRequest):
    """A cursor names an unknown id. Ignoring it would send a paginating client the first page forever."""

    def __init__(self, id: str, param: str) -> None:
        super().__init__(f"No item with id '{id[:80]}'.", param=param)


def page_of(
    ids: Sequence[str],
    read: Callable[[Sequence[str]], list[T]],
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> Page[T]:
    """The `limit` items after `after`, or the last ones before `before`; `has_more` refers to the same direction.
    `read` returns the items of some ids, in order, skipping deleted and filtered ones. Raises UnknownPlace."""
    start = 0 if after is None else _place(ids, after, "after") + 1
    end = len(ids) if before is None else _place(ids, before, "before")
    wanted = ids[start:end]
    if before is not None:
        wanted = wanted[::-1]
    found: list[T] = []
    at, step = 0, limit + 1
    while at < len(wanted) and len(found) <= limit:
        some = wanted[at : at + min(step, AT_ONCE)]
        found += read(some)
        at, step = at + len(some), step * 2  # the filter rejects most: read larger batches
    items, has_more = found[:limit], len(found) > limit
    return Page(items if before is None else items[::-1], has_more)


def _place(ids: Sequence[str], id: str, param: str) -> int:
    try:
        return ids.index(id)
    except ValueError:
        raise UnknownPlace(id, param) from None
