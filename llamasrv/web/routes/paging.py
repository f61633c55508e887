"""Paginated lists, as a query asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flask import request

from llamasrv.concurrency import off_hub
from llamasrv.errors import InvalidRequest
from llamasrv.store.paging import Page, UnknownPlace
from llamasrv.store.shelf import Shelf
from llamasrv.web.stored.responses import asking

T = TypeVar("T")

_LONG = 100  # items from which a page is built off the hub


def page_of_request(*, default: int = 20, most: int = 100) -> tuple[str | None, int, bool]:
    """The requested page of a list: the id before it, the most items, and whether the latest come first."""
    limit = count_of("limit", default, low=1, high=most)
    order = request.args.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid 'order': expected 'asc' or 'desc'.", param="order")
    return request.args.get("after") or None, limit, order == "desc"


def count_of(name: str, default: int, *, low: int, high: int = 2**53) -> int:
    given = request.args.get(name)
    if not given:
        return default
    digits = given.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16) or not low <= int(given) <= high:
        bounds = f"from {low} to {high}" if high < 2**53 else f"of at least {low}"
        raise InvalidRequest(f"Invalid '{name}': expected an integer {bounds}.", param=name)
    return int(given)


def anthropic_page_of_request() -> tuple[str | None, str | None, int]:
    """The ids after and before the requested page, and the most items."""
    query = request.args
    return query.get("after_id") or None, query.get("before_id") or None, count_of("limit", 20, low=1, high=1000)


def page_on(
    shelf: Shelf,
    find: Callable[..., Page[T]],
    render: Callable[[Page[T]], bytes],
    names: tuple[str, str] = ("after", "before"),
    **asked: Any,
) -> bytes:
    """A page of a shelf, which may hold thousands of items. `names`: the query's names for the ids that bound it."""
    try:
        page = asking(shelf, lambda: find(**asked))
    except UnknownPlace as error:
        raise error.but(param=names[error.param == "before"]) from None
    return off_hub(render, page) if len(page.items) > _LONG else render(page)
