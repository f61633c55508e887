"""Responses in PostgreSQL, for several servers that share them.

What has not been of use for too long goes, and what was of use longest ago when there is too much.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llamasrv.errors import ConfigError
from llamasrv.store import CHAIN, CHAIN_BYTES, Entry, StoreError, StoreOptions, pack, unpack, unpack_all

try:
    import psycopg
except ImportError:
    psycopg = None  # type: ignore[assignment]

# One after another: two servers may start at the same moment.
_TABLES = """
SELECT pg_advisory_xact_lock(726982734);
CREATE TABLE IF NOT EXISTS llamasrv_responses (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    previous TEXT,
    used DOUBLE PRECISION NOT NULL,
    lease DOUBLE PRECISION,
    size INTEGER NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS llamasrv_responses_used ON llamasrv_responses (used, size);
"""
_PUT = """
INSERT INTO llamasrv_responses VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (owner, id) DO UPDATE SET previous = EXCLUDED.previous, used = EXCLUDED.used, lease = EXCLUDED.lease,
    size = EXCLUDED.size, body = EXCLUDED.body
"""
_CHAIN = """
WITH RECURSIVE turns (n, id, previous, total) AS (
    SELECT 0, id, previous, CAST(size AS BIGINT) FROM llamasrv_responses WHERE owner = %(owner)s AND id = %(id)s
    UNION ALL
    SELECT n + 1, r.id, r.previous, total + r.size FROM turns
    JOIN llamasrv_responses r ON r.owner = %(owner)s AND r.id = turns.previous
    WHERE n < %(most)s AND total <= %(bytes)s
), renewed AS (
    UPDATE llamasrv_responses r SET used = %(now)s FROM turns
    WHERE r.owner = %(owner)s AND r.id = turns.id AND r.used > %(oldest)s
    RETURNING turns.n, r.id, r.body, r.previous, r.lease
)
SELECT id, body, previous, lease FROM renewed ORDER BY n DESC
"""
# Turns of one conversation were of use at the same moment: they go together.
_TOO_MUCH = """
DELETE FROM llamasrv_responses WHERE used <= (
    SELECT max(used) FROM (
        SELECT used, sum(size) OVER (ORDER BY used DESC RANGE UNBOUNDED PRECEDING) AS kept FROM llamasrv_responses
    ) newer WHERE kept > %s
)
"""
_CONNECTIONS = 8
_TIMEOUT = 5  # seconds to connect, and to wait for a connection
_STATEMENT_TIMEOUT = "10s"
_CLEAN_EVERY = 60.0  # seconds, if anything was written
_OVERHEAD = 256  # bytes of a row beside its body


class PostgresStore:
    blocks = False  # its sockets let others work while they wait

    def __init__(self, url: str, options: StoreOptions) -> None:
        if psycopg is None:
            raise ConfigError("store.url: PostgreSQL needs the package psycopg: pip install 'llamasrv[postgres]'")
        self._url = url
        self._options = options
        self._idle: deque[Any] = deque()
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._cleaned = 0.0
        try:
            with self._connection() as db:
                db.execute(_TABLES)
        except StoreError as error:
            raise ConfigError(f"store.url: PostgreSQL cannot be used: {_reason(error.__cause__)}") from None

    def put(self, owner: str, entry: Entry) -> None:
        body = pack(entry.body)
        now = time.time()
        with self._connection() as db:
            db.execute(_PUT, (owner, entry.id, entry.previous, now, entry.lease, len(body) + _OVERHEAD, body))
            if now - self._cleaned > _CLEAN_EVERY:
                self._cleaned = now
                db.execute("DELETE FROM llamasrv_responses WHERE used <= %s", (now - self._options.max_age,))
                db.execute(_TOO_MUCH, (self._options.max_bytes,))

    def get(self, owner: str, id: str) -> Entry | None:
        with self._connection() as db:
            row = db.execute(
                "SELECT id, body, previous, lease FROM llamasrv_responses WHERE owner = %s AND id = %s AND used > %s",
                (owner, id, time.time() - self._options.max_age),
            ).fetchone()
        return None if row is None else _entry(row)

    def chain(self, owner: str, id: str) -> list[Entry]:
        now = time.time()
        named = {
            "owner": owner, "id": id, "most": CHAIN, "bytes": CHAIN_BYTES, "now": now,
            "oldest": now - self._options.max_age,
        }  # fmt: skip
        with self._connection() as db:
            rows = db.execute(_CHAIN, named).fetchall()
        return unpack_all(rows)

    def delete(self, owner: str, id: str) -> bool:
        with self._connection() as db:
            return db.execute("DELETE FROM llamasrv_responses WHERE owner = %s AND id = %s", (owner, id)).rowcount > 0

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """One of a few, for one use. What failed is not used again."""
        if not self._free.acquire(timeout=_TIMEOUT):
            raise StoreError("Responses cannot be stored or read at the moment: too many at once.")
        try:
            db = self._take()
            try:
                yield db
            except BaseException:
                db.close()
                raise
            self._idle.append(db)
        except psycopg.Error as error:
            raise StoreError(f"Responses cannot be stored or read at the moment: {type(error).__name__}.") from error
        finally:
            self._free.release()

    def _take(self) -> Any:
        """An idle connection that still works, or a new one."""
        while self._idle:
            db = self._idle.pop()
            try:
                db.execute("SELECT 1")
                return db
            except psycopg.Error:
                db.close()
        options = f"-c statement_timeout={_STATEMENT_TIMEOUT}"
        return psycopg.connect(self._url, autocommit=True, connect_timeout=_TIMEOUT, options=options)


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(row[0], unpack(row[1]), row[2], row[3])


def _reason(error: BaseException | None) -> str:
    """One line, without anything of the URL."""
    return type(error).__name__ if error is None or not str(error) else str(error).strip().splitlines()[-1][:200]
