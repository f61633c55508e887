"""Errors in each protocol's dialect: one table per dialect, from status to its words.

A route belongs to the dialect whose prefix its path has; the rest is OpenAI's. That holds for routes that do not exist,
too, and for clients that were not let in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import ContextTooLong, InvalidRequest, LlamasrvError, ModelNotFound, QueueFull, Unavailable
from llamasrv.protocols.anthropic.words import message_of

OPENAI_TYPES = {
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "server_error",
    504: "server_error",
    507: "server_error",
}
"""Status to `type`; every other one is `invalid_request_error`."""

ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    507: "api_error",
    529: "overloaded_error",
}
"""Status to `type`; every other one is `invalid_request_error`."""

LLAMACPP_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "not_found_error",
    429: "unavailable_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "server_error",
    507: "server_error",
}
"""Status to `type`; every other one is `invalid_request_error`."""

GEMINI_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    507: "RESOURCE_EXHAUSTED",
}
"""Status to Google's name of it; every other one is `INVALID_ARGUMENT`."""

_STEP = re.compile(r"[^.\[\]]+")

_GOOGLE = "type.googleapis.com/google.rpc."

OVERLOADED = 529  # Anthropic's status for an overloaded server


def refused_request(status: int, message: str) -> bytes:
    """The body for a request that was refused before its protocol was known: its head or framing is not valid HTTP."""
    if status >= 500:
        return openai_body(LlamasrvError(message, status=status))
    return openai_body(InvalidRequest(message, code="invalid_http", status=status))


def openai_error(error: LlamasrvError) -> dict[str, Any]:
    body: dict[str, Any] = {
        "message": error.message,
        "type": OPENAI_TYPES.get(error.status, "invalid_request_error"),
        "param": error.param,
        "code": error.code,
    }
    if isinstance(error, ContextTooLong):
        body |= _sizes(error)
    return {"error": body}


def _sizes(error: ContextTooLong) -> dict[str, int]:
    """The sizes by which llama-server's clients shorten a conversation."""
    return {"n_prompt_tokens": error.num_prompt, "n_ctx": error.context}


def openai_body(error: LlamasrvError) -> bytes:
    return orjson.dumps(openai_error(error))


def anthropic_status(error: LlamasrvError) -> int:
    return OVERLOADED if isinstance(error, (QueueFull, Unavailable)) else error.status


def anthropic_body(error: LlamasrvError, request_id: str | None = None) -> bytes:
    kind = ANTHROPIC_TYPES.get(anthropic_status(error), "invalid_request_error")
    body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message_of(error)}}
    if error.details is not None:
        body["error"]["details"] = error.details
    if request_id is not None:
        body["request_id"] = request_id
    return orjson.dumps(body)


def ollama_status(error: LlamasrvError) -> int:
    return 503 if isinstance(error, QueueFull) else error.status


def ollama_body(error: LlamasrvError, request_id: str | None = None) -> bytes:
    message = error.message
    if isinstance(error, ModelNotFound):
        message = message[:1].lower() + message[1:]
    return orjson.dumps({"error": message})


def llamacpp_body(error: LlamasrvError) -> bytes:
    kind = "exceed_context_size_error" if isinstance(error, ContextTooLong) else LLAMACPP_TYPES.get(error.status)
    message = error.message
    if isinstance(error, ContextTooLong):
        most = f"the available context size ({error.context} tokens)"
        message = f"request ({error.num_prompt} tokens) exceeds {most}, try increasing it"
    body: dict[str, Any] = {"code": error.status, "message": message, "type": kind or "invalid_request_error"}
    if error.param is not None:
        body["param"] = error.param
    if isinstance(error, ContextTooLong):
        body |= _sizes(error)
    return orjson.dumps({"error": body})


def system_one_status(error: LlamasrvError) -> int:
    """The status of an error; System One answers an invalid field with 422."""
    if isinstance(error, ContextTooLong):
        return 413
    return 422 if error.status == 400 and error.param is not None else error.status


def system_one_body(error: LlamasrvError) -> bytes:
    """The body of an error: a list like pydantic's if a field is wrong, else an object."""
    kind = error.code or OPENAI_TYPES.get(error.status, "invalid_request_error")
    if system_one_status(error) != 422 or error.param is None:
        return orjson.dumps({"detail": {"error_type": kind, "message": error.message}})
    steps = (error.details or {}).get("loc") or _STEP.findall(error.param)
    return orjson.dumps({"detail": [{"loc": ["body", *steps], "msg": error.message, "type": kind}]})


def gemini_body(error: LlamasrvError) -> bytes:
    message = error.message
    if isinstance(error, ContextTooLong):
        most = f"the maximum number of tokens allowed ({error.context})"
        message = f"The input token count ({error.num_prompt}) exceeds {most}."
    details: list[dict[str, Any]] = []
    if error.param is not None:
        violation = {"field": error.param, "description": message}
        details.append({"@type": _GOOGLE + "BadRequest", "fieldViolations": [violation]})
    if error.retry_after is not None:
        details.append({"@type": _GOOGLE + "RetryInfo", "retryDelay": f"{error.retry_after:g}s"})
    status = GEMINI_STATUSES.get(error.status, "INVALID_ARGUMENT")
    body: dict[str, Any] = {"code": error.status, "message": message, "status": status}
    if details:
        body["details"] = details
    return orjson.dumps({"error": body})


class Dialect(NamedTuple):
    """How one protocol writes an error: the body, given the request's id, and the status."""

    body: Callable[[LlamasrvError, str], bytes]
    status: Callable[[LlamasrvError], int]


OPENAI = Dialect(lambda error, request_id: openai_body(error), lambda error: error.status)
ANTHROPIC = Dialect(anthropic_body, anthropic_status)
OLLAMA = Dialect(ollama_body, ollama_status)
GEMINI = Dialect(lambda error, request_id: gemini_body(error), lambda error: error.status)
SYSTEM_ONE = Dialect(lambda error, request_id: system_one_body(error), system_one_status)
LLAMACPP = Dialect(lambda error, request_id: llamacpp_body(error), lambda error: error.status)

NATIVE = (
    "/completion", "/infill", "/embedding", "/tokenize", "/detokenize", "/apply-template", "/props", "/slots",
    "/lora-adapters", "/v1/stream", "/chat/completions", "/tools",
)  # fmt: skip
EXACT = {"/metrics": LLAMACPP}
BY_PATH = (
    ("/v1/messages", ANTHROPIC),
    ("/api/", OLLAMA),
    ("/v1beta/", GEMINI),
    ("/v1/systemone", SYSTEM_ONE),
    ("/systemone", SYSTEM_ONE),
    *((path, LLAMACPP) for path in NATIVE),
)


def dialect(path: str, *, anthropic: bool = False) -> Dialect:
    """The dialect of a path. `anthropic`: the client identified itself as Anthropic's, which decides where the path
    does not."""
    if path in EXACT:
        return EXACT[path]
    for prefix, found in BY_PATH:
        if path.startswith(prefix):
            return found
    return ANTHROPIC if anthropic else OPENAI
