"""A shelf in PostgreSQL: tables of records, of named contents, and of their pieces."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llamasrv.store.shelf import AT_ONCE, LOCK_SECONDS, PIECE, Claims, ExpiringLock, PieceWriter, Shelf, StoredContent

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
CREATE TABLE IF NOT EXISTS llamasrv_open (
    shelf TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (shelf, owner, id)
);
CREATE TABLE IF NOT EXISTS llamasrv_sums (
    name TEXT PRIMARY KEY,
    amount BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS llamasrv_locks (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until TIMESTAMPTZ NOT NULL
);
"""
_THING = "shelf = %(shelf)s AND owner = %(owner)s AND id = %(id)s"
_PUT = """
WITH marked AS (
    INSERT INTO llamasrv_open (shelf, owner, id)
    SELECT %(shelf)s, %(owner)s, %(id)s WHERE %(is_open)s ON CONFLICT DO NOTHING
)
INSERT INTO llamasrv_records (shelf, owner, id, body) VALUES (%(shelf)s, %(owner)s, %(id)s, %(body)s)
ON CONFLICT (shelf, owner, id) DO UPDATE SET body = excluded.body
"""
_READ = """
SELECT id, body FROM llamasrv_records WHERE shelf = %(shelf)s AND owner = %(owner)s AND id = ANY(%(ids)s)
"""
_OWNERS = "SELECT DISTINCT owner FROM llamasrv_records WHERE shelf = %(shelf)s ORDER BY owner"
# One string: clients are slow to parse thousands of small rows.
_IDS = """
SELECT string_agg(id, ' ' ORDER BY id COLLATE "C") FROM llamasrv_records
WHERE shelf = %(shelf)s AND owner = %(owner)s
"""
_OPEN_IDS = "SELECT owner, id FROM llamasrv_open WHERE shelf = %(shelf)s"
_CLOSE = f"DELETE FROM llamasrv_open WHERE {_THING}"
_DELETE = f"WITH closed AS ({_CLOSE}) DELETE FROM llamasrv_records WHERE {_THING}"
_DELETE_CONTENTS = f"""
DELETE FROM llamasrv_contents WHERE {_THING} AND (%(part)s::text IS NULL OR part = %(part)s) RETURNING blob
"""
_BLOB = f"SELECT blob FROM llamasrv_contents WHERE {_THING} AND part = %(part)s"
_ADD = "INSERT INTO llamasrv_pieces (blob, size, data) VALUES (%(blob)s, %(size)s, %(data)s)"
# Returns the blob that had this name before.
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
# FOR SHARE: a concurrent deletion of the source waits, and then finds its pieces still in use.
_LINK = """
INSERT INTO llamasrv_contents (shelf, owner, id, part, blob)
SELECT %(shelf)s, %(owner)s, %(id)s, %(part)s, blob FROM llamasrv_contents
WHERE shelf = %(s_shelf)s AND owner = %(s_owner)s AND id = %(s_id)s AND part = %(s_part)s FOR SHARE
"""
_UNUSED = "NOT EXISTS (SELECT FROM llamasrv_contents c WHERE c.blob = llamasrv_pieces.blob)"
_DROP = f"""
WITH gone AS (DELETE FROM llamasrv_pieces WHERE blob = %(blob)s AND {_UNUSED} RETURNING size)
SELECT coalesce(sum(size), 0) FROM gone
"""
_SWEEP = f"DELETE FROM llamasrv_pieces WHERE made < to_timestamp(%(before)s) AND {_UNUSED}"
# Reads pieces up to PIECE bytes at a time: a journal consists of many small ones.
_PIECES = """
SELECT n, data FROM (
    SELECT n, data, size, sum(size) OVER (ORDER BY n) AS total FROM (
        SELECT n, data, size FROM llamasrv_pieces WHERE blob = %(blob)s AND n > %(after)s ORDER BY n LIMIT 1000
    ) next
) summed WHERE total - size < %(most)s ORDER BY n
"""
_SIZES = """
SELECT c.blob, coalesce(sum(p.size), 0) FROM llamasrv_contents c LEFT JOIN llamasrv_pieces p ON p.blob = c.blob
WHERE c.shelf = %(shelf)s AND c.owner = %(owner)s AND c.id = ANY(%(ids)s) GROUP BY c.blob, c.id, c.part
"""
_ADD_TO_SUM = """
INSERT INTO llamasrv_sums AS s (name, amount)
SELECT %(name)s, greatest(0, %(amount)s::bigint) WHERE %(most)s::bigint IS NULL OR %(amount)s <= %(most)s
ON CONFLICT (name) DO UPDATE SET amount = greatest(0, s.amount + %(amount)s)
WHERE %(most)s::bigint IS NULL OR s.amount + %(amount)s <= %(most)s
"""
_SUMS = "SELECT name, amount FROM llamasrv_sums"
_RENEW_LOCK = """
INSERT INTO llamasrv_locks AS l (name, holder, until)
VALUES (%(name)s, %(holder)s, now() + %(seconds)s * interval '1 second')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < now()
"""
_OLD_LOCKS = "DELETE FROM llamasrv_locks WHERE until < to_timestamp(%(before)s)"
_RELEASE_LOCK = "DELETE FROM llamasrv_locks WHERE name = %(name)s AND holder = %(holder)s"


class PostgresShelf(Shelf):
    """`connection` lends a database connection for a block."""

    blocks = False  # sockets yield to other greenlets

    def __init__(self, connection: Callable[[], AbstractContextManager[Any]], name: str) -> None:
        self.connection = connection
        self.name = name

    def put(self, owner: str, id: str, body: bytes, *, is_open: bool = False) -> None:
        self._run(_PUT, owner=owner, id=id, body=body, is_open=is_open)

    def close(self, owner: str, id: str) -> None:
        self._run(_CLOSE, owner=owner, id=id)

    def read(self, owner: str, ids: Sequence[str]) -> list[bytes | None]:
        found = dict(self._rows(_READ, owner=owner, ids=list(ids)))
        return [found.get(id) for id in ids]

    def owners(self) -> list[str]:
        return [owner for (owner,) in self._rows(_OWNERS)]

    def ids(self, owner: str) -> list[str]:
        [(ids,)] = self._rows(_IDS, owner=owner)
        return (ids or "").split()

    def open_ids(self) -> list[tuple[str, str]]:
        return [(owner, id) for owner, id in self._rows(_OPEN_IDS)]

    def _delete(self, owner: str, id: str, part: str | None) -> int:
        if part is None:
            self._run(_DELETE, owner=owner, id=id)
        return sum(self._drop(blob) for (blob,) in self._rows(_DELETE_CONTENTS, owner=owner, id=id, part=part))

    def _drop(self, blob: str) -> int:
        """Delete the pieces of a blob that no content names. Returns the bytes freed."""
        [(freed,)] = self._rows(_DROP, blob=blob)
        return int(freed)

    @contextmanager
    def _writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        blob = secrets.token_hex(16)
        writer = PieceWriter(lambda piece: self.add(blob, piece))
        try:
            yield writer.write
            writer.finish()
            [(earlier,)] = self._rows(_NAME, owner=owner, id=id, part=part, blob=blob)
        except BaseException:
            self._drop(blob)
            raise
        if earlier is not None:
            self._drop(earlier)

    def _appending(self, owner: str, id: str, part: str) -> PostgresAppender:
        self._run(_NAME_NEW, owner=owner, id=id, part=part, blob=secrets.token_hex(16))
        [(blob,)] = self._rows(_BLOB, owner=owner, id=id, part=part)
        return PostgresAppender(self, blob)

    def add(self, blob: str, data: bytes) -> None:
        self._run(_ADD, blob=blob, size=len(data), data=data)

    def _link(self, owner: str, id: str, part: str, source: StoredContent) -> bool:
        assert isinstance(source.shelf, PostgresShelf)
        other = {"s_shelf": source.shelf.name, "s_owner": source.owner, "s_id": source.id, "s_part": source.part}
        return self._run(_LINK, owner=owner, id=id, part=part, **other) > 0

    def pieces(self, owner: str, id: str, part: str) -> Generator[bytes, None, None]:
        after = -1
        for (blob,) in self._rows(_BLOB, owner=owner, id=id, part=part):
            while rows := self._rows(_PIECES, blob=blob, after=after, most=PIECE):
                after = rows[-1][0]
                yield b"".join(data for _, data in rows)

    def sizes(self, owner: str) -> Iterator[tuple[Hashable, int]]:
        ids = self.ids(owner)
        for start in range(0, len(ids), AT_ONCE):
            for blob, size in self._rows(_SIZES, owner=owner, ids=ids[start : start + AT_ONCE]):
                yield blob, int(size)
            self.breathe()

    def sweep(self, before: float) -> None:
        self._run(_SWEEP, before=before)
        self._run(_OLD_LOCKS, before=before)

    def lock(self) -> ExpiringLock:
        return ExpiringLock(self.renew_lock, self.release_lock)

    def claims(self, seconds: float = LOCK_SECONDS) -> Claims:
        return Claims(
            lambda name, holder, seconds: self._renew(f"{self.name}:{name}", holder, seconds),
            lambda name, holder: self._release(f"{self.name}:{name}", holder),
            seconds,
        )

    def ledger(self) -> PostgresLedger:
        return PostgresLedger(self.connection)

    def renew_lock(self, holder: str, seconds: float) -> bool:
        return self._renew(self.name, holder, seconds)

    def _renew(self, name: str, holder: str, seconds: float) -> bool:
        return self._run(_RENEW_LOCK, name=name, holder=holder, seconds=seconds) > 0

    def release_lock(self, holder: str) -> None:
        self._release(self.name, holder)

    def _release(self, name: str, holder: str) -> None:
        self._run(_RELEASE_LOCK, name=name, holder=holder)

    def _run(self, text: str, **named: Any) -> int:
        """Returns the number of rows changed."""
        with self.connection() as db:
            return int(db.execute(text, {"shelf": self.name, **named}).rowcount)

    def _rows(self, text: str, **named: Any) -> list[Any]:
        with self.connection() as db:
            return list(db.execute(text, {"shelf": self.name, **named}).fetchall())


class PostgresAppender:
    """Appends each line as a row, hence atomically."""

    def __init__(self, shelf: PostgresShelf, blob: str) -> None:
        self._shelf, self._blob = shelf, blob

    def add(self, line: bytes) -> None:
        self._shelf.add(self._blob, line)

    def close(self) -> None: ...


class PostgresLedger:
    """One ledger for all shelves of a server."""

    def __init__(self, connection: Callable[[], AbstractContextManager[Any]]) -> None:
        self._connection = connection

    def add(self, name: str, amount: int, most: int | None = None) -> bool:
        with self._connection() as db:
            return bool(db.execute(_ADD_TO_SUM, {"name": name, "amount": amount, "most": most}).rowcount)

    def sums(self) -> dict[str, int]:
        with self._connection() as db:
            return {name: int(amount) for name, amount in db.execute(_SUMS).fetchall()}
