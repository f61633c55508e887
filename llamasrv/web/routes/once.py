"""Routes that make something once for each `Idempotency-Key`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from flask import Response, request

from llamasrv.errors import NotFound
from llamasrv.web.http.body import parsed
from llamasrv.web.stored.idempotency import Idempotency
from llamasrv.web.views import current

Tell = Callable[[str], None]
"""Is called with the id of what is made, as soon as it has one."""


def answered_once(
    idempotency: Idempotency, body: Mapping[str, Any], make: Callable[[Tell], Response], show: Callable[[str], Response]
) -> Response:
    """What `make` answers, or, where a request with this key and body has made something that is still there, what
    `show` says of it now."""
    key = request.headers.get("Idempotency-Key")
    if key is None or not idempotency.keeps:
        return make(lambda id: None)
    owner = current().owner
    with idempotency.holding(owner, request.path, key) as held:
        digest = parsed(request.environ, _digest, body)
        made = held.made(digest)
        if made is not None:
            try:
                return show(made)
            except NotFound:  # deleted, or never completed
                pass
        return make(lambda id: held.keep(digest, id))


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
