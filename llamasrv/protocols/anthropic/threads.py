"""Conversations that the server would hold between turns: `thread` of a request."""

from __future__ import annotations

from typing import Any

from llamasrv.errors import Unsupported
from llamasrv.protocols.schema import REFUSED, WireField


class ThreadUnsupported(Unsupported):
    """Told in the words at which the SDKs send the whole conversation instead."""

    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class Thread(WireField):
    verdict = REFUSED

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> None:
        raise ThreadUnsupported(
            "'thread' is not supported by this server: send the whole conversation in 'messages'.", param="thread"
        )
