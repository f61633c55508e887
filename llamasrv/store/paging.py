"""Pages of records: only those that a page shows are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from llamasrv.errors import InvalidRequest
from llamasrv.store.shelf import AT_ONCE

T = TypeVar("T")


class Page(NamedTuple, Generic[T]):
    items: list[T]
    has_more: bool


class UnknownPlace(InvalidRequest):
    """A page was to begin or end at an id that is not listed. Otherwise its client would read the first page for
    ever."""

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
    """The `limit` items behind `after`, or those right before `before`; `has_more` is about the same direction.
    `read` returns the items of some ids, in their order, without those that are gone or not wanted. Raises
    UnknownPlace."""
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
        at, step = at + len(some), step * 2  # few of them are wanted
    items, has_more = found[:limit], len(found) > limit
    return Page(items if before is None else items[::-1], has_more)


def _place(ids: Sequence[str], id: str, param: str) -> int:
    try:
        return ids.index(id)
    except ValueError:
        raise UnknownPlace(id, param) from None
