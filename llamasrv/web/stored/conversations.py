"""Stored conversations as requests see them: found by owner, changed one change at a time.

In the store that responses have. Changes of one server follow one another; of several servers that change the same
conversation at the same moment, the last one wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from llamasrv.errors import LlamasrvError, Unsupported
from llamasrv.protocols.openai.conversations import StoredConversation, is_conversation_id, not_found
from llamasrv.protocols.openai.responses.reply import Keep
from llamasrv.protocols.openai.responses.stored import CHAINED, Stored
from llamasrv.store import CHAIN_BYTES, ConversationTooLong, ResponseStore, StoredEntry
from llamasrv.web.stored.changes import Changes
from llamasrv.web.stored.responses import asking

log = logging.getLogger("llamasrv")


class StoredConversations:
    """The conversations of one server. `store` None: none can be created. `patience`: seconds to wait for earlier
    changes of the same conversation."""

    def __init__(self, store: ResponseStore | None, patience: float = 20.0) -> None:
        self._store = store
        self.changes = Changes("this conversation", patience)

    def find(self, owner: str, id: str) -> StoredConversation:
        """Raises ConversationNotFound, also for another owner's conversation."""
        entry = None
        if self._store is not None and is_conversation_id(id):
            entry = asking(self._store, self._store.get, owner, id)
        if entry is None:
            raise not_found(id)
        return StoredConversation.unpack(entry.body)

    def keep(self, owner: str, conversation: StoredConversation) -> StoredConversation:
        if self._store is None:
            raise Unsupported("Conversations are not supported here: this server has no store.")
        body = conversation.pack()
        if len(body) > CHAIN_BYTES:
            raise ConversationTooLong(f"The conversation is longer than {CHAIN_BYTES} bytes.", param="items")
        asking(self._store, self._store.put, owner, StoredEntry(conversation.id, body))
        return conversation

    def change(
        self, owner: str, id: str, how: Callable[[StoredConversation], StoredConversation]
    ) -> StoredConversation:
        """Replace it with what `how` returns."""
        with self.changes.of((owner, id)):
            return self.keep(owner, how(self.find(owner, id)))

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
            self.change(owner, id, extended)
        except LlamasrvError as error:
            log.warning("response %s is not added to %s: %s", stored.response["id"], id, error.message)
