"""SQLite, in a file or in memory: the store that needs no server.

Write-ahead logging lets readers work beside the writer; several processes may share the file.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from llamasrv.store.sql import TABLES, SqlDialect

_VERSION = 1  # schema version, kept in the file
_BUSY = 5.0  # seconds to wait for another process's write


class SqliteDialect(SqlDialect):
    table = "responses"
    blocks = True  # in memory, too: a row of 24 MB takes it 30 ms
    errors = (sqlite3.Error, OSError)

    def __init__(self, path: Path | None) -> None:
        """`path` None: everything is in memory, on a single connection."""
        self._path = path
        self._memory: sqlite3.Connection | None = None
        self.name = "memory" if path is None else str(path)
        self.connections = 1 if path is None else None

    def statement(self, text: str) -> str:
        return text

    def connect(self) -> sqlite3.Connection:
        if self._path is None:
            if self._memory is None:
                self._memory = self._open(":memory:")
            return self._memory
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # conversations: readable by this user only
        return self._open(str(self._path))

    @staticmethod
    def _open(place: str) -> sqlite3.Connection:
        # A connection moves between threads, but never serves two at once, which is what sqlite3 requires.
        db = sqlite3.connect(place, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last turns
        db.execute("PRAGMA secure_delete = ON")  # overwrite deleted conversations in the file
        return db

    def make_tables(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode = WAL")
        if db.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
            raise sqlite3.NotSupportedError("it was written by a later version of llamasrv")
        db.executescript(TABLES.format(table=self.table, blob="BLOB") + f"PRAGMA user_version = {_VERSION};")

    def works(self, db: sqlite3.Connection) -> bool:
        return True

    def close(self, db: sqlite3.Connection) -> None:
        if db is not self._memory:  # closing it would lose everything
            db.close()
