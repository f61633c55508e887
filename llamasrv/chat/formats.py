"""How a model writes reasoning and tool calls, as plain data.

One ChatFormat drives the parser, the grammar and the trigger. `probe` learns it from the template; `families` has those
that cannot be learned. Marks are kept as the template writes them, white space included; readers may be lenient about
that, writers not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

from llamasrv.chat.markers import pieces
from llamasrv.chat.notations.base import Notation, options_of
from llamasrv.chat.notations.holes import filled, heads, split

_SIGNED = re.compile(r"[^\w\s.,:;!?'\"-]")
_WHOLE_MARK = re.compile(r"<[^<>\s]+>")
_ATTRIBUTED = re.compile(r"(<[^<>\s=]+ )[^<>]*=[^<>]*>\Z")
_MARK_AND_WORD = re.compile(r"(<[^<>\s]+>)\w+\Z")


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """Where thinking starts and ends. `start` "" means that only the prompt can open it."""

    start: str
    end: str
    ended_by_calls: bool = False  # a call or the start of the content ends the block, wherever it comes
    anywhere: bool = False  # a block may open after content, too
    opening: str = ""  # words at the end of the prompt that belong to the thinking
    assumed: bool = False  # whether this model thinks is unknown

    @property
    def head(self) -> str:
        """What a reader looks for: a mark with attributes up to these, whose values may be others."""
        start = self.start.strip()
        found = _ATTRIBUTED.match(start)
        return found[1] if found else start

    @property
    def attributed(self) -> bool:
        """Whether the start mark continues after its head, up to a bracket."""
        return self.head != self.start.strip()

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends inside a block."""
        end = prompt[-512:].rstrip()
        if self.opening and end.endswith(self.opening):
            return True
        if end.endswith(">") and self.attributed:
            end = end[end.rfind("<") :]
            return end.startswith(self.head)
        return bool(self.start) and end.endswith(self.start.strip())

    def reopened(self, prompt: str) -> str:
        """A prompt that ends inside a block, whatever it had opened or closed before."""
        if self.is_open(prompt):
            return prompt
        end = prompt.rstrip()
        if end.endswith(self.end.strip()):
            end = end[: -len(self.end.strip())].rstrip()
            return end if self.is_open(end) else end + self.start
        return prompt + self.start


@dataclass(frozen=True, slots=True)
class Headers:
    """An answer made of several messages, each with a header that names its recipient: to + recipient + body, the
    message, then `more` and `start` before the next message, or `last`."""

    start: str  # begins a message of the model; the prompt ends with it
    to: str  # before a recipient
    body: str  # ends the header
    user: str  # the recipient of content
    thinker: str = ""  # the recipient of thoughts
    tools: str = ""  # before the name of a tool that is the recipient
    more: str = ""  # ends a message that another follows
    last: str = ""  # ends the last one

    def opening(self, recipient: str) -> str:
        return self.to + recipient + self.body

    @property
    def text_start(self) -> str:
        return self.opening(self.user)

    @property
    def thought_start(self) -> str:
        """Empty if there are no thoughts."""
        return self.opening(self.thinker) if self.thinker else ""

    @property
    def next(self) -> str:
        """The text between two messages."""
        return self.more + self.start


@dataclass(frozen=True, slots=True)
class Blocks:
    """An answer made of blocks, each behind a header that says what it is, with `more` and `start` before the next
    one, or `last`. The header of a call belongs to Calls."""

    start: str  # begins a block; the prompt ends with it
    text_start: str
    thought_start: str
    more: str  # ends a block that another follows
    last: str  # ends the last one

    @property
    def next(self) -> str:
        """The text between two blocks."""
        return self.more + self.start

    @property
    def layout(self) -> str:
        """The white space that ends the header of a text."""
        return self.text_start[len(self.text_start.rstrip()) :]

    @property
    def ends(self) -> tuple[str, ...]:
        """The marks that may end a block."""
        return tuple(dict.fromkeys((self.more.strip(), *_WHOLE_MARK.findall(self.last))))

    def begun_by(self, prompt: str) -> str | None:
        """What the end of a prompt has begun: reasoning, content, or nothing yet."""
        for start, what in ((self.thought_start, "reasoning"), (self.text_start, "content")):
            if prompt.endswith(self.start + start):
                return what
        return None


@dataclass(frozen=True, slots=True)
class Calls:
    """How tool calls are written: section_start (header call_start call call_end) separator … section_end."""

    notation: Notation  # how the call itself is written
    header: str = ""  # header of the message that a call has to itself; holds {name}
    section_start: str = ""
    section_end: str = ""
    call_start: str = ""  # may have holes, as may the next and the marks of a section
    call_end: str = ""
    separator: str = ""
    gap: str = ""  # white space between a text and the first mark: part of neither
    indent: str = ""  # white space that a template writes before a call without words
    otherwise: str = ""  # another header that a call may have, up to its arguments; holds {name}
    at_start: bool = False  # the head of a turn is the mark of its first call
    ends_turn: bool = False  # the last mark may be what ends the turn, a token without text
    may_be_bare: bool = False  # a call without the marks is one, too: that is how earlier turns show them
    parallel: bool = True

    @property
    def lists(self) -> bool:
        """Whether the calls of a section are items of a list."""
        start = self.section_start or (self.call_start if self.notation.listed else "")
        return start.rstrip().endswith("[")

    @property
    def listed(self) -> bool:
        """Whether commas between the calls of a section say nothing, and brackets around them."""
        return self.lists or self.separator.strip() == ","

    @property
    def bare(self) -> bool:
        """Whether no mark announces a call: it stands at the start of the content."""
        return not self.openers

    @property
    def named_only(self) -> bool:
        """Whether nothing but the name of a tool begins the first call."""
        return self.at_start or (self.bare and self.notation.begins_with_name and not self.lists)

    @property
    def openers(self) -> tuple[str, ...]:
        """The marks that may begin a call, in a text as well: code fences stand in any, unless one comes first."""
        first, *later = self.beginnings or ("",)
        return tuple(mark for mark in (first, *later) if mark and (mark == first or not mark.startswith("```")))

    @property
    def beginnings(self) -> tuple[str, ...]:
        """All marks in front of a call that cannot be words of a text."""
        section = heads(self.section_start)
        first, *later = (*section, *(mark for mark in heads(self.call_start) if len(mark) > 1 or not section)) or ("",)
        return self._outside_lists((self._listed_start, first, *filter(_SIGNED.search, later)))

    @property
    def _listed_start(self) -> str:
        """The bracket that begins a list, with the mark of its first item."""
        item = heads(self.call_start)
        return self.section_start + item[0] if item and self.section_start.strip() == "[" else ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The marks in front of a call, one by one."""
        return heads(self.call_start)

    @property
    def holes(self) -> Mapping[str, tuple[str, str]]:
        """By the mark in front of it: what fills a hole, and the mark behind it."""
        found = {}
        for piece in pieces("\n".join((self.section_start, self.call_start, self.call_end, self.section_end))):
            before, hole, behind = split(piece)
            if hole:
                found[before] = hole, behind.strip() or "\n"
        return found

    @property
    def closers(self) -> tuple[str, ...]:
        """The marks that may follow a call."""
        words = self._outside_lists(heads(self.call_end) + heads(self.section_end))
        return (*words, "```") if any("```" in word for word in words) and "```" not in words else words

    @property
    def ready(self) -> str:
        """The mark that the call itself follows."""
        return (self.parts or ("",))[-1]

    @property
    def unmarked(self) -> tuple[str, ...]:
        """The characters that a call may begin with where no mark announces it."""
        if self.named_only:
            return (*ascii_letters, "_")
        found = self.notation.unmarked
        return (*found, "[") if found and "[" not in found and self.bare and self.lists else found

    @property
    def ends(self) -> tuple[str, ...]:
        """The mark that ends a call, if any."""
        return (heads(self.call_end) or self.closers)[:1]

    def begun_by(self, prompt: str) -> bool:
        """Whether the prompt has written the mark of a call."""
        return bool(self.ready) and prompt.endswith(self.ready)

    def write(self, made: Sequence[tuple[str, str]]) -> str:
        """Calls, each a name and arguments as JSON text, as the model would write them: for templates that do not show
        calls of earlier turns."""
        written = (
            self.header.replace("{name}", name)
            + filled(self.call_start, place)
            + self.notation.write(name, arguments, place)
            + filled(self.call_end, place)
            for place, (name, arguments) in enumerate(made)
        )
        start, end = (filled(mark, 0, len(made)) for mark in (self.section_start, self.section_end))
        return start + self.separator.join(written) + end

    def _outside_lists(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Marks without the brackets of lists, which are read on their own."""
        if self.lists:
            words = tuple(word.removesuffix("[").removeprefix("]").strip() for word in words)
        return tuple(dict.fromkeys(word for word in words if word))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """What a model writes after the prompt."""

    name: str
    reasoning: ReasoningMarks | None = None
    calls: Calls | None = None
    content_start: str = ""  # around the content
    content_end: str = ""
    leads: tuple[str, ...] = ()  # meaningless marks before the whole answer; their ends are in `role_ends`
    aside: str = ""  # begins words for the user that come before a call; they end as a thought does
    turn_end: str = ""  # written before the end token
    silent: tuple[str, ...] = ()  # marks without meaning
    role_ends: tuple[str, ...] = ()  # written behind every turn; a model may write them as text
    headers: Headers | None = None  # the answer is a row of messages
    blocks: Blocks | None = None  # the answer is a row of blocks
    others: tuple[str, ...] = ()  # marks built into the parser
    learned: bool = False  # learned by the probe, not from the table
    unsure: tuple[str, ...] = ()  # kinds of turns that do not come back as the template shows them

    def needs(self, token: str) -> bool:
        """Whether a special token is part of a mark, so that its text must reach the parser."""
        if not token.strip():
            return False
        notation = self.calls.notation if self.calls is not None else None
        parts = (self, self.reasoning, self.calls, self.headers, self.blocks, notation)
        texts = [text for part in parts if part is not None for text in options_of(part).values()]
        marks = [text for text in texts if isinstance(text, str)] + [*self.silent, *self.others]
        return any(token in mark for mark in marks)

    @property
    def content_layout(self) -> str:
        """The white space between the mark in front of the content and the content."""
        return self.content_start[len(self.content_start.rstrip()) :]

    @property
    def stray(self) -> tuple[str, ...]:
        """The mark that opens a thinking block together with a word: on its own it means nothing."""
        start = self.reasoning.start.strip() if self.reasoning is not None else ""
        found = _MARK_AND_WORD.match(start)
        return (found[1],) if found else ()

    def closed(self, prompt: str) -> str:
        """A prompt that allows no thinking: a block that it has opened is closed at once."""
        if self.reasoning is None or not self.reasoning.is_open(prompt):
            return prompt
        return f"{prompt.rstrip()}\n\n{self.reasoning.end.strip()}\n\n"

    def describe(self) -> dict[str, Any]:
        """A description for people: only what is set and matters for this notation."""
        described: dict[str, Any] = {"format": self.name, "learned": self.learned}
        if self.reasoning is not None:
            described["reasoning"] = options_of(self.reasoning)
        if self.calls is not None:
            notation = self.calls.notation
            described["calls"] = {**options_of(self.calls), "notation": notation.name, **notation.options()}
        if self.headers is not None:
            described["headers"] = options_of(self.headers)
        if self.blocks is not None:
            described["blocks"] = options_of(self.blocks)
        for name in ("content_start", "content_end", "leads", "turn_end", "silent", "role_ends", "unsure"):
            if getattr(self, name):
                described[name] = getattr(self, name)
        return described
