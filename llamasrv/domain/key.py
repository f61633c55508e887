"""An API key as the server knows it: name, digest, scopes and quotas. Never the key itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

SCOPES = ("infer", "embed", "metrics", "tools", "admin")


@dataclass(frozen=True, slots=True)
class Key:
    """`scopes` are the groups of routes that it may use. A limit that is None does not exist."""

    name: str
    digest: bytes
    scopes: frozenset[str] = frozenset(SCOPES)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and answer together
    concurrency: int | None = None  # requests at once

    @classmethod
    def unnamed(cls, key: str) -> Key:
        """A key without a name is called by its digest. Its place in a list is another key's as soon as one before it
        is removed, and what is kept for a key is kept under its name."""
        return cls.of("key-" + sha256(key.encode()).hexdigest()[:12], key)

    @classmethod
    def of(cls, name: str, key: str, scopes: Iterable[str] = SCOPES) -> Key:
        return cls(name, sha256(key.encode()).digest(), frozenset(scopes))
