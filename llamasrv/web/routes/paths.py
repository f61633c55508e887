"""Paths by several names: routes that are registered under two, and base URLs that are badly assembled.

A base URL that ends in a slash, or that has a `/v1` or `/api` too many or too few, is what most first requests fail at.
Such a path is read as the one that was meant, before anything looks at it. Only paths of the API's own work are: what
operators close off in front of the server, like `/metrics`, has one spelling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flask import Blueprint, Response

_ODD = re.compile(r"/messages|.*//|.+/\Z|/(?:v1|api)/(?:v1|api)/")
"""Paths that may need rewriting. All others are taken as they are."""

_SLASHES = re.compile(r"/{2,}")
_PREFIXES = re.compile(r"(?:/(?:v1|api))+(?=/(?:v1|api)/)")
_BARE_MESSAGES = re.compile(r"/messages(?=\Z|/count_tokens\Z)")
_WORK = re.compile(
    r"/v1/(?!loads\Z|(?:un)?load_lora_adapter\Z).+|/v1beta/.+|/api/(?:chat|generate|embed|embeddings|tags|ps|show|version)"
    r"|/chat/completions(?:/(?:input_tokens|control))?|/completions?|/embeddings?|/infill|/decisions|/systemone|/rerank|/reranking|/responses(?:/.+)?|/conversations(?:/.+)?"
)


_GOOGLE = re.compile(r"/v1/models/.+:(?:(?:g|streamG)enerateContent|countTokens)")
"""What only Google's clients ask for."""


def meant(path: str, head: Mapping[str, Any] = {}) -> str:
    """`/v1/messages` for `/v1/v1//messages/` and `/messages`; `/api/chat` for `/v1/api/chat`; other paths unchanged.
    Where one path has two meanings, `head` (WSGI's names) decides, by who is asking."""
    if path in ("/v1/decisions", "/v1alpha/decisions") and ("HTTP_X_GOOG_API_CLIENT" in head or path[3] == "a"):
        return "/v1beta/decisions"
    if path.startswith(("/v1/cachedContents", "/v1/interactions")):
        return "/v1beta" + path[3:]
    if path.startswith("/v1/models") and ("HTTP_X_GOOG_API_CLIENT" in head or _GOOGLE.fullmatch(path)):
        return "/v1beta" + path[3:]  # where Google's `/v1` is OpenAI's
    if not _ODD.match(path):
        return path
    plain = _SLASHES.sub("/", path).rstrip("/")
    plain = _PREFIXES.sub("", plain, count=1) if _PREFIXES.match(plain) else plain
    plain = _BARE_MESSAGES.sub("/v1/messages", plain, count=1) if _BARE_MESSAGES.match(plain) else plain
    return plain if _WORK.fullmatch(plain) else path


def add_with_alias(
    routes: Blueprint, prefix: str, views: Iterable[tuple[str, str, Callable[..., Response]]], **options: Any
) -> None:
    """Register every (method, path, view) under `/v1` plus `prefix`, and under `prefix` alone, as OpenAI's newer APIs
    have them. `options` are werkzeug's."""
    for name, start in (("v1", "/v1" + prefix), ("bare", prefix)):
        for method, path, view in views:
            endpoint = "_".join((view.__name__, name, *map(str, options.values())))
            routes.add_url_rule(start + path, endpoint, view, methods=[method], **options)
