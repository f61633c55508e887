"""SGLang's /open_session and /close_session: a name for a conversation, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from llamasrv.errors import MissingParameter
from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.sampling import session_named
from llamasrv.protocols.common.schema import Ignored, String, WireSchema


class SessionSchema(WireSchema):
    session_id = String("the name that requests have as `session_id`, or in the header `x-session-id`")
    capacity_of_str_len = Ignored("a conversation grows as long as the context")


class SessionNames(SchemaEndpoint):
    """Both endpoints, with their limits."""

    schema = SessionSchema

    def parse_open(self, body: Mapping[str, Any]) -> str:
        """The client's name, or a new one."""
        return str(self._load(body).get("session_id") or token_hex(16))

    def parse_close(self, body: Mapping[str, Any]) -> str:
        name = self._load(body).get("session_id")
        if not name:
            raise MissingParameter("session_id")
        return session_named(name)
