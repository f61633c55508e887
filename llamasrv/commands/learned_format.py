"""What was learned from a chat template, as `check` and `parse --explain` print it."""

from __future__ import annotations

from typing import Any

from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.round_trip import LOST, round_trip
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import Message


def describe(template: ChatTemplate) -> dict[str, Any]:
    """How a model with this template writes reasoning and tool calls, as far as the template shows; which kinds of
    turns survive being rendered and parsed again; and which do not with other formats that were tried."""
    trips = round_trip(template)
    verdicts = {kind: trip.verdict for kind, trip in trips.items()}
    report = {**template.format.describe(), "example": _example(template.format), "round_trip": verdicts}
    lost = {
        kind: {"written": trip.output, "read": _flat(trip.read)} for kind, trip in trips.items() if trip.verdict == LOST
    }
    if lost:
        report |= {"note": _NOTE, "lost": lost}
    others = [one for one in template.candidates if one is not template.format]
    if others:
        report["others"] = [{"format": one.name, "example": _example(one), "lost": list(one.unsure)} for one in others]
    return report


_NOTE = (
    "What the template writes for the turns under 'lost' is read as something else: so are outputs of models that write"
    " like their template. Where 'tool_choice' requires a call, the model must write it as 'example' shows."
)


def _flat(read: Message | None) -> dict[str, Any]:
    """A message that was read, as `parse` prints it, without what it lacks."""
    if read is None:
        return {}
    calls = [{"name": call.name, "arguments": call.arguments} for call in read.tool_calls]
    found = {"content": read.content, "reasoning_content": read.reasoning, "tool_calls": calls}
    return {key: value for key, value in found.items() if value}


def _example(format: ChatFormat) -> str:
    """Two calls as the model would write them in one turn, if it may."""
    if format.calls is None:
        return ""
    made = [("get_weather", '{"city": "Oslo", "days": 2}'), ("get_time", '{"city": "Oslo"}')]
    return format.calls.write(made if format.calls.parallel else made[:1])
