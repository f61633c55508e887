"""Steering over a WebSocket: input that a client adds to a running response.

    accepted    the response ends where it is, unless it has called a tool, and another one continues it with the input
    pending     it has called tools: the input waits for the request that brings their results
    failed      the client gets its input back

Shapes: openai 3.57, `types/responses/response_steer_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import inside
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses.items import Turns
from llamasrv.protocols.openai.responses.tools import ToolSet

MOST_STEERS = 16  # max inputs waiting for one response

JSON = dict[str, Any]


class Steer(NamedTuple):
    previous: str  # id of the response
    input: Any  # as sent by the client
    id: str | None = None  # set once it is accepted

    @property
    def items(self) -> list[JSON]:
        return [{"role": "user", "content": self.input}] if type(self.input) is str else self.input


def check_steer(steer: Steer, limits: Limits) -> None:
    """Raises InvalidRequest."""
    if type(steer.input) not in (str, list) or not steer.input:
        raise InvalidRequest("Invalid 'input': expected a text or user messages.", param="input")
    turns = Turns(ToolSet(0), limits)
    with inside("input"):
        for at, item in enumerate(steer.items):
            if not _may_steer(item):
                raise InvalidRequest(f"Invalid 'input[{at}]': expected a user message.", param=f"input[{at}]")
            if item.get("type", "message") == "message":
                turns.add(item, at)


def _may_steer(item: Any) -> bool:
    if type(item) is not dict:
        return False
    kind = item.get("type", "message")
    return kind == "function_call_output" or kind == "message" and item.get("role") == "user"


def steered_input(steers: Iterable[Steer], given: Any, owed: Sequence[JSON]) -> list[JSON]:
    """The input of the request that brings the `owed` outputs: these, what was steered, then the rest."""
    items: list[Any] = [{"role": "user", "content": given}] if type(given) is str else list(given)
    ids = {output["call_id"] for output in owed}
    outputs = [item for item in items if type(item) is dict and item.get("call_id") in ids]
    rest = [item for item in items if not any(item is output for output in outputs)]
    return [*outputs, *(item for steer in steers for item in steer.items), *rest]


def required_input(items: Iterable[Mapping[str, Any]]) -> list[JSON]:
    """Stubs for the outputs of calls that have none."""
    owed: dict[str, JSON] = {}
    for item in items:
        kind, id = item.get("type", ""), item.get("call_id")
        if type(id) is not str:
            continue
        if kind.endswith("_output"):
            owed.pop(id, None)
        elif kind == "function_call":
            owed[id] = {"type": "function_call_output", "call_id": id, "name": item.get("name")}
        elif kind == "tool_search_call":
            owed[id] = {"type": "tool_search_output", "call_id": id, "execution": "client"}
        elif kind.endswith("_call"):
            owed[id] = {"type": f"{kind}_output", "call_id": id}
    return list(owed.values())


def steer_accepted(steer: Steer, number: int) -> bytes:
    """The event for an accepted steer; `number`: that of the latest event in its lane."""
    return _event("accepted", number, {}, steer, {})


def steer_pending(steer: Steer, number: int, owed: Sequence[JSON]) -> bytes:
    return _event("pending", number, {"reason": "waiting_for_required_input", "required_input": owed}, steer, {})


def steer_failed(steer: Steer, number: int, code: str, message: str) -> bytes:
    error = {"type": "invalid_request_error", "code": code, "message": message}
    return _event("failed", number, {"error": error}, steer, {"input": steer.input})


def _event(name: str, number: int, fields: JSON, steer: Steer, more: JSON) -> bytes:
    named = {} if steer.id is None else {"id": steer.id}
    shown = {**named, "previous_response_id": steer.previous, **more}
    return orjson.dumps({"type": f"response.steer.{name}", "sequence_number": number, **fields, "steer": shown})
