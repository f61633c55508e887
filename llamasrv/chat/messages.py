"""Answers made of several messages, each with a header that names its recipient: the user, the model, or a tool."""

from __future__ import annotations

import re

from llamasrv.chat.calls import CallReader
from llamasrv.chat.emitter import Emitter
from llamasrv.chat.formats import Headers
from llamasrv.chat.markers import Marks, marks
from llamasrv.chat.notations.base import ignore
from llamasrv.chat.scanner import Give, Scanner, Steps

_MOST_HEADER = 512  # characters


def read_messages(
    text: Scanner, out: Emitter, headers: Headers, calls: CallReader | None, continues: str | None
) -> Steps:
    """Read all messages of an answer. `continues`: the one that the prompt has begun. What looks like a call in a
    message to the user, or to the model itself, is quoted there."""
    in_header = calls is not None and calls.calls.notation.in_header  # then nothing else begins a call
    openers = calls.openers if calls is not None and not in_header else ()
    known = {headers.user, headers.thinker} - {""}
    recipient = {"reasoning": headers.thinker, "content": headers.user}.get(continues or "")
    if recipient is None:
        recipient = yield from _header(text, headers)
    while recipient is not None:
        ends = marks(*_ends(headers), *(() if recipient in known else openers))
        give: Give = out.say
        if headers.thinker and recipient == headers.thinker:
            give = out.think
            out.in_reasoning = True
            if not out.split:
                out.say(headers.opening(recipient).strip())
        elif calls is not None and in_header and recipient not in ("", headers.user):
            yield from calls.body(recipient.removeprefix(headers.tools))
            give = ignore  # what follows the arguments
        mark = yield from text.until(ends, give)
        out.in_reasoning = False
        while mark in openers and calls is not None:
            yield from calls.section(mark)
            mark = yield from text.until(ends, out.say)
        if mark is None:
            return
        if give == out.think and not out.split:
            out.say(mark)
        out.between_marks()
        recipient = yield from _next(text, headers)


def _ends(headers: Headers) -> tuple[str, ...]:
    return tuple(dict.fromkeys(mark for mark in (headers.more.strip(), headers.last.strip()) if mark))


def _header(text: Scanner, headers: Headers) -> Steps:
    """The recipient that a header names, by default the user. Empty for text without a header, which is for the user,
    too; None at the end of the text."""
    body = marks(headers.body.strip())
    while True:
        window = text.buffer[text.position : text.position + _MOST_HEADER]
        found = body.search(window)
        if found is not None:
            break
        if not _may_be_header(window, headers, body) or len(window) == _MOST_HEADER:
            return ""
        if text.ended:
            text.eat(len(text.buffer))  # it was cut off
            return None
        yield
    said = window[: found.start()]
    if not _may_be_header(said, headers, body):
        return ""
    text.eat(text.position + found.end())
    name = re.search(re.escape(headers.to.strip()) + r"\s*(\S+)", said)
    return name[1] if name else headers.user


def _may_be_header(said: str, headers: Headers, body: Marks) -> bool:
    """Whether a text can be the start of a header: a role, a recipient, the mark after them."""
    said = said[: body.begun(said, 0)].strip()
    to = headers.to.strip()
    role = headers.start.rpartition(">")[2].strip()
    if said.startswith(role):
        said = said[len(role) :].strip()
    return not said or role.startswith(said) or to.startswith(said) or (said.startswith(to) and " " not in said)


def _next(text: Scanner, headers: Headers) -> Steps:
    """The header of the next message; None at the end of the text."""
    if not (yield from text.skip_space()):
        return None
    start = headers.start.strip()
    if (yield from text.mark(marks(start, start.partition(">")[0] + ">"))) is None:
        return ""  # text where a message should begin
    return (yield from _header(text, headers))
