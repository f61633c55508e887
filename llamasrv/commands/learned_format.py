"""What was learned from a chat template, as `check` and `parse --explain` print it."""

from __future__ import annotations

from typing import Any

from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.round_trip import round_trip
from llamasrv.chat.template import ChatTemplate


def describe(template: ChatTemplate) -> dict[str, Any]:
    """How a model with this template writes reasoning and tool calls, as far as the template shows; which kinds of
    turns survive being rendered and parsed again; and which do not with other formats that were tried."""
    trips = {kind: trip.verdict for kind, trip in round_trip(template).items()}
    report = {**template.format.describe(), "example": _example(template.format), "round_trip": trips}
    others = [one for one in template.candidates if one is not template.format]
    if others:
        report["others"] = [{"format": one.name, "example": _example(one), "lost": list(one.unsure)} for one in others]
    return report


def _example(format: ChatFormat) -> str:
    """Two calls as the model would write them in one turn, if it may."""
    if format.calls is None:
        return ""
    made = [("get_weather", '{"city": "Oslo", "days": 2}'), ("get_time", '{"city": "Oslo"}')]
    return format.calls.write(made if format.calls.parallel else made[:1])
