"""The response store: bytes under an owner and an id, kept until they expire; and usage per API key.

    StoredEntry     one stored response; its body is opaque here
    ResponseStore   the interface of all backends; `open_store` picks one by URL

Conversations are chains: an entry names the one before it. Continuing a conversation renews all of its entries, so
that expiry and eviction work on whole conversations. The owner is part of every key: owners cannot see each other's
entries. Knows no protocol and no HTTP.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from llamasrv.errors import ConfigError, InvalidRequest, Unavailable
from llamasrv.store.quotas import LEASE, QuotaBook
from llamasrv.store.shelf import Shelf

CHAIN = 10_000  # max turns per conversation
CHAIN_BYTES = 2**26  # max bytes of a conversation that are read at once

DAY = 86_400.0
USAGE_DAYS = 400  # retention of the daily totals

_LARGE = 1 << 17  # bytes that take milliseconds to pack
_DENSE = 1 << 12  # packed bytes that may unpack to megabytes


class StoredEntry(NamedTuple):
    """`lease`: time until which a process holds it, in seconds since the epoch; None: the response has ended."""

    id: str
    body: bytes
    previous: str | None = None
    lease: float | None = None


class DailyUsage(NamedTuple):
    """One key's usage of one model on one day (UTC, YYYY-MM-DD)."""

    day: str
    owner: str
    model: str
    requests: int = 0
    prompt: int = 0  # prompt tokens
    cached: int = 0  # prompt tokens that came from the cache
    generated: int = 0
    seconds: float = 0.0  # summed duration of the requests, including queueing


def _unbounded(seconds: float, error: Exception) -> AbstractContextManager[None]:
    return nullcontext()


def _here(function: Callable[[], Any]) -> Any:
    return function()


class StoreOptions(NamedTuple):
    """`within(seconds, error)` raises the error in a block that waits longer for a server. `compute` calls a slow
    function where nothing waits for it, and returns its result. `lock` makes a lock between native threads."""

    max_bytes: int = 2**30
    max_age: float = 30 * DAY  # seconds since last use
    within: Callable[[float, Exception], AbstractContextManager[None]] = _unbounded
    compute: Callable[[Callable[[], Any]], Any] = _here
    lock: Callable[[], AbstractContextManager[Any]] = threading.Lock
    chain: int = CHAIN
    chain_bytes: int = CHAIN_BYTES
    patience: float = 12.0  # timeout in seconds of one operation on a server, including the server's own timeouts


class StoreError(Unavailable):
    """The response store does not respond."""

    code = "store_unavailable"


class ConversationTooLong(InvalidRequest):
    """The conversation exceeds the store's `chain_bytes`. Raised before all of it is in memory."""

    code = "context_length_exceeded"


class ResponseStore(Protocol):
    """All methods are thread-safe."""

    blocks: bool
    """Whether calls block the calling thread (SQLite), rather than yield to other greenlets (sockets)."""

    def put(self, owner: str, entry: StoredEntry) -> None:
        """Store the entry, replacing an earlier one with the same id."""

    def get(self, owner: str, id: str) -> StoredEntry | None: ...

    def chain(self, owner: str, id: str) -> list[StoredEntry]:
        """The conversation up to this entry, oldest first; renews its entries. If an entry is missing, the chain
        starts behind the gap, and its first entry still names a predecessor. [] if the id is unknown. Raises
        ConversationTooLong."""

    def delete(self, owner: str, id: str) -> bool:
        """Returns whether the entry existed."""

    def add_usage(self, used: Sequence[DailyUsage]) -> None:
        """Add to the stored totals."""

    def usage(self, first: str, last: str) -> list[DailyUsage]:
        """The totals from the first day to the last, both inclusive, sorted."""

    def shelf(self, name: str) -> Shelf | None:
        """A shelf for files or batches next to the responses; None if this backend cannot hold them."""

    def quotas(self, lease: float = LEASE) -> QuotaBook | None:
        """Counts quotas over all servers that share this store; None if this backend has one server only."""

    def close(self) -> None: ...


def open_store(url: str, options: StoreOptions) -> ResponseStore | None:
    """Open the store at this URL; None for "none". Raises ConfigError if it is unusable."""
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
    """The path in sqlite:///relative and sqlite:////absolute (SQLAlchemy's convention)."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path:
        raise ConfigError(f"store.url = {url!r}: expected sqlite:///FILE, with a fourth slash for an absolute path")
    return Path(path).expanduser()


def day_of(seconds: float) -> str:
    """The UTC day of a timestamp (seconds since the epoch), as DailyUsage writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).date().isoformat()


def pack(body: bytes, options: StoreOptions) -> bytes:
    packed: bytes = options.compute(lambda: zlib.compress(body, 1)) if len(body) > _LARGE else zlib.compress(body, 1)
    return packed


def unpack(data: bytes, options: StoreOptions) -> bytes:
    body: bytes = options.compute(lambda: zlib.decompress(data)) if len(data) > _DENSE else zlib.decompress(data)
    return body


Rows = Sequence[tuple[str, bytes, str | None, float | None]]
"""Of (id, packed body, previous, lease)."""


def unpack_all(rows: Rows, options: StoreOptions) -> list[StoredEntry]:
    """Raises ConversationTooLong."""
    is_large = sum(len(row[1]) for row in rows) > _DENSE
    entries: list[StoredEntry] = (options.compute if is_large else _here)(lambda: _unpacked(rows, options.chain_bytes))
    return entries


def _unpacked(rows: Rows, max_bytes: int) -> list[StoredEntry]:
    """Counts unpacked bytes: a small packed body may be large."""
    left = max_bytes
    out = []
    for id, data, previous, lease in rows:
        body = zlib.decompressobj().decompress(data, left + 1)
        left -= len(body)
        if left < 0:
            raise ConversationTooLong(
                f"The conversation up to this response is longer than {max_bytes} bytes.",
                param="previous_response_id",
            )
        out.append(StoredEntry(id, body, previous, lease))
    return out
