"""/v1/batches: the request that creates one, and the lines of its input and output.

A line of the input is a request to one of ENDPOINTS with a name of the client's choice; a line of the output is the
answer under that name, in no promised order. Requests that were refused or failed go to a separate file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.schema import String, WireSchema
from llamasrv.protocols.openai.responses.schema import Metadata

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/decisions")
WINDOW = 86_400  # max seconds that a batch may take: OpenAI's only window
CUSTOM_ID = 512  # max characters

_LEFT = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, since its batch was cancelled."),
}


class BatchSchema(WireSchema):
    input_file_id = String("a file of requests, uploaded with the purpose `batch`", required=True)
    endpoint = String("the path that all of them go to: " + ", ".join(f"`{path}`" for path in ENDPOINTS), required=True)
    completion_window = String("`24h`", required=True)
    metadata = Metadata("kept with the batch")


class BatchFields(NamedTuple):
    input_file: str
    endpoint: str
    metadata: dict[str, str] | None


class Line(NamedTuple):
    """One request of a batch."""

    custom_id: str
    body: dict[str, Any]


class LineError(Exception):
    """A line that is not a valid request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


class BatchesEndpoint(SchemaEndpoint):
    schema = BatchSchema

    def parse(self, body: Mapping[str, Any]) -> BatchFields:
        data = self._load(body)
        if data["endpoint"] not in ENDPOINTS:
            raise InvalidRequest(f"Invalid 'endpoint': expected one of {', '.join(ENDPOINTS)}.", param="endpoint")
        if data["completion_window"] != "24h":
            raise InvalidRequest("Invalid 'completion_window': expected '24h'.", param="completion_window")
        return BatchFields(data["input_file_id"], data["endpoint"], data.get("metadata"))


def parse_line(line: bytes, endpoint: str) -> Line:
    """Raises LineError."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise LineError("invalid_json_line", "This line is not parseable as valid JSON.") from None
    if type(value) is not dict:
        raise LineError("invalid_request", "Expected an object.")
    custom_id = value.get("custom_id")
    if type(custom_id) is not str or not 0 < len(custom_id) <= CUSTOM_ID:
        raise LineError("missing_required_parameter", f"Expected a string of 1 to {CUSTOM_ID} characters.", "custom_id")
    if value.get("method", "POST") != "POST":
        raise LineError("invalid_method", "Expected 'POST'.", "method")
    if value.get("url") != endpoint:
        raise LineError("mismatched_url", f"Expected '{endpoint}', the endpoint of the batch.", "url")
    body = value.get("body")
    if type(body) is not dict:
        raise LineError("invalid_request", "Expected an object.", "body")
    if body.get("stream"):
        raise LineError("invalid_request", "Requests in a batch cannot be streamed.", "body.stream")
    if body.get("background"):
        raise LineError("invalid_request", "A batch runs in the background already.", "body.background")
    return Line(custom_id, body)


def answer_line(id: str, custom_id: str, status: int | None, request_id: str, body: bytes) -> bytes:
    """A line of the output. `body` is JSON; `status` None: there was no answer, and `body` says why."""
    line: dict[str, Any] = {"id": id, "custom_id": custom_id, "response": None, "error": None}
    if status is None:
        code, message = _LEFT[orjson.loads(body)]
        line["error"] = {"code": code, "message": message}
    else:
        line["response"] = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return orjson.dumps(line) + b"\n"


def shown(batch: Any) -> dict[str, Any]:
    times = {
        f"{status}_at": batch.times.get(status)
        for status in (
            "in_progress",
            "finalizing",
            "completed",
            "failed",
            "expired",
            "cancelling",
            "cancelled",
        )
    }
    errors = None if not batch.errors else {"object": "list", "data": batch.errors}
    usage = {name: batch.usage.get(name, 0) for name in ("input_tokens", "output_tokens", "total_tokens")}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": errors,
        "input_file_id": batch.input_file,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
        **times,
        "request_counts": {
            "total": batch.total,
            "completed": batch.succeeded,
            "failed": batch.errored + batch.left,
        },
        "usage": {
            **usage,
            "input_tokens_details": {"cached_tokens": batch.usage.get("cached_tokens", 0)},
            "output_tokens_details": {"reasoning_tokens": batch.usage.get("reasoning_tokens", 0)},
        },
        "metadata": batch.metadata,
    }


def batch_body(batch: Any) -> bytes:
    return orjson.dumps(shown(batch))
