"""Stored conversations as requests see them: found by owner, changed one change at a time.

In the store that responses have. Changes of one server follow one another; of several servers that change the same
conversation at the same moment, the last one wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from llamasrv.concurrency import compute_off_hub
from llamasrv.errors import LlamasrvError, Unsupported
from llamasrv.protocols.openai.conversations import StoredConversation, is_conversation_id, not_found
from llamasrv.protocols.openai.responses.reply import Keep
from llamasrv.protocols.openai.responses.stored import CHAINED, Stored
from llamasrv.store import CHAIN_BYTES, ConversationTooLong, ResponseStore, StoredEntry
from llamasrv.web.stored.changes import Changes
from llamasrv.web.stored.responses import asking, made_of

log = logging.getLogger("llamasrv")

R = TypeVar("R")


class StoredConversations:
    """The conversations of one server. `store` None: none can be created. `patience`: seconds to wait for earlier
    changes of the same conversation."""

    def __init__(self, store: ResponseStore | None, patience: float = 20.0) -> None:
        self._store = store
        self.changes = Changes("this conversation", patience)

    def read(self, owner: str, id: str, use: Callable[[StoredConversation], R]) -> R:
        """The result of `use`, which runs off the hub, as a conversation may be large. Raises ConversationNotFound,
        also for another owner's conversation."""
        store = self._having(id)
        made: R = asking(store, _read, store, owner, id, use)
        return made

    def keep(self, owner: str, conversation: StoredConversation) -> None:
        if self._store is None:
            raise Unsupported("Conversations are not supported here: this server has no store.")
        asking(self._store, _put, self._store, owner, conversation.id, lambda: (_packed(conversation), None))

    def change(
        self,
        owner: str,
        id: str,
        how: Callable[[StoredConversation], StoredConversation],
        use: Callable[[StoredConversation], R],
    ) -> R:
        """Replace it with the result of `how`. Returns the result of `use` on that."""
        store = self._having(id)
        with self.changes.of((owner, id)):
            made: R = asking(store, _change, store, owner, id, how, use)
        return made

    def _having(self, id: str) -> ResponseStore:
        """The store, for an id that it may hold; raises otherwise."""
        if self._store is None or not is_conversation_id(id):
            raise not_found(id)
        return self._store

    def delete(self, owner: str, id: str) -> None:
        if self._store is None or not is_conversation_id(id) or not asking(self._store, self._store.delete, owner, id):
            raise not_found(id)

    def adding(self, owner: str, id: str | None, keep: Keep, *, store: bool) -> Keep:
        """A `keep` that stores the response only where `store` is true, and adds it to its conversation if it ended
        well."""
        if id is None:
            return keep

        def kept(stored: Stored) -> bool:
            if stored.response["status"] in CHAINED:
                self._add(owner, id, stored)
            return keep(stored) if store else True

        return kept

    def _add(self, owner: str, id: str, stored: Stored) -> None:
        def extended(conversation: StoredConversation) -> StoredConversation:
            return conversation._replace(items=[*conversation.items, *stored.items])

        try:
            self.change(owner, id, extended, lambda conversation: None)
        except LlamasrvError as error:
            log.warning("response %s is not added to %s: %s", stored.response["id"], id, error.message)


def _get(store: ResponseStore, owner: str, id: str) -> StoredEntry:
    entry = store.get(owner, id)
    if entry is None:
        raise not_found(id)
    return entry


def _read(store: ResponseStore, owner: str, id: str, use: Callable[[StoredConversation], R]) -> R:
    entry = _get(store, owner, id)
    return made_of([entry], lambda: use(StoredConversation.unpack(entry.body)))


def _change(
    store: ResponseStore,
    owner: str,
    id: str,
    how: Callable[[StoredConversation], StoredConversation],
    use: Callable[[StoredConversation], R],
) -> R:
    entry = _get(store, owner, id)

    def changed() -> tuple[bytes, R]:
        conversation = how(StoredConversation.unpack(entry.body))
        return _packed(conversation), use(conversation)

    return _put(store, owner, id, changed)


def _put(store: ResponseStore, owner: str, id: str, make: Callable[[], tuple[bytes, R]]) -> R:
    """Store the body that `make` makes; returns what else it does."""
    body, made = compute_off_hub(make)
    store.put(owner, StoredEntry(id, body))
    return made


def _packed(conversation: StoredConversation) -> bytes:
    body = conversation.pack()
    if len(body) > CHAIN_BYTES:
        raise ConversationTooLong(f"The conversation is longer than {CHAIN_BYTES} bytes.", param="items")
    return body
