"""Routes with two addresses, with and without `/v1`, as OpenAI's newer APIs have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flask import Blueprint, Response


def add_twice(
    routes: Blueprint, prefix: str, views: Iterable[tuple[str, str, Callable[..., Response]]], **options: Any
) -> None:
    """Register every (method, path, view) under `/v1` plus `prefix`, and under `prefix` alone. `options` are
    werkzeug's."""
    for name, start in (("v1", "/v1" + prefix), ("bare", prefix)):
        for method, path, view in views:
            endpoint = "_".join((view.__name__, name, *map(str, options.values())))
            routes.add_url_rule(start + path, endpoint, view, methods=[method], **options)
