"""A shelf in PostgreSQL: tables of records, of contents by name, and of their pieces."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llamasrv.store.shelf import PIECE, Content, ExpiringLock, PieceWriter, Record

TABLES = """
CREATE TABLE IF NOT EXISTS llamasrv_records (
    shelf TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (shelf, owner, id)
);
CREATE TABLE IF NOT EXISTS llamasrv_contents (
    shelf TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    part TEXT NOT NULL,
    blob TEXT NOT NULL,
    PRIMARY KEY (shelf, owner, id, part)
);
CREATE INDEX IF NOT EXISTS llamasrv_contents_blob ON llamasrv_contents (blob);
CREATE TABLE IF NOT EXISTS llamasrv_pieces (
    blob TEXT NOT NULL,
    n BIGSERIAL,
    size INTEGER NOT NULL,
    made TIMESTAMPTZ NOT NULL DEFAULT now(),
    data BYTEA NOT NULL,
    PRIMARY KEY (blob, n)
);
CREATE TABLE IF NOT EXISTS llamasrv_locks (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until TIMESTAMPTZ NOT NULL
);
"""
_PUT = """
INSERT INTO llamasrv_records (shelf, owner, id, body) VALUES (%(shelf)s, %(owner)s, %(id)s, %(body)s)
ON CONFLICT (shelf, owner, id) DO UPDATE SET body = excluded.body
"""
_THING = "shelf = %(shelf)s AND owner = %(owner)s AND id = %(id)s"
_GET = f"SELECT body FROM llamasrv_records WHERE {_THING}"
_RECORDS = """
SELECT owner, id, body FROM llamasrv_records
WHERE shelf = %(shelf)s AND (%(owner)s::text IS NULL OR owner = %(owner)s)
"""
_DELETE = f"DELETE FROM llamasrv_records WHERE {_THING}"
_DELETE_CONTENTS = f"DELETE FROM llamasrv_contents WHERE {_THING} RETURNING blob"
_BLOB = f"SELECT blob FROM llamasrv_contents WHERE {_THING} AND part = %(part)s"
_ADD = "INSERT INTO llamasrv_pieces (blob, size, data) VALUES (%(blob)s, %(size)s, %(data)s)"
# Returns the content that had this name before.
_NAME = f"""
WITH earlier AS ({_BLOB})
INSERT INTO llamasrv_contents (shelf, owner, id, part, blob)
VALUES (%(shelf)s, %(owner)s, %(id)s, %(part)s, %(blob)s)
ON CONFLICT (shelf, owner, id, part) DO UPDATE SET blob = excluded.blob
RETURNING (SELECT blob FROM earlier)
"""
_NAME_NEW = """
INSERT INTO llamasrv_contents (shelf, owner, id, part, blob)
VALUES (%(shelf)s, %(owner)s, %(id)s, %(part)s, %(blob)s) ON CONFLICT DO NOTHING
"""
# FOR SHARE: whoever deletes the source at this moment waits, and finds that its pieces are still of use.
_LINK = """
INSERT INTO llamasrv_contents (shelf, owner, id, part, blob)
SELECT %(shelf)s, %(owner)s, %(id)s, %(part)s, blob FROM llamasrv_contents
WHERE shelf = %(s_shelf)s AND owner = %(s_owner)s AND id = %(s_id)s AND part = %(s_part)s FOR SHARE
"""
_UNUSED = "NOT EXISTS (SELECT FROM llamasrv_contents c WHERE c.blob = llamasrv_pieces.blob)"
_DROP = f"DELETE FROM llamasrv_pieces WHERE blob = %(blob)s AND {_UNUSED}"
_SWEEP = f"DELETE FROM llamasrv_pieces WHERE made < to_timestamp(%(before)s) AND {_UNUSED}"
# Pieces until they are PIECE bytes: lines that were appended are many small ones.
_PIECES = """
SELECT n, data FROM (
    SELECT n, data, size, sum(size) OVER (ORDER BY n) AS total FROM (
        SELECT n, data, size FROM llamasrv_pieces WHERE blob = %(blob)s AND n > %(after)s ORDER BY n LIMIT 1000
    ) next
) summed WHERE total - size < %(most)s ORDER BY n
"""
_NUM_BYTES = """
SELECT sum(p.size) FROM llamasrv_contents c JOIN llamasrv_pieces p ON p.blob = c.blob WHERE c.shelf = %(shelf)s
"""
_RENEW_LOCK = """
INSERT INTO llamasrv_locks AS l (name, holder, until)
VALUES (%(name)s, %(holder)s, now() + %(seconds)s * interval '1 second')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < now()
"""
_RELEASE_LOCK = "DELETE FROM llamasrv_locks WHERE name = %(name)s AND holder = %(holder)s"


class PostgresShelf:
    """`connection` lends a connection for a block."""

    blocks = False  # its sockets let others work while they wait
    is_shared = True

    def __init__(self, connection: Callable[[], AbstractContextManager[Any]], name: str) -> None:
        self.connection = connection
        self.name = name

    def put(self, owner: str, id: str, body: bytes) -> None:
        self._run(_PUT, owner=owner, id=id, body=body)

    def get(self, owner: str, id: str) -> bytes | None:
        rows = self._rows(_GET, owner=owner, id=id)
        return rows[0][0] if rows else None

    def records(self, owner: str | None = None) -> list[Record]:
        return sorted((Record(*row) for row in self._rows(_RECORDS, owner=owner)), key=lambda record: record.id)

    def delete(self, owner: str, id: str) -> None:
        self._run(_DELETE, owner=owner, id=id)
        for (blob,) in self._rows(_DELETE_CONTENTS, owner=owner, id=id):
            self._run(_DROP, blob=blob)

    @contextmanager
    def writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        blob = secrets.token_hex(16)
        writer = PieceWriter(lambda piece: self.add(blob, piece))
        try:
            yield writer.write
            writer.finish()
            [(earlier,)] = self._rows(_NAME, owner=owner, id=id, part=part, blob=blob)
        except BaseException:
            self._run(_DROP, blob=blob)
            raise
        if earlier is not None:
            self._run(_DROP, blob=earlier)

    def appending(self, owner: str, id: str, part: str) -> PostgresAppender:
        self._run(_NAME_NEW, owner=owner, id=id, part=part, blob=secrets.token_hex(16))
        [(blob,)] = self._rows(_BLOB, owner=owner, id=id, part=part)
        return PostgresAppender(self, blob)

    def add(self, blob: str, data: bytes) -> None:
        self._run(_ADD, blob=blob, size=len(data), data=data)

    def link(self, owner: str, id: str, part: str, source: Content) -> bool:
        assert isinstance(source.shelf, PostgresShelf)
        other = {"s_shelf": source.shelf.name, "s_owner": source.owner, "s_id": source.id, "s_part": source.part}
        return self._run(_LINK, owner=owner, id=id, part=part, **other) > 0

    def pieces(self, owner: str, id: str, part: str) -> Iterator[bytes]:
        after = -1
        for (blob,) in self._rows(_BLOB, owner=owner, id=id, part=part):
            while rows := self._rows(_PIECES, blob=blob, after=after, most=PIECE):
                after = rows[-1][0]
                yield b"".join(data for _, data in rows)

    def num_bytes(self) -> int:
        [(total,)] = self._rows(_NUM_BYTES)
        return int(total or 0)

    def sweep(self, before: float) -> None:
        self._run(_SWEEP, before=before)

    def lock(self) -> ExpiringLock:
        return ExpiringLock(self.renew_lock, self.release_lock)

    def renew_lock(self, holder: str, seconds: float) -> bool:
        return self._run(_RENEW_LOCK, name=self.name, holder=holder, seconds=seconds) > 0

    def release_lock(self, holder: str) -> None:
        self._run(_RELEASE_LOCK, name=self.name, holder=holder)

    def _run(self, text: str, **named: Any) -> int:
        """Returns the number of rows that it changed."""
        with self.connection() as db:
            return int(db.execute(text, {"shelf": self.name, **named}).rowcount)

    def _rows(self, text: str, **named: Any) -> list[Any]:
        with self.connection() as db:
            return list(db.execute(text, {"shelf": self.name, **named}).fetchall())


class PostgresAppender:
    """Each line is a row, so that it appears as a whole."""

    def __init__(self, shelf: PostgresShelf, blob: str) -> None:
        self._shelf, self._blob = shelf, blob

    def add(self, line: bytes) -> None:
        self._shelf.add(self._blob, line)

    def close(self) -> None: ...
