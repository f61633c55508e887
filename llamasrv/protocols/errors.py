"""How each protocol says what went wrong: one table a dialect, from status to its own words."""

from __future__ import annotations

from typing import Any

import orjson

from llamasrv.errors import LlamasrvError

OPENAI_TYPES = {
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}
"""Status to `type`; every other one is `invalid_request_error`."""


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
