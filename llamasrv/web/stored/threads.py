"""Message threads as requests see them: turns found by owner, continued once, kept.

In the store that responses have, under the ids of the replies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from llamasrv.errors import LlamasrvError
from llamasrv.protocols.anthropic.threads import Turn, not_found
from llamasrv.store import ResponseStore, StoredEntry
from llamasrv.web.stored.responses import asking

log = logging.getLogger("llamasrv")

_MESSAGE = re.compile(r"msg_[0-9a-f]{48}\Z")


class StoredThreads:
    """The threads of one server. `store` None: none."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store

    @property
    def keeps(self) -> bool:
        return self._store is not None

    def turns(self, owner: str, id: str) -> Sequence[Turn]:
        """All turns up to this reply, oldest first. Raises ThreadNotFound, also for another owner's thread."""
        entries: list[StoredEntry] = []
        if self._store is not None and _MESSAGE.match(id):
            entries = asking(self._store, self._store.chain, owner, id)
        if not entries or entries[0].previous is not None:
            raise not_found(id)
        return [Turn.unpack(entry.body) for entry in entries]

    def keep(self, owner: str, id: str, turn: Turn, previous: str | None, earlier: Sequence[Turn]) -> None:
        """Store a turn, and note that the turn before it has been continued. If that fails, the log has the reason:
        the next turn then finds no thread, and its client sends the whole conversation."""
        if self._store is None:
            return
        try:
            asking(self._store, _put, self._store, owner, id, turn, previous, earlier)
        except LlamasrvError as error:
            log.warning("the thread up to %s is not kept: %s", id, error.message)


def _put(store: ResponseStore, owner: str, id: str, turn: Turn, previous: str | None, earlier: Sequence[Turn]) -> None:
    store.put(owner, StoredEntry(id, turn.pack(), previous))
    if previous is not None:
        before = store.get(owner, previous)
        if before is not None:
            store.put(owner, before._replace(body=earlier[-1]._replace(continued=True).pack()))
