"""How each protocol says what went wrong: one table a dialect, from status to its own words."""

from __future__ import annotations

from typing import Any

import orjson

from llamasrv.errors import InvalidRequest, LlamasrvError

OPENAI_TYPES = {
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}
"""Status to `type`; every other one is `invalid_request_error`."""


def refused_request(status: int, message: str) -> bytes:
    """The body for a request that was refused before it was one of a protocol: a head or framing that is no HTTP."""
    error: LlamasrvError = LlamasrvError(message) if status >= 500 else InvalidRequest(message, code="invalid_http")
    error.status = status
    return openai_body(error)


def openai_error(error: LlamasrvError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": OPENAI_TYPES.get(error.status, "invalid_request_error"),
            "param": error.param,
            "code": error.code,
        }
    }


def openai_body(error: LlamasrvError) -> bytes:
    return orjson.dumps(openai_error(error))
