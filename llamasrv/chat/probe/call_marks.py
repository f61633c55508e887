"""The marks of calls: around each of them, between them, and around all."""

from __future__ import annotations

import re
from dataclasses import replace
from os.path import commonprefix

from llamasrv.chat.formats import Calls, ReasoningMarks
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Notation
from llamasrv.chat.notations.holes import ID, NUMBER, TOTAL
from llamasrv.chat.probe.marks import TextMarks
from llamasrv.chat.probe.shown import ProbedTemplate, TrialTurns, common_start, shared_ending, show, trial_turn


def learn_calls(
    template: ProbedTemplate, shown: TrialTurns, reasoning: ReasoningMarks, notation: type[Notation], text: TextMarks
) -> Calls | None:
    """The calls of a trial turn and what stands around them; None if they are not written in this notation."""
    answer = shown.answer
    turn = show(template, trial_turn(2))
    parallel = template.traits.parallel_calls and all(name in turn for name in trial.NAMES)
    if not parallel:
        turn = show(template, trial_turn(1))
    begin = common_start(turn, answer)
    said = answer.find("zqanswer") - len(text.start)
    if not turn.startswith(text.start, said):
        begin = min(begin, said)  # the mark of a call begins as that of a text does
    header = _HEADER.search(turn, 0, begin)
    own = header is not None and not shown.prompt.startswith(turn[: header.end()])
    if header and own and _KIND.match(turn, begin) and _KIND.match(answer, begin):
        begin = header.start()  # of a mark whose word says that calls follow, and another word that text does
    first = notation.learn(turn, begin, 0)
    if first is None:
        return None
    if template.traits.prints_arguments:
        first = replace(first, notation=first.notation.as_printed())
    if template.traits.short_ids:
        first = replace(first, notation=first.notation.with_short_ids())
    # Text before a name that is not the call's own is not its mark.
    before = _behind_thought(turn[begin : first.start], reasoning).rpartition(trial.NAMES[0])[2]
    end = _turn_end(turn, answer, text.end)
    if not parallel:
        start, last = (_with_id(text, 0) for text in (before, turn[first.end : end]))
        calls = Calls(first.notation, call_start=start, call_end=last, parallel=False)
    else:
        second = notation.learn(turn, first.end, 1)
        if second is None:
            return None
        between = turn[first.end : second.start].replace(trial.NAMES[1], "")
        texts = (_with_id(before, 0), _with_id(_with_id(between, 0), 1), _with_id(turn[second.end : end], 1))
        calls = _counted(first.notation, *texts) or with_section(first.notation, *texts)
        calls = _totalled(calls, shown.call[begin:])
    if calls.bare and not calls.unmarked:
        return None  # such a call would have no beginning mark
    if "zq" in calls.write(()) + calls.call_start + calls.call_end + calls.separator:
        return None
    alone = end == len(turn) and bool(answer.partition("zqanswer")[2].removeprefix(text.end).strip())
    return replace(calls, ends_turn=True) if alone else calls


_HEADER = re.compile(r"<[^<>\s]+>\Z")
_KIND = re.compile(r"(?!zq)\w+\s*(\n|<)")


def _with_id(text: str, number: int) -> str:
    """A text with a hole for the id of this trial call."""
    return text.replace(trial.IDS[number], ID)


def _counted(notation: Notation, before: str, between: str, after: str) -> Calls | None:
    """The marks of calls that are counted in them, from nought or one; None if these are not."""
    for number in (0, 1):
        own, other = (re.compile(rf"(?<!\d){place}(?!\d)") for place in (number, number + 1))
        texts = own.sub(NUMBER, before), other.sub(NUMBER, own.sub(NUMBER, between)), other.sub(NUMBER, after)
        calls = with_section(notation, *texts)
        shown = [calls.call_start.replace(NUMBER, str(place)) for place in (number, number + 1)]
        if NUMBER in calls.call_start and between.endswith(shown[1]) and not between.endswith(shown[0]):
            return calls
    return None


def _totalled(calls: Calls, alone: str) -> Calls:
    """The marks around two calls with holes for their count, where those around one call say another."""
    start, end = (_TWO.sub(TOTAL, mark, count=1) for mark in (calls.section_start, calls.section_end))
    if start.replace(TOTAL, "1").strip() not in alone or end.replace(TOTAL, "1").strip() not in alone:
        return calls
    return replace(calls, section_start=start, section_end=end)


_TWO = re.compile(r"(?<![\w.])2(?![\w.])")


def _behind_thought(text: str, reasoning: ReasoningMarks) -> str:
    """What follows a thought that the template closes in front of a call: its end mark is no mark of the call."""
    end = reasoning.end.strip()
    return text.rpartition(end)[2].lstrip() if end and end in text else text


def _turn_end(turn: str, answer: str, text_end: str) -> int:
    """Where the end of a turn begins: what follows the answer also follows the call."""
    ending = answer.partition("zqanswer")[2].removeprefix(text_end)
    if not (ending and turn.endswith(ending)):
        ending = shared_ending(ending, turn)
    return len(turn) - len(ending)


def with_section(notation: Notation, before: str, between: str, after: str) -> Calls:
    """Separate the marks of each call from those around all calls."""
    lines = (n for n in range(1, len(before)) if before[n - 1] == "\n" and before[n:].strip())
    starts = [0, *sorted({*(n for n, char in enumerate(before) if char in "<["), *lines}), len(before)]
    start = next(before[n:] for n in starts if between.endswith(before[n:])) or _shared_words(before, between)
    rest = between[: len(between) - len(start)]
    ends = [len(after), *(n + 1 for n in range(len(after) - 1, -1, -1) if after[n] in ">])"), 0]
    end = next(after[:n] for n in ends if rest.startswith(after[:n]))
    shared = _BEGUN.sub("", _shared_words(after[::-1], rest[::-1])[::-1])
    end = max(end, shared, key=len)
    section_start = before[: len(before) - len(start)]
    return Calls(
        notation,
        section_start=section_start,
        call_start=start,
        call_end=end,
        separator=rest[len(end) :],
        section_end=_first_mark(after[len(end) :]) if section_start.strip() or after[len(end) :].strip() else "",
    )


_BEGUN = re.compile(r"\s*[<\[][^<>\[\]]*\Z")  # a mark that does not end


def _shared_words(text: str, other: str) -> str:
    """The whole words and signs that both end with."""
    shared = commonprefix((text[::-1], other[::-1]))[::-1]
    begun = re.match(r"\w*", shared)[0] if re.search(r"\w\Z", text[: len(text) - len(shared)]) else ""  # type: ignore[index]
    return shared[len(begun) :].lstrip()


def _first_mark(text: str) -> str:
    """Up to the end of the first mark: what follows it ends the turn, not the section."""
    found = re.match(r"[^<]*<[^<>]*>", text)
    return found[0] if found else text
