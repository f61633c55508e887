"""POST /v1/streams/lookup: which of the given streams are kept, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.schema import Names, WireSchema


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
