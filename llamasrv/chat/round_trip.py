"""Checks that what a template renders parses back into the message it came from.

Each kind of turn is rendered with the template, and what it writes is read as if the model had written it. A kind that
does not come back shows that the format was learned wrong: what models with this template write may be misread.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.notations import trial
from llamasrv.chat.parser import Parser
from llamasrv.domain.events import Reasoning, Text, ToolCallStart
from llamasrv.domain.request import ChatPrompt, Message, Tool, ToolCall
from llamasrv.errors import InvalidRequest

OK, NOT_SHOWN, LOST = "ok", "not shown", "lost"
TEXT_AND_CALL = "text and call"


class TriedTemplate(Protocol):
    """What a round trip needs of a template."""

    @property
    def format(self) -> ChatFormat: ...
    def render(self, prompt: ChatPrompt) -> Any: ...


_USER = Message("user", "zquser")
_ARGUMENTS = {"zqfirst": "zq text, of a few words", "zqsecond": 7}
_SAID, _THOUGHT = "zqanswer of a few words.", "zqthought of a few words."
_CALLS = tuple(ToolCall(id, name, json.dumps(_ARGUMENTS)) for id, name in zip(trial.IDS, trial.NAMES, strict=True))
_OTHERS = {
    "zqlines": 'zq "two"\nlines, it\'s <b>so</b>',
    "zqlist": ["zq one", "zq, two"],
    "zqobject": {"zqsize": 1.5},
    "zqflag": True,
}
_MANY = ToolCall(trial.IDS[0], "zqmany", json.dumps(_OTHERS))
_NONE = ToolCall(trial.IDS[0], "zqnone", "{}")
_RESULT = Message("tool", "zqresult", tool_call_id=trial.IDS[0])
_CALLED = Message("assistant", None, tool_calls=_CALLS[:1])

KINDS: Mapping[str, tuple[tuple[Message, ...], Message]] = {
    "text": ((_USER,), Message("assistant", _SAID)),
    "thought": ((_USER,), Message("assistant", _SAID, reasoning=_THOUGHT)),
    "call": ((_USER,), _CALLED),
    TEXT_AND_CALL: ((_USER,), Message("assistant", _SAID, tool_calls=_CALLS[:1])),
    "two calls": ((_USER,), Message("assistant", None, tool_calls=_CALLS)),
    "thought and call": ((_USER,), Message("assistant", None, reasoning=_THOUGHT, tool_calls=_CALLS[:1])),
    "after a result": ((_USER, _CALLED, _RESULT), Message("assistant", _SAID)),
    "other values": ((_USER,), Message("assistant", None, tool_calls=(_MANY,))),
    "no arguments": ((_USER,), Message("assistant", None, tool_calls=(_NONE,))),
}
"""By kind: the conversation so far, and the turn that is rendered and read."""


@dataclass(frozen=True, slots=True)
class Trip:
    """One kind of turn: the prompt, what the template writes after it, and the message that reading that gave."""

    kind: str
    verdict: str
    prompt: str = ""
    output: str = ""
    read: Message | None = None


def unsure(trips: Mapping[str, Trip]) -> tuple[str, ...]:
    """The kinds of turns that do not come back unchanged; all kinds if none is shown behind its prompt."""
    if all(trip.verdict == NOT_SHOWN for trip in trips.values()):
        return tuple(trips)
    return tuple(kind for kind, trip in trips.items() if trip.verdict == LOST)


def cost_of_losses(unsure: tuple[str, ...]) -> tuple[int, int]:
    """The sort key of formats: one that loses calls is worse than one that loses other kinds of turns."""
    return sum("call" in kind for kind in unsure), len(unsure)


def round_trip(template: TriedTemplate) -> dict[str, Trip]:
    """Every kind of turn, by name. Takes some fifteen renderings: a few milliseconds."""
    ending = ""
    trips = {}
    asked_before: dict[tuple[Message, ...], tuple[str, str]] = {}
    for kind, (before, turn) in KINDS.items():
        shown = _written(template, before, turn, asked_before)
        if kind == "text" and shown is not None:
            ending = shown.output.rpartition(_SAID)[2].removeprefix(template.format.content_end)
        together = kind != TEXT_AND_CALL or (shown is not None and _is_together(template.format, shown, ending))
        if shown is None or not together or not _is_shown(turn, shown.output):
            trips[kind] = Trip(kind, NOT_SHOWN)
            continue
        for prompt in dict.fromkeys((shown.prompt, shown.asked)):
            read = _read(template.format, prompt, shown.turns(template.format, ending))
            comes_back = _is_same(template, before, turn, read)
            if comes_back:
                break
        trips[kind] = Trip(kind, OK if comes_back else LOST, shown.prompt, shown.output, read)
    return trips


@dataclass(frozen=True, slots=True)
class _Written:
    """A turn as the template writes it.

    If the template writes a past turn differently from what the prompt asks for (an empty thought, none at all),
    `prompt` ends where the two begin to differ; `asked` is what the model would continue.
    """

    prompt: str
    asked: str
    head: str  # what begins a turn of the model
    output: str

    def turns(self, format: ChatFormat, ending: str) -> list[str]:
        """The output without turn endings, where the model writes a token without text. There are several turns if the
        template gives each call its own."""
        several = format.calls is not None and not format.calls.parallel and self.head.strip()
        outputs = self.output.split(self.head.strip()) if several else [self.output]
        return [_without_ending(output, ending) for output in outputs]


def _written(
    template: TriedTemplate,
    before: tuple[Message, ...],
    turn: Message,
    asked_before: dict[tuple[Message, ...], tuple[str, str]],
) -> _Written | None:
    """`asked_before`: what was rendered of conversations up to a turn, without what the model continues and with it."""
    try:
        if before not in asked_before:
            asked_before[before] = _rendered(template, before, False), _rendered(template, before, True)
        past, asked = asked_before[before]
        whole = _rendered(template, (*before, turn), False)
    except InvalidRequest:
        return None
    head = asked[len(os.path.commonprefix((past, asked))) :]
    if whole.startswith(asked):
        return _Written(asked, asked, head, whole[len(asked) :])
    size = len(os.path.commonprefix((asked, whole)))
    cut = re.search(r"(<[^<>]*|\[[A-Z_/]*)\Z", whole[:size])
    size = cut.start() if cut else size
    begun = re.compile(r"\s*".join(map(re.escape, head.split()))).search(whole, size) if head.strip() else None
    if begun is not None and "zq" not in whole[size : begun.start()]:  # they differ before the turn begins
        size = begun.end()
    return _Written(whole[:size], asked, head, whole[size:])


def _rendered(template: TriedTemplate, messages: tuple[Message, ...], goes_on: bool) -> str:
    return str(template.render(ChatPrompt(messages, tools=probe_tools(), add_generation_prompt=goes_on)).text)


def probe_tools() -> tuple[Tool, ...]:
    properties = {
        "zqfirst": {"type": "string", "description": "zq"},
        "zqsecond": {"type": "integer", "description": "zq"},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return (*(Tool(name, "zq", schema) for name in trial.NAMES), *_MORE_TOOLS)


_MORE_TOOLS = (
    Tool(
        "zqmany",
        "zq",
        {
            "type": "object",
            "required": list(_OTHERS),
            "properties": {
                "zqlines": {"type": "string", "description": "zq"},
                "zqlist": {"type": "array", "description": "zq", "items": {"type": "string", "description": "zq"}},
                "zqobject": {
                    "type": "object",
                    "description": "zq",
                    "properties": {"zqsize": {"type": "number", "description": "zq"}},
                },
                "zqflag": {"type": "boolean", "description": "zq"},
            },
        },
    ),
    Tool("zqnone", "zq", {"type": "object", "properties": {}, "required": []}),
)


def _without_ending(output: str, ending: str) -> str:
    """Without the ending that all turns share: the model writes a token without text there."""
    for place in range(len(ending)):
        if output.endswith(ending[place:]) and (place == 0 or ending[place] in "<["):
            return output[: len(output) - len(ending) + place]
    return output


def _is_shown(turn: Message, output: str) -> bool:
    words = [turn.content, turn.reasoning, *(call.name for call in turn.tool_calls)]
    return bool(output) and all(word in output for word in words if isinstance(word, str))


def _is_together(format: ChatFormat, shown: _Written, ending: str) -> bool:
    """Whether text and call share one turn, the text first, as when a model announces what it will do. Without marks a
    call is one at the start of an answer only."""
    _, text, call = shown.output.partition(_SAID)
    between = call[: call.find(trial.NAMES[0])]
    apart = [mark.strip() for mark in (shown.head, ending) if mark.strip()]
    bare = format.calls is not None and format.calls.bare
    return bool(text) and trial.NAMES[0] in call and not bare and not any(mark in between for mark in apart)


def _is_same(template: TriedTemplate, before: tuple[Message, ...], turn: Message, read: Message) -> bool:
    """Whether what was read equals the turn. Text before a call must also be written back unchanged: white space left
    at its end would appear twice, and there the next prompt would differ from what the model wrote."""
    if _facts(turn) != _facts(read):
        return False
    if not (turn.content and turn.tool_calls):
        return True
    read = replace(read, content=str(read.content).lstrip())  # what is before it belongs to the head of the turn
    return _rendered(template, (*before, turn), False) == _rendered(template, (*before, read), False) and (
        turn.content == read.content
    )


def _facts(message: Message) -> tuple[Any, ...]:
    calls = [(call.name, _as_json(call.arguments)) for call in message.tool_calls]
    return (str(message.content or "").strip(), (message.reasoning or "").strip(), calls)


def _read(format: ChatFormat, prompt: str, outputs: list[str]) -> Message:
    content, thought, names, arguments = "", "", [], []
    for output in outputs:
        parser = Parser(format, prompt=prompt, tools=probe_tools())
        for event in parser.feed(_closed(format, prompt, output)) + parser.finish():
            if isinstance(event, Text):
                content += event.text
            elif isinstance(event, Reasoning):
                thought += event.text
            elif isinstance(event, ToolCallStart):
                names.append(event.name)
                arguments.append("")
            else:
                arguments[-1] += event.fragment
    if format.reasoning is not None:
        thought = thought.removeprefix(format.reasoning.opening)  # the prompt's words
    calls = (ToolCall(id, *call) for id, call in zip(trial.IDS, zip(names, arguments)))
    return Message("assistant", content, reasoning=thought, tool_calls=tuple(calls))


def _closed(format: ChatFormat, prompt: str, output: str) -> str:
    """What a model that does not think writes after a prompt that has opened a thinking block."""
    thought = format.reasoning
    if thought is None or "zqthought" in output or not thought.is_open(prompt) or thought.end.strip() in output:
        return output
    return thought.end + output


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
