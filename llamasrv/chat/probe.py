"""A model's ChatFormat, learned from its chat template.

The template shows how earlier turns are written: a turn with two calls of known names and arguments, one with known
reasoning, one with neither. The marks are what lies between and around the known words. What cannot be learned so
comes from the table in `families`; a template without any words for tools gets the generic format.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Protocol

from llamasrv.chat.families import GENERIC_CALLS, THINK, known_family
from llamasrv.chat.formats import Calls, ChatFormat, Reasoning
from llamasrv.chat.notations import learn, trial
from llamasrv.chat.traits import Traits
from llamasrv.domain.request import ChatPrompt, Message, Tool, ToolCall
from llamasrv.errors import InvalidRequest


class Template(Protocol):
    """What a probe needs of a template."""

    @property
    def source(self) -> str: ...
    @property
    def traits(self) -> Traits: ...
    def render(self, prompt: ChatPrompt) -> Any: ...


_PARAMETERS = {
    "type": "object",
    "properties": {
        "zqfirst": {"type": "string", "description": "zq"},
        "zqsecond": {"type": "integer", "description": "zq"},
    },
    "required": ["zqfirst", "zqsecond"],
}
_TOOLS = tuple(Tool(name, "zq", _PARAMETERS) for name in trial.NAMES)
_PYTHON_TAG = "<|python_tag|>"  # Llama may write it before a call
_USER = Message("user", "zquser")
_ANSWER = Message("assistant", "zqanswer")


def describe(template: Template) -> ChatFormat:
    """How the model of this template writes."""
    known = known_family(template.source)
    if known is not None:
        return known
    answer = _show(template, _ANSWER)
    reasoning = _learn_reasoning(template, answer)
    calls = _learn_calls(template, answer) if template.traits.calls else None
    if calls is not None:
        silent = (_PYTHON_TAG,) if calls.bare and _PYTHON_TAG in template.source else ()
        return ChatFormat(calls.notation, reasoning=reasoning, calls=calls, silent=silent, learned=True)
    return ChatFormat("generic", reasoning=reasoning, calls=GENERIC_CALLS)


def _show(template: Template, *messages: Message, prompt: bool = False) -> str:
    asked = ChatPrompt((_USER, *messages), tools=_TOOLS, add_generation_prompt=prompt)
    try:
        return str(template.render(asked).text)
    except InvalidRequest:
        return ""


def _call(count: int) -> Message:
    text = json.dumps(trial.ARGUMENTS)
    made = (ToolCall(trial.IDS[n], trial.NAMES[n], text) for n in range(count))
    return Message("assistant", None, tool_calls=tuple(made))


# ---------------------------------------------------------------- reasoning

_MARK_BEFORE = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])(\s*)\Z")
_THINKING_TAG = re.compile(r"</([\w:]*think[\w:]*)>|\[/(THINK)\]")


def _learn_reasoning(template: Template, answer: str) -> Reasoning:
    """The marks around known reasoning; where the template shows none, those that its source names, or `<think>`."""
    shown = (
        _show(template, Message("assistant", "zqanswer", reasoning="zqthought")) if template.traits.reasoning else ""
    )
    head, found, tail = shown.rpartition("zqthought")
    between = tail.partition("zqanswer")[0]
    if not found or not between.strip():
        named = _THINKING_TAG.search(template.source)
        if named is None:
            return replace(THINK, assumed=True)
        return Reasoning(f"<{named[1]}>", f"</{named[1]}>") if named[1] else Reasoning("[THINK]", "[/THINK]")
    before = _MARK_BEFORE.search(head)
    header = _MARK_BEFORE.search(answer.partition("zqanswer")[0])
    if before is None or (header is not None and header[1] == before[1]):
        prompt = _show(template, prompt=True)
        opening = prompt[prompt.rfind(before[1]) + len(before[1]) :].strip() if before else ""
        return Reasoning("", between, opening=opening)
    return Reasoning(before[0], between)


# ---------------------------------------------------------------- calls


def _learn_calls(template: Template, answer: str) -> Calls | None:
    turn = _show(template, _call(2))
    parallel = template.traits.parallel_calls and all(name in turn for name in trial.NAMES)
    if not parallel:
        turn = _show(template, _call(1))
    begin = _common_start(turn, answer)
    first = learn(turn, begin, 0)
    if first is None:
        return None
    before, end = turn[begin : first.start], _turn_end(turn, answer)
    if not parallel:
        calls = replace(first.calls, call_start=before, call_end=turn[first.end : end], parallel=False)
    else:
        second = learn(turn, first.end, 1)
        if second is None:
            return None
        calls = _with_section(first.calls, before, turn[first.end : second.start], turn[second.end : end])
    array = calls.section_start.rstrip().endswith("[")
    bare = calls.notation == "json" and not (calls.section_start.strip(" \n[") or calls.call_start.strip())
    return replace(calls, array=array, bare=bare)


def _common_start(text: str, other: str) -> int:
    """Where two texts part, moved back to the beginning of a mark."""
    size = 0
    while size < min(len(text), len(other)) and text[size] == other[size]:
        size += 1
    cut = re.search(r"(<[^<>]*|\[[A-Z_/]*)\Z", text[:size])
    return cut.start() if cut else size


def _turn_end(turn: str, answer: str) -> int:
    """Where the end of a turn begins: what follows the answer follows the call, too."""
    ending = answer.partition("zqanswer")[2]
    return len(turn) - len(ending) if ending and turn.endswith(ending) else len(turn)


def _with_section(calls: Calls, before: str, between: str, after: str) -> Calls:
    """Tells the marks of each call from those around all of them."""
    starts = [0, *(n for n, char in enumerate(before) if char in "<["), len(before)]
    start = next(before[n:] for n in starts if between.endswith(before[n:]))
    rest = between[: len(between) - len(start)]
    ends = [len(after), *(n + 1 for n in range(len(after) - 1, -1, -1) if after[n] in ">]"), 0]
    end = next(after[:n] for n in ends if rest.startswith(after[:n]))
    section_start = before[: len(before) - len(start)]
    return replace(
        calls,
        section_start=section_start,
        call_start=start,
        call_end=end,
        separator=rest[len(end) :],
        section_end=_first_mark(after[len(end) :]) if section_start.strip() else "",
    )


def _first_mark(text: str) -> str:
    """Up to the end of the first mark: what follows ends the turn, not the section."""
    found = re.match(r"[^<]*<[^<>]*>", text)
    return found[0] if found else text
