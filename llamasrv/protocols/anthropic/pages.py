"""Paginated lists as Anthropic's clients read them."""

from __future__ import annotations

from typing import Any

import orjson


def page_body(items: list[dict[str, Any]], *, has_more: bool) -> bytes:
    """One page of what is stored, latest first."""
    return orjson.dumps(
        {
            "data": items,
            "has_more": has_more,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
        }
    )
