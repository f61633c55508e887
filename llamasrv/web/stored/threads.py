"""Message threads as requests see them: turns found by owner, continued once, kept.

In the store that responses have, under the ids of the replies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from llamasrv.concurrency import compute_off_hub
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.anthropic.threads import Turn, not_found
from llamasrv.store import ResponseStore, StoredEntry
from llamasrv.web.stored.responses import asking, made_of

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
        if self._store is None or not _MESSAGE.match(id):
            raise not_found(id)
        return asking(self._store, _chain, self._store, owner, id)

    def keep(self, owner: str, id: str, turn: Turn, previous: str | None, earlier: Sequence[Turn]) -> None:
        """Store a turn, and note that the turn before it has been continued. If that fails, the log has the reason:
        the next turn then finds no thread, and its client sends the whole conversation."""
        if self._store is None:
            return
        try:
            asking(self._store, _put, self._store, owner, id, turn, previous, earlier)
        except LlamasrvError as error:
            log.warning("the thread up to %s is not kept: %s", id, error.message)


def _chain(store: ResponseStore, owner: str, id: str) -> list[Turn]:
    entries = store.chain(owner, id)
    if not entries or entries[0].previous is not None:
        raise not_found(id)
    return made_of(entries, lambda: [Turn.unpack(entry.body) for entry in entries])


def _put(store: ResponseStore, owner: str, id: str, turn: Turn, previous: str | None, earlier: Sequence[Turn]) -> None:
    store.put(owner, StoredEntry(id, compute_off_hub(turn.pack), previous))
    if previous is not None:
        before = store.get(owner, previous)
        if before is not None:
            body = compute_off_hub(earlier[-1]._replace(continued=True).pack)
            store.put(owner, before._replace(body=body))
