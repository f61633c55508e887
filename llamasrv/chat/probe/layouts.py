"""Answers that are a row of messages with recipients, or of blocks with a kind."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llamasrv.chat.formats import Blocks, Calls, ChatFormat, Headers, ReasoningMarks
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Notation, decoded
from llamasrv.chat.notations.in_header import InHeader
from llamasrv.chat.notations.named import Named
from llamasrv.chat.probe.call_marks import with_section
from llamasrv.chat.probe.marks import role_ends
from llamasrv.chat.probe.shown import WHOLE_MARK, ProbedTemplate, TrialTurns, before_word, shared_ending

_HEADER = re.compile(r"(?P<to>\s*(?:<[^<>\s]+>|[^\s<>\[\]]*[^\w\s<>\[\]])\s?)(?P<who>\w+)(?P<body>\s*<[^<>\s]+>\s*)\Z")
_ADDRESSED = re.compile(r"(?P<who>\w+)(?P<body>\s*<[^<>\s]+>\s*)zqanswer")
_MARK_LED = re.compile(r"<[^<>\s]+>[^<>]*\Z")  # the last mark of a prompt, and the role behind it


def learn_headers(shown: TrialTurns) -> Headers | None:
    """Headers that name a recipient: identical before an answer and before a call, except for the name."""
    answer = _HEADER.match(before_word(shown, "zqanswer", shown.answer))
    if answer is None or not shown.answer.startswith(shown.prompt):
        return None
    to, user, body = answer["to"], answer["who"], answer["body"]
    start = _MARK_LED.search(shown.prompt)
    if start is None:
        return None
    more, thinker = "", ""
    thought = _HEADER.match(before_word(shown, "zqthought", shown.thought))
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
        more = more or "".join(WHOLE_MARK.findall(first)[-1:])
    last = shown.answer.rpartition("zqanswer")[2]
    return Headers(start[0], to, body, user, thinker, tools, more or last, last)


def format_of_messages(shown: TrialTurns, headers: Headers, notations: Sequence[type[Notation]]) -> ChatFormat:
    """An answer made of messages: a call is a message to a tool, with the arguments as its body."""
    reasoning = ReasoningMarks(headers.opening(headers.thinker), headers.next) if headers.thinker else None
    begin = len(shown.prompt + headers.opening(headers.tools + trial.NAMES[0]))
    turn = shown.call
    learned = (notation.learn(turn, begin, 0) for notation in notations) if turn else ()
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
    end = end[: len(end) - len(shared_ending(end, shown.answer))]
    calls = Calls(
        found.notation,
        header=headers.opening(headers.tools + "{name}"),
        call_start=turn[begin : found.start],
        call_end=end,
        separator=headers.next,
        parallel=bool(shown.calls),
    )
    return ChatFormat("messages", reasoning=reasoning, calls=calls, headers=headers, learned=True)


def learn_recipient(shown: TrialTurns) -> ChatFormat | None:
    """The prompt ends inside a header, where a text writes the word for the user and a call the name of its tool."""
    size = len(shown.prompt)
    if not all(turn.startswith(shown.prompt) for turn in (shown.answer, shown.call)):
        return None
    answer = _ADDRESSED.match(shown.answer, size)
    if answer is None or not shown.call.startswith(trial.NAMES[0] + answer["body"] + "{", size):
        return None
    between, found, _ = shown.calls[size:].partition(trial.NAMES[1] + answer["body"] + "{")
    start = between.rpartition("}")[2] if found else shown.prompt[shown.prompt.rfind("\n<") + 1 :]
    if not (shown.prompt.endswith(start.strip()) and "<" in start):
        return None
    notation = Named(name_end=answer["body"], content_name=answer["who"])
    return ChatFormat(
        "recipients",
        calls=Calls(notation, call_start=start, parallel=bool(found)),
        content_start=answer["who"] + answer["body"],
        learned=True,
    )


def learn_blocks(shown: TrialTurns) -> Blocks | None:
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


def format_of_blocks(
    template: ProbedTemplate, shown: TrialTurns, blocks: Blocks, notations: Sequence[type[Notation]]
) -> ChatFormat:
    calls = _calls_in_blocks(shown, blocks, notations) if shown.call.startswith(shown.prompt) else None
    return ChatFormat(
        "blocks",
        reasoning=ReasoningMarks(blocks.thought_start, blocks.next),
        calls=calls,
        role_ends=role_ends(template, shown, calls),
        blocks=blocks,
        learned=True,
    )


def _calls_in_blocks(shown: TrialTurns, blocks: Blocks, notations: Sequence[type[Notation]]) -> Calls | None:
    """Each call in a block of its own, or all of them as a list in one."""
    turn, begin, name = shown.calls or shown.call, len(shown.prompt), trial.NAMES[0]
    for notation in notations:
        first = notation.learn(turn, begin, 0)
        if first is None:
            continue
        before, after = turn[begin : first.start], turn[first.end :]
        second = notation.learn(turn, first.end, 1) if shown.calls else None
        if second is not None and blocks.start not in turn[first.end : second.start]:
            after = turn[second.end :].partition(blocks.more.strip())[0]
            return with_section(first.notation, before, turn[first.end : second.start], after)
        header, named, call_start = before.rpartition(name)
        end = after[: after.find(blocks.more.strip())] + blocks.more if blocks.more.strip() in after else blocks.more
        if second is not None and blocks.more not in turn[first.end : second.start]:
            end = turn[first.end : second.start].partition(blocks.start)[0]  # calls end in another way
        return Calls(
            first.notation,
            header=header + "{name}" if named else "",
            call_start=call_start,
            call_end=end,
            separator=blocks.start,
            parallel=second is not None,
        )
    return None
