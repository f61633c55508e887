"""The store of responses: bytes under an owner and an id, kept as long as they are of use; and usage by key.

    StoredEntry one response as it is kept: its content is a protocol's own business
    ResponseStore what every kind offers; `open_store` picks one by URL

Conversations are chains: an entry names the one before it. Going on with a conversation renews all of it, so that what
is too old or too much goes conversation by conversation. An owner sees nothing of another's: it is part of every key.
Knows no protocol and no HTTP.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from llamasrv.errors import ConfigError, InvalidRequest, Unavailable
from llamasrv.store.shelf import Shelf

CHAIN = 10_000  # most turns of one conversation
CHAIN_BYTES = 2**26  # and most bytes of it that are read at once

DAY = 86_400.0
USAGE_DAYS = 400  # that totals of a day are kept


class StoredEntry(NamedTuple):
    """`lease`: until when a process works on it, in seconds since the epoch; None: it has ended."""

    id: str
    body: bytes
    previous: str | None = None
    lease: float | None = None


class DailyUsage(NamedTuple):
    """What a key used of a model on a day (UTC, YYYY-MM-DD)."""

    day: str
    owner: str
    model: str
    requests: int = 0
    prompt: int = 0  # tokens
    cached: int = 0  # of those
    generated: int = 0
    seconds: float = 0.0  # of requests, their waiting included


def _unbounded(seconds: float, error: Exception) -> AbstractContextManager[None]:
    return nullcontext()


class StoreOptions(NamedTuple):
    """`within` raises an error in a block that waits longer than some seconds for a server."""

    max_bytes: int = 2**30
    max_age: float = 30 * DAY  # seconds since it was last of use
    within: Callable[[float, Exception], AbstractContextManager[None]] = _unbounded
    patience: float = 12.0  # seconds for one use of a server, its own time limits included


class StoreError(Unavailable):
    """The store of responses does not answer."""

    code = "store_unavailable"


class ConversationTooLong(InvalidRequest):
    """No model could read that much. Raised before all of it is in memory."""

    code = "context_length_exceeded"


class ResponseStore(Protocol):
    """Every method may be called from many threads at once."""

    blocks: bool
    """Whether calls block the thread they are made on, although it could do other work (files do)."""

    def put(self, owner: str, entry: StoredEntry) -> None:
        """Store it, replacing an earlier entry with this id."""

    def get(self, owner: str, id: str) -> StoredEntry | None: ...

    def chain(self, owner: str, id: str) -> list[StoredEntry]:
        """The conversation up to this entry, oldest first; its entries are renewed. Ends where an entry is missing:
        then the first one still names one before it. [] if there is no such entry. Raises ConversationTooLong."""

    def delete(self, owner: str, id: str) -> bool:
        """Returns whether it was there."""

    def add_usage(self, used: Sequence[DailyUsage]) -> None:
        """Add to the totals of those days, keys and models."""

    def usage(self, first: str, last: str) -> list[DailyUsage]:
        """The totals from the first day to the last, both included, in order."""

    def shelf(self, name: str) -> Shelf | None:
        """A shelf for files or batches beside the responses; None: only a folder can hold them."""

    def close(self) -> None: ...


def open_store(url: str, options: StoreOptions) -> ResponseStore | None:
    """The store of that URL; None for "none". Raises ConfigError if it cannot be used."""
    if url in ("none", "off"):
        return None
    scheme = urlsplit(url).scheme
    if url == "memory" or scheme == "sqlite":
        from llamasrv.store.sql import SqlStore
        from llamasrv.store.sqlite import SqliteDialect

        return SqlStore(SqliteDialect(None if url == "memory" else sqlite_path(url)), options)
    if scheme in ("redis", "rediss", "unix"):
        from llamasrv.store.redis import RedisStore

        return RedisStore(url, options)
    if scheme in ("postgres", "postgresql"):
        from llamasrv.store.postgres import PostgresStore

        return PostgresStore(url, options)
    raise ConfigError("store.url: must be sqlite:///FILE, redis://..., postgresql://..., memory or none")


def sqlite_path(url: str) -> Path:
    """The path in sqlite:///relative and sqlite:////absolute, as elsewhere."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path:
        raise ConfigError(f"store.url = {url!r}: expected sqlite:///FILE, with a fourth slash for an absolute path")
    return Path(path).expanduser()


def day_of(seconds: float) -> str:
    """The day of a time since the epoch, as used for totals."""
    return datetime.fromtimestamp(seconds, timezone.utc).date().isoformat()


def pack(body: bytes) -> bytes:
    return zlib.compress(body, 1)


def unpack(data: bytes) -> bytes:
    return zlib.decompress(data)


def unpack_all(rows: Iterable[tuple[str, bytes, str | None, float | None]]) -> list[StoredEntry]:
    """Rows of (id, packed body, previous, lease). A small packed body may be large unpacked, so the size is counted."""
    left = CHAIN_BYTES
    out = []
    for id, data, previous, lease in rows:
        body = zlib.decompressobj().decompress(data, left + 1)
        left -= len(body)
        if left < 0:
            raise ConversationTooLong(
                f"The conversation up to this response is longer than {CHAIN_BYTES} bytes.",
                param="previous_response_id",
            )
        out.append(StoredEntry(id, body, previous, lease))
    return out
