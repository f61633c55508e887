"""Background runs of servers that share a store: their requests, and the events that readers may have received.

    StoredRun   one run; it exists until the run has ended
    RunStore    the runs on a shelf whose servers can claim them

A run is a record and two contents: the request, and a journal of the chunks that readers got. Knows no protocol, nor
what a chunk means, only that it has no line break.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from llamasrv.store import ResponseStore
from llamasrv.store.shelf import Appender, Claims, Shelf, StoredContent, owner_key

REQUEST, JOURNAL = "input", "journal"


class StoredRun(NamedTuple):
    id: str
    owner: str
    model: str
    attempts: int = 1  # servers that have started it


class Delivered(NamedTuple):
    """Content of a journal: the events, and the number of tokens generated for them, in all and of reasoning."""

    chunks: list[bytes]
    tokens: int = 0
    reasoning: int = 0


class RunStore:
    """A server claims its runs and renews the claims every few seconds; an unclaimed run is abandoned."""

    def __init__(self, shelf: Shelf, claims: Claims) -> None:
        self._shelf, self._claims = shelf, claims

    @classmethod
    def of(cls, store: ResponseStore | None) -> RunStore | None:
        """None: this store has one server only."""
        shelf = None if store is None else store.shelf("runs")
        claims = None if shelf is None else shelf.claims()
        return None if shelf is None or claims is None else cls(shelf, claims)

    def begin(self, run: StoredRun, request: bytes) -> None:
        """Store a new run and claim it."""
        key = owner_key(run.owner)
        self.claim(run.id)
        with self._shelf.writing(key, run.id, REQUEST) as put:
            put(request)
        self.save(run)

    def save(self, run: StoredRun) -> None:
        self._shelf.put(owner_key(run.owner), run.id, json.dumps(run._asdict()).encode(), is_open=True)

    def claim(self, id: str) -> bool:
        """Whether this server has the claim now."""
        return self._claims.take(id)

    def release(self, id: str) -> None:
        """Let another server claim it at once."""
        self._claims.release(id)

    def runs(self) -> list[StoredRun]:
        """Runs that have not ended, of all owners."""
        found = []
        for key, id in self._shelf.open_ids():
            body = self._shelf.get(key, id)
            with suppress(ValueError, TypeError):
                found += [] if body is None else [StoredRun(**json.loads(body))]
        return found

    def exists(self, owner: str, id: str) -> bool:
        return self._shelf.get(owner_key(owner), id) is not None

    def request(self, run: StoredRun) -> bytes:
        return self._content(run.owner, run.id, REQUEST).read()

    def delivered(self, owner: str, id: str) -> Delivered:
        delivered = Delivered([])
        for line in self._content(owner, id, JOURNAL).open():
            if line.startswith(b"#"):
                delivered = Delivered(delivered.chunks, *map(int, line[1:].split()))
            else:
                delivered.chunks.append(line[:-1])
        return delivered

    def journal(self, owner: str, id: str) -> RunJournal:
        return RunJournal(self._shelf.appending(owner_key(owner), id, JOURNAL))

    def end(self, owner: str, id: str) -> None:
        self._shelf.delete(owner_key(owner), id)

    def _content(self, owner: str, id: str, part: str) -> StoredContent:
        return StoredContent(self._shelf, owner_key(owner), id, part)


class RunJournal:
    def __init__(self, lines: Appender) -> None:
        self._lines = lines

    def add(self, chunks: Sequence[bytes], tokens: int, reasoning: int) -> None:
        """All of it or nothing. Once this returns, other servers see it."""
        self._lines.add(b"".join(chunk + b"\n" for chunk in chunks) + b"#%d %d\n" % (tokens, reasoning))

    def close(self) -> None:
        self._lines.close()
