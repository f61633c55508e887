"""Responses in one SQLite file, or in memory: what is used without any other server.

Write-ahead logging lets readers and the writer work at once; several processes may share the file. What has not been
of use for too long goes, and what was of use longest ago when the file holds too much.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llamasrv.errors import ConfigError
from llamasrv.store import CHAIN, CHAIN_BYTES, Entry, StoreError, StoreOptions, pack, unpack, unpack_all

_VERSION = 1  # of the tables, kept in the file
_TABLES = f"""
CREATE TABLE IF NOT EXISTS responses (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    previous TEXT,
    used REAL NOT NULL,
    lease REAL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS responses_used ON responses (used, size);
PRAGMA user_version = {_VERSION};
"""
_CHAIN = """
WITH RECURSIVE turns (n, id, previous, total) AS (
    SELECT 0, id, previous, CAST(size AS BIGINT) FROM responses WHERE owner = :owner AND id = :id
    UNION ALL
    SELECT n + 1, r.id, r.previous, total + r.size FROM turns
    JOIN responses r ON r.owner = :owner AND r.id = turns.previous
    WHERE n < :most AND total <= :bytes
)
"""
_CLEAN_EVERY = 60.0  # seconds, if anything was written
_CLEAN_SHARE = 32  # and after so much of what may be kept was written
_BUSY = 5.0  # seconds to wait for another process's write
_OVERHEAD = 256  # bytes of a row beside its body


class SqliteStore:
    def __init__(self, path: Path | None, options: StoreOptions) -> None:
        self.path = path
        self.blocks = path is not None
        self._options = options
        self._written = 0  # bytes since it was last cleaned
        self._cleaned = 0.0
        # A connection serves one call at a time: Python's are not made for several threads at once.
        self._idle: deque[sqlite3.Connection] = deque()
        self._alone = threading.Lock()  # what is in memory is on one connection
        try:
            db = _open(path)
            _make_tables(db)
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"store.url: cannot use {path}: {error}") from None
        self._idle.append(db)

    def put(self, owner: str, entry: Entry) -> None:
        body = pack(entry.body)
        now = time.time()
        row = (owner, entry.id, entry.previous, now, entry.lease, len(body) + _OVERHEAD, body)
        with self._connection() as db:
            db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._written += len(body)
            if now - self._cleaned > _CLEAN_EVERY or self._written > self._options.max_bytes // _CLEAN_SHARE:
                self._clean(db, now)

    def get(self, owner: str, id: str) -> Entry | None:
        with self._connection() as db:
            row = db.execute(
                "SELECT id, body, previous, lease FROM responses WHERE owner = ? AND id = ? AND used > ?",
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
            rows = db.execute(
                _CHAIN + "SELECT r.id, r.body, r.previous, r.lease FROM turns JOIN responses r"
                " ON r.owner = :owner AND r.id = turns.id WHERE r.used > :oldest ORDER BY n DESC",
                named,
            ).fetchall()
            db.execute(
                _CHAIN + "UPDATE responses SET used = :now WHERE owner = :owner AND used > :oldest"
                " AND id IN (SELECT id FROM turns)",
                named,
            )
        return unpack_all(rows)

    def delete(self, owner: str, id: str) -> bool:
        with self._connection() as db:
            return db.execute("DELETE FROM responses WHERE owner = ? AND id = ?", (owner, id)).rowcount > 0

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            if self.path is None:
                with self._alone:
                    yield self._idle[0]
                return
            try:
                db = self._idle.pop()
            except IndexError:
                db = _open(self.path)
            try:
                yield db
            except BaseException:
                db.close()
                raise
            self._idle.append(db)
        except sqlite3.Error as error:
            raise StoreError(f"Responses cannot be stored or read at the moment: {type(error).__name__}.") from error

    def _clean(self, db: sqlite3.Connection, now: float) -> None:
        """What is too old; then what was of use longest ago, until the rest is little enough."""
        self._written, self._cleaned = 0, now
        db.execute("DELETE FROM responses WHERE used <= ?", (now - self._options.max_age,))
        over = (db.execute("SELECT sum(size) FROM responses").fetchone()[0] or 0) - self._options.max_bytes
        while over > 0:
            # Turns of one conversation were of use at the same moment: they go together.
            oldest, size = db.execute(
                "SELECT used, sum(size) FROM responses GROUP BY used ORDER BY used LIMIT 1"
            ).fetchone()
            db.execute("DELETE FROM responses WHERE used = ?", (oldest,))
            over -= size


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # nobody else may read what was said
    db = sqlite3.connect(path or ":memory:", timeout=_BUSY, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = NORMAL")  # after a power cut the file is whole, at most the last turns are missing
    db.execute("PRAGMA secure_delete = ON")  # what was deleted is not to be found in the file
    return db


def _make_tables(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    if db.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
        raise sqlite3.NotSupportedError("it was written by a later version")
    db.executescript(_TABLES)


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(row[0], unpack(row[1]), row[2], row[3])
