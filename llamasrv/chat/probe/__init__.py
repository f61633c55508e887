"""Learns a model's ChatFormat from its chat template.

The template shows how earlier turns are written: a turn with two calls of known names and arguments, one with known
reasoning, one with neither. The marks are what lies between and around the known words, behind the place where the
model starts. What cannot be learned so comes from the table in `families`; a template without any words for tools gets
the generic format. Several may fit what is shown: all are candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from llamasrv.chat.families import GENERIC_CALLS, known_families, wrapped
from llamasrv.chat.formats import Calls, ChatFormat, ReasoningMarks
from llamasrv.chat.notations import NOTATIONS
from llamasrv.chat.notations.base import Notation
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.keyword_call import PYTHON_MARKS, KeywordCall
from llamasrv.chat.notations.named import Named
from llamasrv.chat.probe.call_marks import learn_calls
from llamasrv.chat.probe.layouts import (
    format_of_blocks,
    format_of_messages,
    learn_blocks,
    learn_headers,
    learn_recipient,
)
from llamasrv.chat.probe.marks import TextMarks, leads, learn_reasoning, learn_text, role_ends
from llamasrv.chat.probe.shown import ProbedTemplate, TrialTurns, common_start, show, trial_turn

__all__ = ["ProbedTemplate", "candidates", "with_gap"]

_PYTHON_TAGS = re.compile(r"<\|python_\w+\|>")  # may stand before a call
_OPENED = re.compile(r"\s*<\w+>\s*\Z")
_INSTRUCTED = re.compile(r"""([^\s\[\]{}"'`]+)\[\s*\{\s*["']name["']""")


def candidates(template: ProbedTemplate, notations: Sequence[type[Notation]] = NOTATIONS) -> Iterator[ChatFormat]:
    """How this template's model may write, the likeliest first: a row of the table, what each notation learns, and at
    last the generic format. Which of them is right shows in a round trip."""
    for format in _candidates(template, notations):
        yield wrapped(format, template.source)


def _candidates(template: ProbedTemplate, notations: Sequence[type[Notation]]) -> Iterator[ChatFormat]:
    shown = TrialTurns.of(template)
    for known in known_families(template.source):
        yield replace(known, role_ends=role_ends(template, shown, known.calls))
    headers = learn_headers(shown)
    if headers is not None:
        yield format_of_messages(shown, headers, notations)
    addressed = learn_recipient(shown)
    if addressed is not None:
        yield replace(addressed, role_ends=role_ends(template, shown, addressed.calls))
    blocks = learn_blocks(shown)
    if blocks is not None:
        yield format_of_blocks(template, shown, blocks, notations)
    for text in learn_text(shown):
        reasoning = learn_reasoning(template, shown, text)
        for notation in notations if template.traits.calls else ():
            calls = learn_calls(template, shown, reasoning, notation, text)
            if calls is not None:
                calls = _begun_by_prompt(shown, calls)
                asked = _as_instructed(shown, calls)
                if asked is not None:
                    yield _with_calls(template, shown, text, reasoning, asked)
                yield _with_calls(template, shown, text, reasoning, calls)
        yield _with_calls(template, shown, text, reasoning, None)


def _with_calls(
    template: ProbedTemplate, shown: TrialTurns, text: TextMarks, reasoning: ReasoningMarks, calls: Calls | None
) -> ChatFormat:
    """The format with calls as they were learned, or generic ones."""
    silent: tuple[str, ...] = tuple(mark for mark in (text.start.strip(), text.end.strip()) if mark)
    if calls is not None and calls.bare:
        silent += tuple(dict.fromkeys(_PYTHON_TAGS.findall(template.source)))
        silent += PYTHON_MARKS if isinstance(calls.notation, KeywordCall) and calls.notation.is_python else ()
    return ChatFormat(
        "generic" if calls is None else calls.notation.name,
        reasoning=reasoning,
        calls=calls or GENERIC_CALLS,
        content_start=text.start,
        content_end=text.end,
        leads=leads(shown),
        silent=silent,
        role_ends=role_ends(template, shown, calls),
        learned=calls is not None,
    )


def _begun_by_prompt(shown: TrialTurns, calls: Calls) -> Calls:
    """Names without a mark in front of them: what separates calls begins each of them, and the prompt the first."""
    start = calls.separator.strip()
    head = _OPENED.sub("", shown.prompt)  # some prompts open a thought behind it
    if not (calls.bare and isinstance(calls.notation, (Named, KeywordCall)) and "<" in start and head.endswith(start)):
        return calls
    return replace(calls, call_start=calls.separator, separator="", at_start=True)


def _as_instructed(shown: TrialTurns, calls: Calls) -> Calls | None:
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
    said = _gap(show(template, trial_turn(1, "zqanswer")).rpartition("zqanswer")[2], calls)
    turn = show(template, trial_turn(1))
    own = turn[common_start(turn, show(template, prompt=True)) :]
    before = min((own.partition(mark)[0] for mark in calls.openers if mark in own), key=len, default="")
    alone = before[len(before.rstrip()) :].strip("\n")
    return replace(format, calls=replace(calls, gap=said, indent=alone)) if said or alone else format


def _gap(text: str, calls: Calls) -> str:
    """The white space in front of a call."""
    rest = text.lstrip()
    return text[: len(text) - len(rest)] if rest.startswith(calls.openers) else ""
