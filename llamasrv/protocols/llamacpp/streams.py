"""Chats and streams under way: POST /v1/streams/lookup says which streams are kept and how far they are, and
POST /v1/chat/completions/control ends the reasoning of a running chat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.schema import Ignored, Invalid, Names, String, WireSchema


class LookupSchema(WireSchema):
    conversation_ids = Names("inputs", 256, "what was sent as `X-Conversation-Id`")


class StreamLookup(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = LookupSchema

    def parse(self, body: Mapping[str, Any]) -> list[str]:
        return list(self._load(body).get("conversation_ids", ()))

    def body(self, found: Iterable[tuple[str, int, float, float | None]]) -> bytes:
        """`found`: name, bytes so far, start and end of each stream."""
        return orjson.dumps(
            [
                {
                    "conversation_id": name,
                    "is_done": completed is not None,
                    "total_bytes": total,
                    "started_at": int(started),
                    "completed_at": int(completed or 0),
                }
                for name, total, started, completed in found
            ]
        )


UNKNOWN = "no active completion for this id"
NOT_ENABLED = "reasoning control not enabled for this completion: send 'reasoning_control': true with its request"


class CompletionId(String):
    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not value:
            raise Invalid("must not be an empty string.")
        return value


class Action(String):
    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value != "reasoning_end":
            raise Invalid("unknown control action. Expected 'reasoning_end'.")
        return value


class ControlSchema(WireSchema):
    id = CompletionId("the `id` of the chat's reply, as its chunks have it", required=True)
    action = Action("`reasoning_end`: close the reasoning block now, and answer", required=True)
    model = Ignored("the id is enough")


class Control(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = ControlSchema

    def parse(self, body: Mapping[str, Any]) -> str:
        """The id of the completion."""
        id: str = self._load(body)["id"]
        return id

    def body(self, failure: str | None) -> bytes:
        """`failure`: why nothing was done; None if it was done."""
        return orjson.dumps({"success": True} if failure is None else {"success": False, "message": failure})
