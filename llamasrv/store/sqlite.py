"""SQLite, in a file or in memory: the store that needs no other server.

Write-ahead logging lets readers and the writer work at once; several processes may share the file.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from llamasrv.store.sql import TABLES, SqlDialect

_VERSION = 1  # of the tables, kept in the file
_BUSY = 5.0  # seconds to wait for another process's write


class SqliteDialect(SqlDialect):
    table = "responses"
    errors = (sqlite3.Error, OSError)

    def __init__(self, path: Path | None) -> None:
        """`path` None keeps everything in memory, on a single connection."""
        self._path = path
        self._memory: sqlite3.Connection | None = None
        self.name = "memory" if path is None else str(path)
        self.blocks = path is not None
        self.connections = 1 if path is None else None

    def statement(self, text: str) -> str:
        return text

    def connect(self) -> sqlite3.Connection:
        if self._path is None:
            if self._memory is None:
                self._memory = self._open(":memory:")
            return self._memory
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # nobody else may read what was said
        return self._open(str(self._path))

    @staticmethod
    def _open(place: str) -> sqlite3.Connection:
        # Python's connections are not made for several threads at once; one after another is fine.
        db = sqlite3.connect(place, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA synchronous = NORMAL")  # after a power cut the last turns may be missing
        db.execute("PRAGMA secure_delete = ON")  # what was deleted is not to be found in the file
        return db

    def make_tables(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode = WAL")
        if db.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
            raise sqlite3.NotSupportedError("it was written by a later version")
        db.executescript(TABLES.format(table=self.table, blob="BLOB") + f"PRAGMA user_version = {_VERSION};")

    def works(self, db: sqlite3.Connection) -> bool:
        return True

    def close(self, db: sqlite3.Connection) -> None:
        if db is not self._memory:  # all that is kept is on that one
            db.close()
