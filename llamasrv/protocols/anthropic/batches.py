"""/v1/messages/batches: a batch's requests, its state, the lines of its results, and lists in pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest

MESSAGES = "/v1/messages"
MOST = 100_000  # max requests per batch

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_LEFT = {"expired": "expired", "cancelled": "canceled"}


class BatchRequests(NamedTuple):
    """The number of requests, a line for each, and names in the body that have no effect."""

    total: int
    lines: bytes
    ignored: tuple[str, ...]


def parse_requests(body: Mapping[str, Any]) -> BatchRequests:
    """The requests themselves are checked when their turn comes, as Anthropic does."""
    requests = body.get("requests")
    if type(requests) is not list or not 0 < len(requests) <= MOST:
        raise InvalidRequest(f"requests: expected an array of 1 to {MOST} requests", param="requests")
    lines, seen = [], set()
    ignored = dict.fromkeys(name for name in body if name != "requests" and body[name] is not None)
    for at, request in enumerate(requests):
        where = f"requests.{at}"
        if type(request) is not dict:
            raise InvalidRequest(f"{where}: expected an object", param=where)
        custom_id, params = request.get("custom_id"), request.get("params")
        if type(custom_id) is not str or not _CUSTOM_ID.match(custom_id):
            raise InvalidRequest(
                f"{where}.custom_id: expected 1 to 64 letters, digits, '_' and '-'", param=f"{where}.custom_id"
            )
        if custom_id in seen:
            raise InvalidRequest(f"{where}.custom_id: '{custom_id}' is used twice", param=f"{where}.custom_id")
        if type(params) is not dict:
            raise InvalidRequest(f"{where}.params: expected an object", param=f"{where}.params")
        if params.get("stream"):
            raise InvalidRequest(f"{where}.params.stream: cannot be used in a batch", param=f"{where}.params.stream")
        if params.get("thread") is not None:
            raise InvalidRequest(f"{where}.params.thread: cannot be used in a batch", param=f"{where}.params.thread")
        seen.add(custom_id)
        ignored |= dict.fromkeys(f"requests.{name}" for name in request if name not in ("custom_id", "params"))
        lines.append(orjson.dumps({"custom_id": custom_id, "body": params}))
    return BatchRequests(len(lines), b"\n".join(lines), tuple(ignored))


def parse_line(line: bytes) -> tuple[str, dict[str, Any]]:
    """The name and body of a request, from a stored line."""
    value = orjson.loads(line)
    return value["custom_id"], value["body"]


def result_line(custom_id: str, status: int | None, body: bytes) -> bytes:
    """`body` is JSON; `status` None: there was no answer, and `body` says why."""
    result: dict[str, Any]
    if status is None:
        result = {"type": _LEFT[orjson.loads(body)]}
    elif status < 400:
        result = {"type": "succeeded", "message": orjson.Fragment(body)}
    else:
        result = {"type": "errored", "error": orjson.Fragment(body)}
    return orjson.dumps({"custom_id": custom_id, "result": result}) + b"\n"


def shown(batch: Any, base: str) -> dict[str, Any]:
    """`base` is the server's own URL. The counts by outcome appear once everything is done, as with Anthropic."""
    status = batch.status
    processing = "ended" if batch.ended else "canceling" if "cancelling" in batch.times else "in_progress"
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if batch.ended:
        counts |= {"succeeded": batch.succeeded, "errored": batch.errored}
        counts[_LEFT.get(status, "errored")] += batch.left
    else:
        counts["processing"] = batch.total
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": processing,
        "request_counts": counts,
        "created_at": _time(batch.created_at),
        "expires_at": _time(batch.expires_at),
        "ended_at": _time(batch.times[status]) if batch.ended else None,
        "cancel_initiated_at": _time(batch.times.get("cancelling")),
        "archived_at": None,
        "results_url": f"{base}/v1/messages/batches/{batch.id}/results" if batch.ended else None,
    }


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def batch_body(batch: Any, base: str) -> bytes:
    return orjson.dumps(shown(batch, base))


def deleted_body(id: str) -> bytes:
    return orjson.dumps({"id": id, "type": "message_batch_deleted"})


def results(entries: Iterator[Any]) -> Iterator[bytes]:
    """The lines of the results file, one for each entry of the journal."""
    for entry in entries:
        yield result_line(entry.custom_id, entry.status, entry.body)


def page_body(items: list[dict[str, Any]], *, has_more: bool) -> bytes:
    """One page of stored batches, latest first."""
    return orjson.dumps(
        {
            "data": items,
            "has_more": has_more,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
        }
    )
