"""Responses in one SQL table: the statements, and the connections that run them.

Entries expire by time since last use; above the size limit the least recently used are evicted. A SqlDialect knows how
to connect to one kind of database, and where its SQL differs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from llamasrv.errors import ConfigError
from llamasrv.store import (
    DAY,
    USAGE_DAYS,
    DailyUsage,
    StoredEntry,
    StoreError,
    StoreOptions,
    day_of,
    pack,
    unpack,
    unpack_all,
)
from llamasrv.store.quotas import LEASE, QuotaBook
from llamasrv.store.shelf import Shelf

TABLES = """
CREATE TABLE IF NOT EXISTS {table} (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    previous TEXT,
    used DOUBLE PRECISION NOT NULL,
    lease DOUBLE PRECISION,
    size INTEGER NOT NULL,
    body {blob} NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS {table}_used ON {table} (used, size);
CREATE TABLE IF NOT EXISTS {table}_usage (
    day TEXT NOT NULL,
    owner TEXT NOT NULL,
    model TEXT NOT NULL,
    requests BIGINT NOT NULL,
    prompt BIGINT NOT NULL,
    cached BIGINT NOT NULL,
    generated BIGINT NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (day, owner, model)
);
"""
_ADD_USAGE = """
INSERT INTO {table}_usage AS u (day, owner, model, requests, prompt, cached, generated, seconds)
VALUES (:day, :owner, :model, :requests, :prompt, :cached, :generated, :seconds)
ON CONFLICT (day, owner, model) DO UPDATE SET requests = u.requests + excluded.requests,
    prompt = u.prompt + excluded.prompt, cached = u.cached + excluded.cached,
    generated = u.generated + excluded.generated, seconds = u.seconds + excluded.seconds
"""
_OLD_USAGE = "DELETE FROM {table}_usage WHERE day < :first"
_USAGE = """
SELECT day, owner, model, requests, prompt, cached, generated, seconds FROM {table}_usage
WHERE day >= :first AND day <= :last ORDER BY day, owner, model
"""
_PUT = """
INSERT INTO {table} (owner, id, previous, used, lease, size, body)
VALUES (:owner, :id, :previous, :used, :lease, :size, :body)
ON CONFLICT (owner, id) DO UPDATE SET previous = excluded.previous, used = excluded.used, lease = excluded.lease,
    size = excluded.size, body = excluded.body
"""
_GET = "SELECT id, body, previous, lease FROM {table} WHERE owner = :owner AND id = :id AND used > :oldest"
_DELETE = "DELETE FROM {table} WHERE owner = :owner AND id = :id"
_TURNS = """
WITH RECURSIVE turns (n, id, previous, total) AS (
    SELECT 0, id, previous, CAST(size AS BIGINT) FROM {table} WHERE owner = :owner AND id = :id
    UNION ALL
    SELECT n + 1, r.id, r.previous, total + r.size FROM turns
    JOIN {table} r ON r.owner = :owner AND r.id = turns.previous
    WHERE n < :most AND total <= :bytes
)
"""
_CHAIN = _TURNS + (
    "SELECT r.id, r.body, r.previous, r.lease FROM turns JOIN {table} r ON r.owner = :owner AND r.id = turns.id"
    " WHERE r.used > :oldest ORDER BY n DESC"
)
_RENEW = _TURNS + (
    "UPDATE {table} SET used = :now WHERE owner = :owner AND used > :oldest AND id IN (SELECT id FROM turns)"
)
_TOO_OLD = "DELETE FROM {table} WHERE used <= :oldest"
_SIZE = "SELECT sum(size) FROM {table}"
# All turns of a conversation carry the same time of use: they are evicted together.
_TOO_MUCH = """
DELETE FROM {table} WHERE used <= (
    SELECT max(used) FROM (
        SELECT used, sum(size) OVER (ORDER BY used DESC RANGE UNBOUNDED PRECEDING) AS kept FROM {table}
    ) newer WHERE kept > :most
)
"""
_CLEAN_EVERY = 60.0  # seconds between cleanups, if anything was written
_CLEAN_SHARE = 32  # also clean after writing 1/32 of the size limit
_OVERHEAD = 256  # bytes of a row without its body
_WAIT = 5.0  # seconds to wait for a connection


class SqlDialect(Protocol):
    """One kind of database. Its connections commit each statement at once."""

    name: str
    table: str
    blocks: bool  # see ResponseStore
    connections: int | None  # max open at once; None: unlimited. If it blocks, 1 or None
    errors: tuple[type[Exception], ...]

    def statement(self, text: str) -> str:
        """A statement with parameters written as `:name`, in the form the driver takes."""

    def connect(self) -> Any: ...

    def make_tables(self, db: Any) -> None: ...

    def works(self, db: Any) -> bool:
        """Whether an idle connection still works."""

    def close(self, db: Any) -> None:
        """Close a connection after an error."""


class SqlStore:
    def __init__(self, dialect: SqlDialect, options: StoreOptions) -> None:
        self.blocks = dialect.blocks
        self.options = options
        self._dialect = dialect
        self._statements: dict[str, str] = {}
        # A connection serves one call at a time.
        self._idle: deque[Any] = deque()
        self._turn: AbstractContextManager[Any] = nullcontext()
        self._free = None
        if dialect.connections is not None and dialect.blocks:
            self._turn = options.lock()
        elif dialect.connections is not None:
            self._free = threading.BoundedSemaphore(dialect.connections)
        self._written = 0  # bytes since the last cleanup
        self._cleaned = 0.0
        try:
            with self.connection() as db:
                dialect.make_tables(db)
        except StoreError as error:
            raise ConfigError(f"store.url: {dialect.name} cannot be used: {_reason(error.__cause__)}") from None

    def put(self, owner: str, entry: StoredEntry) -> None:
        body = pack(entry.body, self.options)
        now = time.time()
        row = {
            "owner": owner,
            "id": entry.id,
            "previous": entry.previous,
            "used": now,
            "lease": entry.lease,
            "size": len(body) + _OVERHEAD,
            "body": body,
        }
        with self.connection() as db:
            self._run(db, _PUT, row)
            self._written += len(body)
            if now - self._cleaned > _CLEAN_EVERY or self._written > self.options.max_bytes // _CLEAN_SHARE:
                self._clean(db, now)

    def get(self, owner: str, id: str) -> StoredEntry | None:
        with self.connection() as db:
            oldest = time.time() - self.options.max_age
            row = self._run(db, _GET, {"owner": owner, "id": id, "oldest": oldest}).fetchone()
        return None if row is None else StoredEntry(row[0], unpack(row[1], self.options), row[2], row[3])

    def chain(self, owner: str, id: str) -> list[StoredEntry]:
        now = time.time()
        named = {
            "owner": owner,
            "id": id,
            "most": self.options.chain,
            "bytes": self.options.chain_bytes,
            "now": now,
            "oldest": now - self.options.max_age,
        }
        with self.connection() as db:
            rows = self._run(db, _CHAIN, named).fetchall()
            self._run(db, _RENEW, named)
        return unpack_all(rows, self.options)

    def delete(self, owner: str, id: str) -> bool:
        with self.connection() as db:
            return bool(self._run(db, _DELETE, {"owner": owner, "id": id}).rowcount > 0)

    def add_usage(self, used: Sequence[DailyUsage]) -> None:
        with self.connection() as db:
            for one in used:
                self._run(db, _ADD_USAGE, one._asdict())
            self._run(db, _OLD_USAGE, {"first": day_of(time.time() - USAGE_DAYS * DAY)})

    def usage(self, first: str, last: str) -> list[DailyUsage]:
        with self.connection() as db:
            return [DailyUsage(*row) for row in self._run(db, _USAGE, {"first": first, "last": last}).fetchall()]

    def shelf(self, name: str) -> Shelf | None:
        return None

    def quotas(self, lease: float = LEASE) -> QuotaBook | None:
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _run(self, db: Any, text: str, named: dict[str, Any]) -> Any:
        if text not in self._statements:
            self._statements[text] = self._dialect.statement(text.replace("{table}", self._dialect.table))
        return db.execute(self._statements[text], named)

    def _clean(self, db: Any, now: float) -> None:
        """Delete expired entries, then evict the least recently used until the rest fits the size limit."""
        self._written, self._cleaned = 0, now
        self._run(db, _TOO_OLD, {"oldest": now - self.options.max_age})
        if (self._run(db, _SIZE, {}).fetchone()[0] or 0) > self.options.max_bytes:
            self._run(db, _TOO_MUCH, {"most": self.options.max_bytes})

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Lend a connection for one operation. After an error it is not reused."""
        if self._free is not None and not self._free.acquire(timeout=_WAIT):
            raise StoreError("The store cannot be used at the moment: too many requests wait for it.")
        hung = StoreError("The store cannot be used at the moment: it does not respond.")
        try:
            with self.options.within(self.options.patience, hung), self._turn:
                db = self._take()
                try:
                    yield db
                except BaseException:
                    self._dialect.close(db)
                    raise
                self._idle.append(db)
        except StoreError as error:
            if error is hung:
                self.close()  # the idle connections would hang, too
            raise
        except self._dialect.errors as error:
            raise StoreError(f"The store cannot be used at the moment: {type(error).__name__}.") from error
        finally:
            if self._free is not None:
                self._free.release()

    def _take(self) -> Any:
        """An idle connection that still works, or a new one."""
        while True:
            try:
                db = self._idle.pop()
            except IndexError:
                return self._dialect.connect()
            try:
                if self._dialect.works(db):
                    return db
            except BaseException:
                self._dialect.close(db)
                raise
            self._dialect.close(db)


def _reason(error: BaseException | None) -> str:
    """One line for the log, without any part of the URL."""
    return type(error).__name__ if error is None or not str(error) else str(error).strip().splitlines()[-1][:200]
