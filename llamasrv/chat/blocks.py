"""Answers made of blocks: a header says whether a thought, a text or a call follows, and one mark ends them all.

    <|thinking|>…<|end|><|model|><|text|>…<|end|><|model|>get_weather<|call|>{…}<|end|>

The prompt ends where a header begins, or behind one. A text without a header is a text. Some models write the name of
the tool in front of a call's header; it says nothing that the call does not say.
"""

from __future__ import annotations

from llamasrv.chat.calls import CallReader
from llamasrv.chat.emitter import Emitter
from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.markers import Marks, marks
from llamasrv.chat.scanner import NAME, Scanner, Steps

_THOUGHT, _TEXT = "reasoning", "content"


def read_blocks(
    text: Scanner, out: Emitter, format: ChatFormat, calls: CallReader | None, prompt: str, continues: str | None
) -> Steps:
    """Read all blocks of an answer. `continues`: the one that the prompt has begun; None: see the prompt's end."""
    blocks = format.blocks
    assert blocks is not None
    openers = calls.openers if calls is not None else ()
    thought, said = blocks.thought_start.strip(), blocks.text_start.strip()
    heads = marks(thought, said, *openers)
    ends = marks(*blocks.ends, blocks.start.strip(), *format.role_ends)
    head: str | None = {_THOUGHT: thought, _TEXT: said}.get(continues or blocks.begun_by(prompt) or "")
    while True:
        if head is None:
            if (yield from text.skip_space()):
                out.between_marks()
            head = yield from text.mark(heads)
            if head is None and openers:
                head = yield from _behind_a_name(text, openers)
        if head and head in openers:
            assert calls is not None
            yield from calls.section(head)
        elif head and head == thought:
            out.in_reasoning = True
            if not out.split and continues != _THOUGHT:
                out.say(thought)
            mark = yield from text.until(ends, out.think)
            out.in_reasoning = False
            if not out.split and mark is not None:
                out.say(mark)
        else:
            if head and blocks.layout:
                yield from text.mark(marks(blocks.layout))
            out.drop_space = out.drop_space and not head
            yield from _text_block(text, out, blocks.start.strip(), ends)
        out.between_marks()
        continues = None
        while (yield from text.skip_space()) and (yield from text.mark(ends)) is not None:
            pass
        if not (yield from text.char()):
            return
        head = None


def _text_block(text: Scanner, out: Emitter, start: str, ends: Marks) -> Steps:
    """A text up to its end. A mark that another text follows is part of it."""
    while True:
        mark = yield from text.until(ends, out.say)
        if mark is None or mark == start:
            return
        space = yield from text.space()
        if not (yield from text.char()) or (yield from text.peek(ends)):
            return
        out.say(mark + space)


def _behind_a_name(text: Scanner, openers: tuple[str, ...]) -> Steps:
    """The header of a call behind the name of a tool; both are consumed. None if there is none."""
    called = marks(*openers)
    while True:
        window = text.buffer[text.position : text.position + 256]
        found = called.search(window)
        name = window[: called.begun(window, 0) if found is None else found.start()]
        if name and not NAME.match(name):
            return None
        if found is not None:
            text.eat(text.position + found.end())
            return found.group()
        if text.ended or len(window) == 256:
            return None
        yield
