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


def summary(template: ChatTemplate) -> dict[str, str]:
    """The same in a few lines of text: how thoughts and calls are written, and which turns are misread."""
    format = template.format
    thought, row, calls = format.reasoning, format.headers or format.blocks, format.calls
    if row is not None:
        thoughts = f"behind {row.thought_start.strip()}" if row.thought_start else "none shown"
    elif thought is None or thought.assumed:
        thoughts = "none shown"
    else:
        thoughts = f"{thought.start.strip() or '(begun by the prompt)'} … {thought.end.strip()}"
    source = "taught in the system message" if format.name == "generic" else f"known from {format.name}"
    origin = "" if format.learned else f"not shown by the template, {source}:\n"
    misread = ", ".join(format.unsure)
    return {
        "understood": f"all but {misread}: answers of this kind may be misread" if misread else "yes",
        "reasoning": thoughts,
        "tool calls": origin + _example(format).strip() if calls is not None else "none",
    }


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
