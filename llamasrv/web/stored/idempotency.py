"""`Idempotency-Key`: a request that is sent twice creates one object.

For a day the store maps an owner's key to the id of the object and a digest of the request. While the request is being
answered its key is held: in this process, and by a claim if several servers share the store.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.store import DAY, ResponseStore, StoredEntry, StoreError
from llamasrv.store.shelf import Claims
from llamasrv.web.stored.responses import asking

LONGEST = 255  # characters of a key
RENEW = 3.0  # seconds between two renewals of a claim


class KeyInUse(LlamasrvError):
    """Another request with this key is being answered."""

    status = 409
    code = "idempotency_key_in_use"
    retry_after = 1.0


class KeyReused(LlamasrvError):
    """This key was used for a different request."""

    status = 422
    code = "idempotency_key_reused"


class Made(NamedTuple):
    at: float  # seconds since the epoch
    digest: str  # of the request
    id: str


class Idempotency:
    """`store` None: nothing is stored, so nothing is stored twice. `max_age`: seconds that a key is remembered."""

    def __init__(self, store: ResponseStore | None, max_age: float = DAY) -> None:
        self._store = store
        self.max_age = max_age
        shelf = None if store is None else store.shelf("once")
        self._claims = None if shelf is None else shelf.claims()
        self._held: set[str] = set()
        self._guard = threading.Lock()

    @property
    def keeps(self) -> bool:
        return self._store is not None

    @contextmanager
    def holding(self, owner: str, path: str, key: str) -> Iterator[HeldKey]:
        """Raises KeyInUse, InvalidRequest."""
        assert self._store is not None
        if not 0 < len(key) <= LONGEST:
            raise InvalidRequest(f"Invalid 'Idempotency-Key': it may have 1 to {LONGEST} characters.")
        id = "once_" + hashlib.sha256(json.dumps([owner, path, key]).encode()).hexdigest()[:48]
        with self._guard:
            if id in self._held:
                raise _in_use()
            self._held.add(id)
        claim = None if self._claims is None else _HeldClaim(self._claims, id)
        try:
            if claim is not None and not claim.take():
                claim = None
                raise _in_use()
            yield HeldKey(self._store, owner, id, self.max_age)
        finally:
            if claim is not None:
                claim.release()
            self._held.discard(id)


class _HeldClaim:
    """Keeps other servers away from a key: renewed until it is released, which must come last."""

    def __init__(self, claims: Claims, id: str) -> None:
        self._claims, self._id = claims, id
        self._over = threading.Event()
        self._asking = threading.Lock()

    def take(self) -> bool:
        """Whether no other server has it. Raises StoreError."""
        taken = self._claims.take(self._id)
        if taken:
            threading.Thread(target=self._keep_on, daemon=True, name="held-key").start()
        return taken

    def release(self) -> None:
        self._over.set()
        with self._asking, suppress(StoreError):  # then it expires
            self._claims.release(self._id)

    def _keep_on(self) -> None:
        while not self._over.wait(RENEW):
            with self._asking, suppress(StoreError):  # it may respond again before the claim expires
                if not self._over.is_set():
                    self._claims.take(self._id)


class HeldKey:
    def __init__(self, store: ResponseStore, owner: str, id: str, max_age: float) -> None:
        self._store, self._owner, self._id, self._max_age = store, owner, id, max_age

    def made(self, digest: str) -> str | None:
        """The id of what this key created within `max_age`. Raises KeyReused if that was for a different request."""
        entry = asking(self._store, self._store.get, self._owner, self._id)
        found = None if entry is None else Made(*json.loads(entry.body))
        if found is None or found.at < time.time() - self._max_age:
            return None
        if found.digest != digest:
            raise KeyReused("Invalid 'Idempotency-Key': this key was used for a different request.")
        return found.id

    def keep(self, digest: str, made: str) -> None:
        body = json.dumps(Made(time.time(), digest, made)).encode()
        asking(self._store, self._store.put, self._owner, StoredEntry(self._id, body))


def _in_use() -> KeyInUse:
    return KeyInUse("Invalid 'Idempotency-Key': a request with this key is being answered.")
