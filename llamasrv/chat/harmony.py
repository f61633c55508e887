"""Harmony: messages with a header (role, channel, recipient); a call is a message to a function."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llamasrv.chat.markers import marks
from llamasrv.chat.notations.base import ignore
from llamasrv.chat.notations.in_header import read_body
from llamasrv.chat.scanner import Steps

if TYPE_CHECKING:
    from llamasrv.chat.parser import Parser


_HEADER = re.compile(r"<\|channel\|>(?:\w*\Z|(?:analysis|commentary|final)\b)")  # cut off


def read_messages(parser: Parser, continues: str | None) -> Steps:
    """Read messages with a header (role, channel, recipient) and a body."""
    bodies = marks("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
    parser.space = None
    if continues is not None:
        give = parser.think if continues == "reasoning" else parser.say
        parser.in_reasoning = continues == "reasoning"
        mark = yield from parser.until(bodies, give)
    else:
        mark = "<|start|>"
    while mark is not None:
        header: list[str] = [] if mark == "<|start|>" else [mark]
        body = yield from parser.until(marks("<|message|>"), header.append)
        said = "".join(header)
        channel = said.rpartition("<|channel|>")[2].strip().split(" ")[0].split("<|")[0]
        found = re.search(r" to=([^\s<]+)", " " + said)
        recipient = found.group(1) if found else ""
        if body is None:
            plain = said.removeprefix("<|channel|>")  # without a header to follow, that mark says nothing
            if plain and "<|" not in plain and mark == "<|start|>" and not parser.calls and not _HEADER.match(said):
                parser.say(plain)
            return
        parser.in_reasoning = channel == "analysis" and not recipient
        if recipient.startswith("functions.") and parser.tools:
            yield from read_body(parser, recipient.removeprefix("functions."))
            mark = yield from parser.until(bodies, ignore)
        elif recipient and recipient not in ("assistant", "user", "all") and not recipient.startswith("functions."):
            mark = yield from parser.until(bodies, ignore)  # a built-in tool that nobody offered
        elif channel == "analysis":
            parser.between_marks()
            if not parser.split:
                parser.say(f"<|channel|>{channel}<|message|>")
            mark = yield from parser.until(bodies, parser.think)
            if not parser.split and mark is not None:
                parser.say("<|end|>")
            parser.space = None
        else:
            mark = yield from parser.until(bodies, parser.say)
        parser.in_reasoning = False
        while mark in ("<|end|>", "<|return|>", "<|call|>"):
            mark = yield from parser.until(marks("<|start|>", "<|channel|>"), parser.say)
