"""Routes that make something once for each `Idempotency-Key`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
from flask import Response, request

from llamasrv.errors import NotFound
from llamasrv.web.http.body import parsed
from llamasrv.web.stored.idempotency import HeldKey, Idempotency
from llamasrv.web.views import current

Tell = Callable[[str], None]
"""Called with the id of the new object as soon as it has one."""


@contextmanager
def held_key(idempotency: Idempotency) -> Iterator[HeldKey | None]:
    """The request's key, held for the block; None if it has none, or keys are not kept."""
    key = request.headers.get("Idempotency-Key")
    if key is None or not idempotency.keeps:
        yield None
        return
    with idempotency.holding(current().owner, request.path, key) as held:
        yield held


def answered_once(
    idempotency: Idempotency,
    body: Mapping[str, Any] | bytes,
    make: Callable[[Tell], Response],
    show: Callable[[str], Response],
) -> Response:
    """The response of `make`; or, if an earlier request with this key and body created something that still exists,
    what `show` returns for it."""
    with held_key(idempotency) as held:
        if held is None:
            return make(lambda id: None)
        digest = parsed(request.environ, _digest, body)
        made = held.made(digest)
        if made is not None:
            try:
                return show(made)
            except NotFound:  # deleted, or never completed
                pass
        return make(lambda id: held.keep(digest, id))


def _digest(body: Mapping[str, Any] | bytes) -> str:
    text = body if isinstance(body, bytes) else orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()
