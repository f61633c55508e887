"""An API key as the server knows it: name, digest, scopes and quotas. Never the key itself."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

SCOPES = ("infer", "embed", "metrics", "tools", "admin")


@dataclass(frozen=True, slots=True)
class Key:
    """`scopes` are the groups of routes that it may use. A limit of None does not apply."""

    name: str
    digest: bytes
    scopes: frozenset[str] = frozenset(SCOPES)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and answer together
    concurrency: int | None = None  # concurrent requests
    tokens_per_month: int | None = None  # prompt and answer together, in a calendar month (UTC)
    models: frozenset[str] | None = None  # names of those that it may use; None: all
    expires: float | None = None  # seconds since the epoch
    old_digest: bytes | None = None  # of the secret before the last rotation
    old_expires: float | None = None  # when that one ends

    def matches(self, digest: bytes, now: float) -> bool:
        """Whether it is the digest of the key's secret, or of the one before the last rotation while that is valid.
        Takes the same time for every digest."""
        is_new = hmac.compare_digest(digest, self.digest)
        is_old = self.old_digest is not None and hmac.compare_digest(digest, self.old_digest)
        return is_new or (is_old and self.old_expires is not None and now < self.old_expires)

    @classmethod
    def unnamed(cls, key: str) -> Key:
        """An unnamed key is called by its digest. Its position in a list would pass to another key when an earlier one
        is removed, together with the data stored under that name."""
        return cls.of("key-" + sha256(key.encode()).hexdigest()[:12], key)

    @classmethod
    def of(cls, name: str, key: str, scopes: Iterable[str] = SCOPES) -> Key:
        return cls(name, sha256(key.encode()).digest(), frozenset(scopes))
