"""Answers in channels: messages with a header (role, channel, recipient); a call is a message to a function."""

from __future__ import annotations

import re

from llamasrv.chat.calls import CallReader
from llamasrv.chat.emitter import Emitter
from llamasrv.chat.markers import marks
from llamasrv.chat.notations.base import ignore
from llamasrv.chat.scanner import Scanner, Steps

_HEADER = re.compile(r"<\|channel\|>(?:\w*\Z|(?:analysis|commentary|final)\b)")  # cut off


def read_messages(text: Scanner, out: Emitter, calls: CallReader | None, continues: str | None) -> Steps:
    """Read messages with a header (role, channel, recipient) and a body."""
    bodies = marks("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
    out.space = None
    if continues is not None:
        give = out.think if continues == "reasoning" else out.say
        out.in_reasoning = continues == "reasoning"
        mark = yield from text.until(bodies, give)
    else:
        mark = "<|start|>"
    while mark is not None:
        header: list[str] = [] if mark == "<|start|>" else [mark]
        body = yield from text.until(marks("<|message|>"), header.append)
        said = "".join(header)
        channel = said.rpartition("<|channel|>")[2].strip().split(" ")[0].split("<|")[0]
        found = re.search(r" to=([^\s<]+)", " " + said)
        recipient = found.group(1) if found else ""
        if body is None:
            plain = said.removeprefix("<|channel|>")  # without a header to follow, that mark says nothing
            if plain and "<|" not in plain and mark == "<|start|>" and not out.calls and not _HEADER.match(said):
                out.say(plain)
            return
        out.in_reasoning = channel == "analysis" and not recipient
        if recipient.startswith("functions.") and calls is not None:
            yield from calls.body(recipient.removeprefix("functions."))
            mark = yield from text.until(bodies, ignore)
        elif recipient and recipient not in ("assistant", "user", "all") and not recipient.startswith("functions."):
            mark = yield from text.until(bodies, ignore)  # a built-in tool that was not offered
        elif channel == "analysis":
            out.between_marks()
            if not out.split:
                out.say(f"<|channel|>{channel}<|message|>")
            mark = yield from text.until(bodies, out.think)
            if not out.split and mark is not None:
                out.say("<|end|>")
            out.space = None
        else:
            mark = yield from text.until(bodies, out.say)
        out.in_reasoning = False
        while mark in ("<|end|>", "<|return|>", "<|call|>"):
            mark = yield from text.until(marks("<|start|>", "<|channel|>"), out.say)
