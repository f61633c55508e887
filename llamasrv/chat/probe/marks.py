"""The marks of a plain answer: around thoughts and texts, before an answer, at the end of a turn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llamasrv.chat.families import THINK
from llamasrv.chat.formats import Calls, ReasoningMarks
from llamasrv.chat.notations import trial
from llamasrv.chat.probe.shown import (
    WHOLE_MARK,
    ProbedTemplate,
    TrialTurns,
    before_word,
    shared_ending,
    show,
    trial_turn,
)

_ONE_MARK = re.compile(r"\s*(?:<[^<>\s]+>(?:\w+(?:<[^<>\s]+>)?)?|\[[A-Z_]+\])\s*\Z")
_LAST_MARK = re.compile(r"\s*<[^<>\s]+>\s*\Z")
_LEAD = re.compile(r"[^\s<>\[\]{}:]{1,32}[:：]\Z")
_MARK_BEFORE = re.compile(r"(<[^<>\s][^<>\n]*>|\[[A-Z_]+\])(\s*)\Z")
_ADDRESS = re.compile(r"\s*([^\w\s\[\]{}]{1,8}\s?)\w+\s*")
_THINKING_TAG = re.compile(r"</([\w:]*(?:think|thought)[\w:]*)>|\[/(THINK)\]")
_OPEN_TAG = re.compile(r"<([\w:]+)>\s*\Z")


@dataclass(frozen=True, slots=True)
class TextMarks:
    """The marks around content."""

    start: str = ""
    end: str = ""


def learn_text(shown: TrialTurns) -> Iterator[TextMarks]:
    """Marks around the answer itself, other than those of its turn. A mark before it alone belongs to the turn's head
    if a call has it, too; else it says that no call comes."""
    _, found, tail = shown.answer.rpartition("zqanswer")
    ending = shared_ending(tail, shown.call) if shown.call else ""
    start = before_word(shown, "zqanswer", shown.answer)
    if found and _is_addressed(shown, start):
        yield TextMarks(start)
    if not _ONE_MARK.match(start):
        start = _behind_thought(shown, start)
    thought = before_word(shown, "zqthought", shown.thought)
    if (
        not found
        or not _ONE_MARK.match(start)
        or start.strip() == thought.strip()
        or start.strip() in _empty_thought(shown, start)
    ):
        yield TextMarks()
        return
    shared = WHOLE_MARK.findall(ending)
    if len(shared) > 1 and _ends_parts(shown, shared[0]):
        yield TextMarks(start, shared[0])
    end = tail[: len(tail) - len(ending)] if ending else ""
    if not ending:
        marks = WHOLE_MARK.findall(tail)
        end = marks[0] if len(marks) > 1 else ""
    if _ONE_MARK.match(end):
        yield TextMarks(start, end)
        return
    yield TextMarks()
    if shown.call and not before_word(shown, trial.NAMES[0], shown.call).lstrip().startswith(start.strip()):
        yield TextMarks(start)


def _is_addressed(shown: TrialTurns, start: str) -> bool:
    """Whether a sign and a word for the user stand before an answer, and the same sign before the name of a tool."""
    address = _ADDRESS.fullmatch(start)
    return address is not None and before_word(shown, trial.NAMES[0], shown.call).strip() == address[1].strip()


def _behind_thought(shown: TrialTurns, start: str) -> str:
    """The mark in front of an answer, without an empty thought that the template writes before it."""
    between = shown.thought.partition("zqthought")[2].partition("zqanswer")[0]
    last = _LAST_MARK.search(start)
    if last is None or not between.endswith(last[0]) or "<" not in between[: -len(last[0])]:
        return start
    return last[0]


def _ends_parts(shown: TrialTurns, mark: str) -> bool:
    """Whether a mark that stands behind an answer also ends a thought in front of it."""
    return mark in shown.thought.partition("zqthought")[2].partition("zqanswer")[0]


def _ended_by_calls(template: ProbedTemplate, end: str) -> bool:
    """Whether a thought in front of a call has no end: words that end one may be those before an answer."""
    if not template.traits.calls:
        return False
    turn = show(template, replace(trial_turn(1), reasoning="zqthought"))
    between, called, _ = turn.partition("zqthought")[2].partition(trial.NAMES[0])
    return bool(called) and end.strip() not in between


def _empty_thought(shown: TrialTurns, start: str) -> str:
    """What closes a thinking block that the prompt, or the template itself, has opened; `start` precedes an answer."""
    between = shown.thought.partition("zqthought")[2].partition("zqanswer")[0]
    return between if "<" in between and not between.rstrip().endswith(start.rstrip()) else ""


def leads(shown: TrialTurns) -> tuple[str, ...]:
    """A word with a colon before each answer: the model writes it because the template does."""
    before = before_word(shown, "zqanswer", shown.answer).strip()
    return (before,) if _LEAD.match(before) else ()


def role_ends(template: ProbedTemplate, shown: TrialTurns, calls: Calls | None) -> tuple[str, ...]:
    """What the template writes last in a turn: after an answer, and after a call."""
    answer = WHOLE_MARK.findall(shown.answer.rpartition("zqanswer")[2])
    call = WHOLE_MARK.findall(shown.call[shown.call.rfind(trial.NAMES[0]) :]) if shown.call else []
    own = f"{calls.call_end} {calls.section_end} {calls.notation.options()}" if calls is not None else ""
    last = dict.fromkeys((*answer[-1:], *call[-1:]))
    return tuple(mark for mark in last if mark != template.eos_token and mark.startswith("<") and mark not in own)


def learn_reasoning(template: ProbedTemplate, shown: TrialTurns, text: TextMarks) -> ReasoningMarks:
    """The marks around known reasoning; if the template shows none, the ones its source names, or `<think>`."""
    head, found, tail = shown.thought.rpartition("zqthought")
    between = tail.partition("zqanswer")[0].removesuffix(text.start)
    if not found or not between.strip():
        begun = _OPEN_TAG.search(shown.prompt)
        if begun and f"</{begun[1]}>" in template.source and not shown.answer.startswith(shown.prompt.rstrip()):
            return ReasoningMarks(f"<{begun[1]}>", f"</{begun[1]}>")
        named = _THINKING_TAG.search(template.source)
        if named is None:
            return replace(THINK, assumed="enable_thinking" not in template.variables)
        return ReasoningMarks(f"<{named[1]}>", f"</{named[1]}>") if named[1] else ReasoningMarks("[THINK]", "[/THINK]")
    before = _MARK_BEFORE.search(head)
    header = _MARK_BEFORE.search(shown.answer.partition("zqanswer")[0])
    same = before is not None and header is not None and header[1] == before[1]
    phrase = before_word(shown, "zqthought", shown.thought) if before is None or same else ""
    if phrase.strip() and phrase != before_word(shown, "zqanswer", shown.answer):
        return ReasoningMarks(phrase, between, ended_by_calls=_ended_by_calls(template, between))
    if before is None or same:
        prompt = shown.prompt
        opening = prompt.rpartition(before[1])[2].strip() if before and before[1] in prompt else ""
        return ReasoningMarks("", between, opening=opening)
    return ReasoningMarks(before[0], between)
