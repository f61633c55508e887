"""Learns a model's ChatFormat from its chat template.

The template shows how earlier turns are written: a turn with two calls of known names and arguments, one with known
reasoning, one with neither. The marks are what lies between and around the known words, behind the place where the
model starts. What cannot be learned so comes from the table in `families`; a template without any words for tools gets
the generic format. Several may fit what is shown: all are candidates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from llamasrv.chat.families import GENERIC_CALLS, THINK, known_families, wrapped
from llamasrv.chat.formats import Blocks, Calls, ChatFormat, Headers, ReasoningMarks
from llamasrv.chat.notations import NOTATIONS, trial
from llamasrv.chat.notations.base import Notation, decoded
from llamasrv.chat.notations.in_header import InHeader
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.python_call import PYTHON_MARKS, PythonCall
from llamasrv.chat.traits import Traits
from llamasrv.domain.request import ChatPrompt, Message, Tool, ToolCall
from llamasrv.errors import InvalidRequest


class ProbedTemplate(Protocol):
    """What probing needs of a template."""

    @property
    def source(self) -> str: ...
    @property
    def eos_token(self) -> str: ...
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
_PYTHON_TAGS = re.compile(r"<\|python_\w+\|>")  # may stand before a call
_USER = Message("user", "zquser")
_ANSWER = Message("assistant", "zqanswer")


def candidates(template: ProbedTemplate) -> Iterator[ChatFormat]:
    """How this template's model may write, the likeliest first: a row of the table, what each notation learns, and at
    last the generic format. Which of them is right shows in a round trip."""
    for format in _candidates(template):
        yield wrapped(format, template.source)


def _candidates(template: ProbedTemplate) -> Iterator[ChatFormat]:
    shown = _Shown.of(template)
    for known in known_families(template.source):
        yield replace(known, role_ends=_role_ends(template, shown, known.calls))
    headers = _learn_headers(shown)
    if headers is not None:
        yield _format_of_messages(shown, headers)
    blocks = _learn_blocks(shown)
    if blocks is not None:
        yield _format_of_blocks(template, shown, blocks)
    text = _learn_text(shown)
    reasoning = _learn_reasoning(template, shown, text)
    for notation in NOTATIONS if template.traits.calls else ():
        calls = _learn_calls(template, shown.answer, reasoning, notation)
        if calls is not None:
            asked = _as_instructed(shown, calls)
            if asked is not None:
                yield _with_calls(template, shown, text, reasoning, asked)
            yield _with_calls(template, shown, text, reasoning, calls)
    yield _with_calls(template, shown, text, reasoning, None)


def _with_calls(
    template: ProbedTemplate, shown: _Shown, text: _Text, reasoning: ReasoningMarks, calls: Calls | None
) -> ChatFormat:
    """The format with calls as they were learned, or generic ones."""
    silent: tuple[str, ...] = tuple(mark for mark in (text.start.strip(), text.end.strip()) if mark)
    if calls is not None and calls.bare:
        silent += tuple(dict.fromkeys(_PYTHON_TAGS.findall(template.source)))
        silent += PYTHON_MARKS if isinstance(calls.notation, PythonCall) else ()
    return ChatFormat(
        "generic" if calls is None else calls.notation.name,
        reasoning=reasoning,
        calls=calls or GENERIC_CALLS,
        content_start=text.start,
        content_end=text.end,
        leads=_leads(shown),
        silent=silent,
        role_ends=_role_ends(template, shown, calls),
        learned=calls is not None,
    )


_INSTRUCTED = re.compile(r"""([^\s\[\]{}"'`]+)\[\s*\{\s*["']name["']""")


def _as_instructed(shown: _Shown, calls: Calls) -> Calls | None:
    """The mark that the instructions ask for in front of a list of calls, where the history shows none."""
    found = _INSTRUCTED.search(shown.prompt.partition("zquser")[0])
    if found is None or not calls.bare or not isinstance(calls.notation, JsonObject):
        return None
    return Calls(calls.notation, section_start=f"{found[1]}[", section_end="]", separator=", ", may_be_bare=True)


def with_gap(template: ProbedTemplate, format: ChatFormat) -> ChatFormat:
    """The format with the white space between a text and a call. The template must know the format by now: where it
    shows no calls, they are written for it."""
    calls = format.calls
    if calls is None or format.headers is not None:
        return format
    said = _gap(_show(template, _call(1, "zqanswer")).rpartition("zqanswer")[2], calls)
    turn = _show(template, _call(1))
    own = turn[_common_start(turn, _show(template, prompt=True)) :]
    before = min((own.partition(mark)[0] for mark in calls.openers if mark in own), key=len, default="")
    alone = before[len(before.rstrip()) :].strip("\n")
    return replace(format, calls=replace(calls, gap=said, indent=alone)) if said or alone else format


def _gap(text: str, calls: Calls) -> str:
    """The white space in front of a call."""
    rest = text.lstrip()
    return text[: len(text) - len(rest)] if rest.startswith(calls.openers) else ""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the template writes for the trial turns; empty where it writes nothing."""

    prompt: str  # the model goes on from here
    answer: str
    thought: str
    call: str
    calls: str

    @classmethod
    def of(cls, template: ProbedTemplate) -> _Shown:
        thought = Message("assistant", "zqanswer", reasoning="zqthought")
        return cls(
            prompt=_show(template, prompt=True),
            answer=_show(template, _ANSWER),
            thought=_show(template, thought) if template.traits.reasoning else "",
            call=_show(template, _call(1)) if template.traits.calls else "",
            calls=_show(template, _call(2)) if template.traits.parallel_calls else "",
        )


def _show(template: ProbedTemplate, *messages: Message, prompt: bool = False) -> str:
    asked = ChatPrompt((_USER, *messages), tools=_TOOLS, add_generation_prompt=prompt)
    try:
        return str(template.render(asked).text)
    except InvalidRequest:
        return ""


def _call(count: int, content: str | None = None) -> Message:
    text = json.dumps(trial.ARGUMENTS)
    made = (ToolCall(trial.IDS[n], trial.NAMES[n], text) for n in range(count))
    return Message("assistant", content, tool_calls=tuple(made))


# ---------------------------------------------------------------- text

_WHOLE_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
_ONE_MARK = re.compile(r"\s*(?:<[^<>\s]+>|\[[A-Z_]+\])\s*\Z")


@dataclass(frozen=True, slots=True)
class _Text:
    """The marks around content."""

    start: str = ""
    end: str = ""


def _learn_text(shown: _Shown) -> _Text:
    """Marks around the answer itself, other than those of its turn."""
    _, found, tail = shown.answer.rpartition("zqanswer")
    if not found:
        return _Text()
    ending = _shared_ending(tail, shown.call) if shown.call else ""
    start = _before(shown, "zqanswer", shown.answer)
    thought = _before(shown, "zqthought", shown.thought)
    if not _ONE_MARK.match(start) or start.strip() == thought.strip() or start.strip() in _empty_thought(shown):
        return _Text()
    end = tail[: len(tail) - len(ending)] if ending else ""
    if not ending:
        marks = _WHOLE_MARK.findall(tail)
        end = marks[0] if len(marks) > 1 else ""
    if not _ONE_MARK.match(end):
        return _Text()  # a mark before the text alone belongs to the turn's head
    return _Text(start, end)


def _leads(shown: _Shown) -> tuple[str, ...]:
    """A word with a colon before each answer: the model writes it because the template does."""
    before = _before(shown, "zqanswer", shown.answer).strip()
    return (before,) if _LEAD.match(before) else ()


_LEAD = re.compile(r"[^\s<>\[\]{}:]{1,32}[:：]\Z")


def _role_ends(template: ProbedTemplate, shown: _Shown, calls: Calls | None) -> tuple[str, ...]:
    """What the template writes last in a turn: after an answer, and after a call."""
    answer = _WHOLE_MARK.findall(shown.answer.rpartition("zqanswer")[2])
    call = _WHOLE_MARK.findall(shown.call[shown.call.rfind(trial.NAMES[0]) :]) if shown.call else []
    own = f"{calls.call_end} {calls.section_end} {calls.notation.options()}" if calls is not None else ""
    last = dict.fromkeys((*answer[-1:], *call[-1:]))
    return tuple(mark for mark in last if mark != template.eos_token and mark.startswith("<") and mark not in own)


def _before(shown: _Shown, word: str, turn: str) -> str:
    """What the model writes before a word of its turn, after what the prompt and the turn share."""
    begin = _common_start(turn, shown.prompt)
    place = turn.find(word, begin)
    return turn[begin:place] if place >= 0 else ""


def _empty_thought(shown: _Shown) -> str:
    """What closes a thinking block that the prompt, or the template itself, has opened."""
    between = shown.thought.partition("zqthought")[2].partition("zqanswer")[0]
    return between if "<" in between and not between.rstrip().endswith(_before(shown, "zqanswer", shown.answer)) else ""


def _shared_ending(tail: str, turn: str) -> str:
    """The ending that both share, from the beginning of a mark on."""
    for found in _WHOLE_MARK.finditer(tail):
        if turn.endswith(tail[found.start() :]):
            return tail[found.start() :]
    return ""


# ---------------------------------------------------------------- messages with recipients

_HEADER = re.compile(r"(?P<to>\s*(?:<[^<>\s]+>|[^\s<>\[\]]*[^\w\s<>\[\]])\s?)(?P<who>\w+)(?P<body>\s*<[^<>\s]+>\s*)\Z")


def _learn_headers(shown: _Shown) -> Headers | None:
    """Headers that name a recipient: identical before an answer and before a call, except for the name."""
    answer = _HEADER.match(_before(shown, "zqanswer", shown.answer))
    if answer is None or not shown.answer.startswith(shown.prompt):
        return None
    to, user, body = answer["to"], answer["who"], answer["body"]
    start = _MARK_LED.search(shown.prompt)
    if start is None:
        return None
    more, thinker = "", ""
    thought = _HEADER.match(_before(shown, "zqthought", shown.thought))
    if thought is not None and (thought["to"], thought["body"]) == (to, body):
        between = shown.thought.partition("zqthought")[2].partition("zqanswer")[0]
        more, thinker = between.partition(start[0])[0], thought["who"]
    elif shown.thought:
        return None
    called = re.match(re.escape(to) + rf"([\w.]*){trial.NAMES[0]}" + re.escape(body), shown.call[len(shown.prompt) :])
    if shown.call and called is None:
        return None
    tools = called[1] if called else ""
    first, found, _ = shown.calls.partition(f"{start[0]}{to}{tools}{trial.NAMES[1]}{body}")
    if found:
        more = more or "".join(_WHOLE_MARK.findall(first)[-1:])
    last = shown.answer.rpartition("zqanswer")[2]
    return Headers(start[0], to, body, user, thinker, tools, more or last, last)


_MARK_LED = re.compile(r"<[^<>\s]+>[^<>]*\Z")  # the last mark of a prompt, and the role behind it


def _format_of_messages(shown: _Shown, headers: Headers) -> ChatFormat:
    """An answer made of messages: a call is a message to a tool, with the arguments as its body."""
    reasoning = ReasoningMarks(headers.opening(headers.thinker), headers.next) if headers.thinker else None
    begin = len(shown.prompt + headers.opening(headers.tools + trial.NAMES[0]))
    turn = shown.call
    learned = (notation.learn(turn, begin, 0) for notation in NOTATIONS) if turn else ()
    found = next(filter(None, learned), None)
    if found is None:
        alone = any(value == trial.ARGUMENTS for _, _, value in decoded(turn, begin)[:1])
        calls = (
            Calls(
                InHeader(name_end=headers.body),
                call_start=headers.to + headers.tools,
                separator=headers.next,
                parallel=bool(shown.calls),
            )
            if shown.call and alone
            else None
        )
        return ChatFormat("messages", reasoning=reasoning, calls=calls, headers=headers, learned=True)
    end = turn[found.end :]
    end = end[: len(end) - len(_shared_ending(end, shown.answer))]
    calls = Calls(
        found.notation,
        header=headers.opening(headers.tools + "{name}"),
        call_start=turn[begin : found.start],
        call_end=end,
        separator=headers.next,
        parallel=bool(shown.calls),
    )
    return ChatFormat("messages", reasoning=reasoning, calls=calls, headers=headers, learned=True)


# ---------------------------------------------------------------- blocks with a kind


def _learn_blocks(shown: _Shown) -> Blocks | None:
    """Blocks: between a thought and the answer stands what the prompt ends with."""
    start, size = _MARK_LED.search(shown.prompt), len(shown.prompt)
    if start is None or not (shown.answer.startswith(shown.prompt) and shown.thought.startswith(shown.prompt)):
        return None
    text_start, _, last = shown.answer[size:].partition("zqanswer")
    thought_start, thought, rest = shown.thought[size:].partition("zqthought")
    more, again, before_text = rest.partition("zqanswer")[0].partition(start[0])
    if not thought or not again or before_text != text_start or thought_start == text_start or not more.strip():
        return None
    return Blocks(start[0], text_start, thought_start, more, last)


def _format_of_blocks(template: ProbedTemplate, shown: _Shown, blocks: Blocks) -> ChatFormat:
    calls = _calls_in_blocks(shown, blocks) if shown.call.startswith(shown.prompt) else None
    return ChatFormat(
        "blocks",
        reasoning=ReasoningMarks(blocks.thought_start, blocks.next),
        calls=calls,
        role_ends=_role_ends(template, shown, calls),
        blocks=blocks,
        learned=True,
    )


def _calls_in_blocks(shown: _Shown, blocks: Blocks) -> Calls | None:
    """Each call in a block of its own, or all of them as a list in one."""
    turn, begin, name = shown.calls or shown.call, len(shown.prompt), trial.NAMES[0]
    for notation in NOTATIONS:
        first = notation.learn(turn, begin, 0)
        if first is None:
            continue
        before, after = turn[begin : first.start], turn[first.end :]
        second = notation.learn(turn, first.end, 1) if shown.calls else None
        if second is not None and blocks.start not in turn[first.end : second.start]:
            after = turn[second.end :].partition(blocks.more.strip())[0]
            return _with_section(first.notation, before, turn[first.end : second.start], after)
        header, named, call_start = before.rpartition(name)
        end = after[: after.find(blocks.more.strip())] if blocks.more.strip() in after else ""
        return Calls(
            first.notation,
            header=header + "{name}" if named else "",
            call_start=call_start,
            call_end=end + blocks.more,
            separator=blocks.start,
            parallel=second is not None,
        )
    return None


# ---------------------------------------------------------------- reasoning

_MARK_BEFORE = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])(\s*)\Z")
_THINKING_TAG = re.compile(r"</([\w:]*think[\w:]*)>|\[/(THINK)\]")


def _learn_reasoning(template: ProbedTemplate, shown: _Shown, text: _Text) -> ReasoningMarks:
    """The marks around known reasoning; if the template shows none, the ones its source names, or `<think>`."""
    head, found, tail = shown.thought.rpartition("zqthought")
    between = tail.partition("zqanswer")[0].removesuffix(text.start)
    if not found or not between.strip():
        named = _THINKING_TAG.search(template.source)
        if named is None:
            return replace(THINK, assumed=True)
        return ReasoningMarks(f"<{named[1]}>", f"</{named[1]}>") if named[1] else ReasoningMarks("[THINK]", "[/THINK]")
    before = _MARK_BEFORE.search(head)
    header = _MARK_BEFORE.search(shown.answer.partition("zqanswer")[0])
    phrase = _before(shown, "zqthought", shown.thought) if before is None else ""
    if phrase.strip():
        return ReasoningMarks(phrase, between)
    if before is None or (header is not None and header[1] == before[1]):
        prompt = shown.prompt
        opening = prompt[prompt.rfind(before[1]) + len(before[1]) :].strip() if before else ""
        return ReasoningMarks("", between, opening=opening)
    return ReasoningMarks(before[0], between)


# ---------------------------------------------------------------- calls


def _learn_calls(
    template: ProbedTemplate, answer: str, reasoning: ReasoningMarks, notation: type[Notation]
) -> Calls | None:
    """The calls of a trial turn and what stands around them; None if they are not written in this notation."""
    turn = _show(template, _call(2))
    parallel = template.traits.parallel_calls and all(name in turn for name in trial.NAMES)
    if not parallel:
        turn = _show(template, _call(1))
    begin = _common_start(turn, answer)
    first = notation.learn(turn, begin, 0)
    if first is None:
        return None
    # What stands before a name that is not the call's own is no mark of it.
    before = _behind_thought(turn[begin : first.start], reasoning).rpartition(trial.NAMES[0])[2]
    end = _turn_end(turn, answer)
    if not parallel:
        calls = Calls(first.notation, call_start=before, call_end=turn[first.end : end], parallel=False)
    else:
        second = notation.learn(turn, first.end, 1)
        if second is None:
            return None
        between = turn[first.end : second.start].replace(trial.NAMES[1], "")
        calls = _with_section(first.notation, before, between, turn[second.end : end])
    return None if "zq" in calls.write(()) + calls.call_start + calls.call_end + calls.separator else calls


def _behind_thought(text: str, reasoning: ReasoningMarks) -> str:
    """What follows a thought that the template closes in front of a call: its end mark is no mark of the call."""
    end = reasoning.end.strip()
    return text.rpartition(end)[2].lstrip() if end and end in text else text


def _common_start(text: str, other: str) -> int:
    """Where two texts begin to differ, moved back to the beginning of a mark."""
    size = 0
    while size < min(len(text), len(other)) and text[size] == other[size]:
        size += 1
    cut = re.search(r"(<[^<>]*|\[[A-Z_/]*)\Z", text[:size])
    return cut.start() if cut else size


def _turn_end(turn: str, answer: str) -> int:
    """Where the end of a turn begins: what follows the answer also follows the call."""
    ending = answer.partition("zqanswer")[2]
    if not (ending and turn.endswith(ending)):
        ending = _shared_ending(ending, turn)
    return len(turn) - len(ending)


def _with_section(notation: Notation, before: str, between: str, after: str) -> Calls:
    """Separate the marks of each call from those around all calls."""
    lines = (n for n in range(1, len(before)) if before[n - 1] == "\n" and before[n:].strip())
    starts = [0, *sorted({*(n for n, char in enumerate(before) if char in "<["), *lines}), len(before)]
    start = next(before[n:] for n in starts if between.endswith(before[n:]))
    rest = between[: len(between) - len(start)]
    ends = [len(after), *(n + 1 for n in range(len(after) - 1, -1, -1) if after[n] in ">]"), 0]
    end = next(after[:n] for n in ends if rest.startswith(after[:n]))
    section_start = before[: len(before) - len(start)]
    return Calls(
        notation,
        section_start=section_start,
        call_start=start,
        call_end=end,
        separator=rest[len(end) :],
        section_end=_first_mark(after[len(end) :]) if section_start.strip() else "",
    )


def _first_mark(text: str) -> str:
    """Up to the end of the first mark: what follows it ends the turn, not the section."""
    found = re.match(r"[^<]*<[^<>]*>", text)
    return found[0] if found else text
