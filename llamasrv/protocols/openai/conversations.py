"""/v1/conversations: items that responses are made from and added to, and the bodies that change them.

JSON in, values out, and back. Items are read as those of a response's input are, in the place where they will stand.
Knows no store.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest, NotFound
from llamasrv.protocols.common.loader import inside, loader_of
from llamasrv.protocols.common.schema import WireField, WireSchema
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses.items import Turns, shown
from llamasrv.protocols.openai.responses.schema import Metadata, items_of
from llamasrv.protocols.openai.responses.stored import page_of
from llamasrv.protocols.openai.responses.tools import ToolSet

_ID = re.compile(r"conv_[0-9a-f]{48}\Z")


class ConversationNotFound(NotFound):
    code = "conversation_not_found"


class StoredConversation(NamedTuple):
    """One stored conversation: its items in order, each with an id."""

    id: str
    created_at: int
    metadata: dict[str, str]
    items: list[dict[str, Any]]

    @classmethod
    def new(cls, metadata: dict[str, str]) -> StoredConversation:
        """The id cannot be guessed: without API keys, knowing it is enough to read the conversation."""
        return cls(f"conv_{secrets.token_hex(24)}", int(time.time()), metadata, [])

    def pack(self) -> bytes:
        return orjson.dumps(self._asdict())

    @classmethod
    def unpack(cls, data: bytes) -> StoredConversation:
        return cls(**orjson.loads(data))

    def item(self, id: str) -> dict[str, Any]:
        found = next((item for item in self.items if item["id"] == id), None)
        if found is None:
            raise NotFound(f"Item with id '{id[:80]}' not found.", param="item_id", code="item_not_found")
        return found

    def without(self, id: str) -> StoredConversation:
        gone = self.item(id)
        return self._replace(items=[item for item in self.items if item is not gone])


class Items(WireField):
    """Items like those of a response's input; each is checked once its conversation is known."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return items_of(value, self.limits.messages, "an array of items")


class ConversationSchema(WireSchema):
    items = Items("what it begins with")
    metadata = Metadata("kept with the conversation")


class ItemsSchema(WireSchema):
    items = Items("what comes next", required=True)


class MetadataSchema(WireSchema):
    metadata = Metadata("in the place of what there was")


class Conversations:
    """These endpoints, with their limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.create = loader_of(ConversationSchema, limits)
        self.items = loader_of(ItemsSchema, limits)
        self.metadata = loader_of(MetadataSchema, limits)

    def parse_create(self, body: Mapping[str, Any]) -> StoredConversation:
        data = self.create.load(body)
        return self.extended(StoredConversation.new(data.get("metadata", {})), data.get("items", []))

    def parse_items(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.items.load(body)["items"]
        return items

    def parse_metadata(self, body: Mapping[str, Any]) -> dict[str, str]:
        metadata: dict[str, str] = self.metadata.load(body).get("metadata", {})
        return metadata

    def extended(self, conversation: StoredConversation, items: Sequence[dict[str, Any]]) -> StoredConversation:
        """The conversation with these items added. Raises InvalidRequest for items that no conversation can continue
        with."""
        most = self._limits.messages
        if len(conversation.items) + len(items) > most:
            raise InvalidRequest(f"Invalid 'items': a conversation has at most {most} items.", param="items")
        turns = Turns(ToolSet(self._limits.tools), self._limits)
        for item in conversation.items:
            turns.add(item)
        with inside("items"):
            for at, item in enumerate(items):
                turns.add(item, at)
        taken = {item["id"] for item in conversation.items}
        # A base of its own for the ids of each addition: no item has had the same before.
        added = shown(list(items), f"conv_{secrets.token_hex(24)}", taken)
        return conversation._replace(items=[*conversation.items, *added])


def is_conversation_id(text: str) -> bool:
    return _ID.match(text) is not None


def not_found(id: str) -> ConversationNotFound:
    return ConversationNotFound(f"Conversation with id '{id[:80]}' not found.", param="conversation")


def conversation_body(conversation: StoredConversation) -> bytes:
    return orjson.dumps(
        {
            "id": conversation.id,
            "object": "conversation",
            "created_at": conversation.created_at,
            "metadata": conversation.metadata,
        }
    )


def deleted_body(id: str) -> bytes:
    return orjson.dumps({"id": id, "object": "conversation.deleted", "deleted": True})


def item_body(item: dict[str, Any]) -> bytes:
    return orjson.dumps(item)


def items_body(items: list[dict[str, Any]]) -> bytes:
    """The added items, as a list of their own."""
    return orjson.dumps(page_of(items, has_more=False))
