"""Answers made of several messages, each with a header that names its recipient: the user, the model, or a tool."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamasrv.chat.formats import Calls, Headers
from llamasrv.chat.markers import Marks, marks
from llamasrv.chat.notations.base import ignore
from llamasrv.chat.notations.in_header import read_body
from llamasrv.chat.scanner import Give, Steps

if TYPE_CHECKING:
    from llamasrv.chat.parser import Parser

_MOST_HEADER = 512  # characters


def read_messages(
    parser: Parser, headers: Headers, calls: Calls | None, openers: tuple[str, ...], continues: str | None
) -> Steps:
    """Read all messages of an answer. `continues` tells which one the prompt has begun."""
    if calls is not None and calls.notation.in_header:
        openers = ()  # the header is all that begins a call
    ends = marks(*_ends(headers), *openers)
    recipient = {"reasoning": headers.thinker, "content": headers.user}.get(continues or "")
    if recipient is None:
        recipient = yield from _header(parser, headers)
    while recipient is not None:
        give: Give = parser.say
        if headers.thinker and recipient == headers.thinker:
            give = parser.think
            parser.in_reasoning = True
            if not parser.split:
                parser.say(headers.opening(recipient).strip())
        elif calls is not None and calls.notation.in_header and recipient != headers.user:
            yield from read_body(parser, recipient.removeprefix(headers.tools))
            give = ignore  # what follows the arguments
        mark = yield from parser.until(ends, give)
        parser.in_reasoning = False
        while mark in openers and calls is not None:
            yield from parser.section(calls, mark)
            mark = yield from parser.until(ends, parser.say)
        if mark is None:
            return
        if give == parser.think and not parser.split:
            parser.say(mark)
        parser.between_marks()
        recipient = yield from _next(parser, headers, ends)


def _ends(headers: Headers) -> tuple[str, ...]:
    return tuple(dict.fromkeys(mark for mark in (headers.more.strip(), headers.last.strip()) if mark))


def _header(parser: Parser, headers: Headers) -> Steps:
    """The recipient that a header names, by default the user. Text without a header is for the user."""
    body = marks(headers.body.strip())
    while True:
        window = parser.buffer[parser.position : parser.position + _MOST_HEADER]
        found = body.search(window)
        if found is not None:
            break
        if not _may_be_header(window, headers, body) or len(window) == _MOST_HEADER:
            return headers.user
        if parser.ended:
            parser.eat(len(parser.buffer))  # cut off
            return None
        yield
    said = window[: found.start()]
    if not _may_be_header(said, headers, body):
        return headers.user
    parser.eat(parser.position + found.end())
    name = re.search(re.escape(headers.to.strip()) + r"\s*(\S+)", said)
    return name[1] if name else headers.user


def _may_be_header(text: str, headers: Headers, body: Marks) -> bool:
    """Whether a text can be the start of a header: a role, a recipient, the mark after them."""
    text = text[: body.begun(text, 0)].strip()
    to = headers.to.strip()
    role = headers.start.rpartition(">")[2].strip()
    if text.startswith(role):
        text = text[len(role) :].strip()
    return not text or role.startswith(text) or to.startswith(text) or (text.startswith(to) and " " not in text)


def _next(parser: Parser, headers: Headers, ends: Marks) -> Steps:
    """The header of the next message; None at the end of the text."""
    if not (yield from parser.skip_space()):
        return None
    start = headers.start.strip()
    if (yield from parser.mark(marks(start, start.partition(">")[0] + ">"))) is None:
        return headers.user  # text where a message should begin
    return (yield from _header(parser, headers))
