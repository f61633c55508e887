"""An API key as the server knows it: name, digest, scopes and quotas. Never the key itself."""

from __future__ import annotations

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

    @classmethod
    def unnamed(cls, key: str) -> Key:
        """An unnamed key is called by its digest. Its position in a list would pass to another key when an earlier one
        is removed, together with the data stored under that name."""
        return cls.of("key-" + sha256(key.encode()).hexdigest()[:12], key)

    @classmethod
    def of(cls, name: str, key: str, scopes: Iterable[str] = SCOPES) -> Key:
        return cls(name, sha256(key.encode()).digest(), frozenset(scopes))
