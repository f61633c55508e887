"""Stored responses as requests see them: found by owner, continued, referred to, deleted.

Between the store, which knows bytes, and the protocol, which knows what they mean. A response whose generating
process is gone counts as failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from llamasrv.concurrency import compute_off_hub, off_hub
from llamasrv.errors import InvalidRequest, LlamasrvError, NotFound
from llamasrv.protocols.openai.responses.ids import is_response_id, response_of
from llamasrv.protocols.openai.responses.stored import Stored, not_found
from llamasrv.store import ResponseStore, StoredEntry

R = TypeVar("R")


log = logging.getLogger("llamasrv")

LARGE = 1 << 17  # bytes of stored JSON that take milliseconds to parse

_REFERENCES = 100  # responses that one request may take items of


class ResponseNotFound(NotFound):
    code = "response_not_found"


class StoredResponses:
    """What one server remembers. `store` None: nothing."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store
        self.num_unstored = 0  # responses that could not be stored

    @property
    def keeps(self) -> bool:
        return self._store is not None

    def find(self, owner: str, id: str) -> Stored:
        """Raises ResponseNotFound, also for another owner's response."""
        found = None
        if self._store is not None and is_response_id(id):
            found = self._off(self._get, self._store, owner, id)
        if found is None:
            raise ResponseNotFound(f"Response with id '{id[:80]}' not found.", param="id")
        return found

    def conversation(self, owner: str, id: str | None) -> list[dict[str, Any]]:
        """The items of all turns up to this response, oldest first. Raises where a turn is missing or cannot be
        continued."""
        if id is None:
            return []
        items = self._items_until(owner, id)
        if items is None:
            raise not_found(id)
        return items

    def items_until(self, owner: str, stored: Stored) -> list[dict[str, Any]]:
        """Everything that a response was made from: the earlier turns that still exist, and its own input."""
        previous = stored.response["previous_response_id"]
        earlier = [] if previous is None else self._items_until(owner, previous, whole=False) or []
        return [*earlier, *stored.input]

    def items(self, owner: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Single items by id; those that no longer exist are left out."""
        found = {}
        responses = dict.fromkeys(map(response_of, ids))
        if len(responses) > _REFERENCES:
            raise InvalidRequest(f"The input refers to items of more than {_REFERENCES} responses.", param="input")
        for response in responses:
            if response is None or self._store is None:
                continue
            stored = self._off(self._get, self._store, owner, response)
            if stored is not None:
                found.update({item["id"]: item for item in stored.items})
        return found

    def keep(self, owner: str, stored: Stored, lease: float | None = None) -> bool:
        """Whether it could be stored; if not, the reason is in the log."""
        if self._store is None:
            return False
        response = stored.response
        entry = (response["id"], stored, response["previous_response_id"], lease)
        try:
            self._off(_put, self._store, owner, *entry)
        except LlamasrvError as error:
            self.num_unstored += 1
            log.warning("response %s is not stored: %s", response["id"], error.message)
            return False
        return True

    def delete(self, owner: str, id: str) -> None:
        if self._store is None or not is_response_id(id) or not self._off(self._store.delete, owner, id):
            raise ResponseNotFound(f"Response with id '{id[:80]}' not found.", param="id")

    def _items_until(self, owner: str, id: str, *, whole: bool = True) -> list[dict[str, Any]] | None:
        """None: there is no such response. `whole`: to continue it."""
        if self._store is None or not is_response_id(id):
            return None
        return self._off(_items, self._store, owner, id, whole)

    def _off(self, function: Callable[..., R], *args: Any) -> R:
        assert self._store is not None
        return asking(self._store, function, *args)

    @staticmethod
    def _get(store: ResponseStore, owner: str, id: str) -> Stored | None:
        entry = store.get(owner, id)
        return None if entry is None else made_of([entry], lambda: _read(entry))


class Blocking(Protocol):
    @property
    def blocks(self) -> bool: ...


def asking(store: Blocking, function: Callable[..., R], *args: Any) -> R:
    """Call a function that uses a store or a shelf, and return its result. It may block a thread."""
    return off_hub(function, *args) if store.blocks else function(*args)


def _read(entry: StoredEntry) -> Stored:
    stored = Stored.unpack(entry.body)
    return stored.interrupted() if entry.lease is not None and entry.lease < time.time() else stored


def made_of(entries: Sequence[StoredEntry], make: Callable[[], R]) -> R:
    """What `make` makes of the entries, off the hub if they are large. What it drops is freed there, too."""
    return compute_off_hub(make) if sum(len(entry.body) for entry in entries) > LARGE else make()


def _items(store: ResponseStore, owner: str, id: str, whole: bool) -> list[dict[str, Any]] | None:
    entries = store.chain(owner, id)
    if not entries:
        return None
    if whole and entries[0].previous is not None:
        raise not_found(entries[0].previous)

    def items() -> list[dict[str, Any]]:
        turns = list(map(_read, entries))
        if whole:
            turns[-1].check_continued()
        return [item for turn in turns for item in turn.items]

    return made_of(entries, items)


def _put(store: ResponseStore, owner: str, id: str, stored: Stored, previous: str | None, lease: float | None) -> None:
    store.put(owner, StoredEntry(id, compute_off_hub(stored.pack), previous, lease))
