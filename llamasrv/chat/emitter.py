"""What was read of one choice, as events in the order of the text.

Holds back white space that may stand between marks only, and takes it away around thoughts. Knows nothing of how the
text is read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Union

from llamasrv.domain.events import Reasoning, Text, ToolCallArguments, ToolCallStart

Event = Union[Text, Reasoning, ToolCallStart, ToolCallArguments]


class Emitter:
    """Takes content, thoughts and calls; `taken` gives the events since the last time."""

    def __init__(self, choice: int, new_id: Callable[[], str], *, split: bool, begun: bool) -> None:
        """`choice` is its number. Without `split` reasoning is content, marks included. `begun`: the answer continues
        an existing text."""
        self.choice = choice
        self.split = split
        self.calls = 0
        self.complete_calls = 0
        self.in_reasoning = False
        self.seen_content = begun
        self.space: list[str] | None = None if begun else []  # held: it may be between marks only
        self.drop_space = False  # held and following white space only stands between marks
        self.opened = ""  # how the prompt opened a thought, where thoughts are content: said with the first of it
        self._new_id = new_id
        self._events: list[Event] = []

    def taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events if len(events) < 2 else joined(events)

    def say(self, text: str) -> None:
        """Emit content."""
        if self.space is not None:
            if text.isspace():
                self.space.append(text)
                return
            if not self.drop_space:
                text = "".join(self.space) + text
            else:
                text = text.lstrip()
            self.space = None
        if text:
            self.seen_content = True
            self._events.append(Text(self.choice, text))

    def think(self, text: str) -> None:
        """Emit a part of a thought."""
        if not self.split:
            text, self.opened = self.opened + text, ""
            self.say(text)
            return
        if self.space is not None:  # white space around the thinking is not part of it
            stripped = text.lstrip() if self.drop_space else text
            if not stripped or stripped.isspace():
                self.space.append(stripped)
                return
            text = "".join(self.space) + stripped
            self.drop_space = False
        body = text.rstrip()
        self.space = [text[len(body) :]]
        self._events.append(Reasoning(self.choice, body))

    def think_on(self, opening: str) -> None:
        """Emit the words of the prompt that begin a thought; the rest follows on a line of its own."""
        self.drop_space = True
        self.think(opening)
        self.space, self.drop_space = ["\n"], False

    def start_call(self, name: str, id: str | None = None) -> None:
        self._events.append(ToolCallStart(self.choice, self.calls, id or self._new_id(), name))
        self.calls += 1

    def argue(self, fragment: str) -> None:
        """Emit a part of the last call's arguments, as JSON text."""
        if fragment:
            self._events.append(ToolCallArguments(self.choice, self.calls - 1, fragment))

    def hold(self, space: str) -> None:
        """White space that is content if content follows."""
        if self.space is not None and space:
            self.space.append(space)

    def between_marks(self) -> None:
        """White space that follows is not content."""
        self.space, self.drop_space = [], True

    def let_go(self) -> None:
        """At the end: emit white space that was held, unless it only stood between marks."""
        if self.space and not self.drop_space and not self.calls:
            text, self.space = "".join(self.space), None
            self._events.append(Text(self.choice, text))


def joined(events: list[Event]) -> list[Event]:
    """Adjacent events that continue the same text, merged."""
    joined: list[Event] = []
    for (kind, _), group in groupby(events, key=lambda event: (type(event), getattr(event, "call", None))):
        same: list[Any] = list(group)
        if len(same) == 1 or kind is ToolCallStart:
            joined.extend(same)
        elif kind is ToolCallArguments:
            joined.append(same[0]._replace(fragment="".join(event.fragment for event in same)))
        else:
            joined.append(same[0]._replace(text="".join(event.text for event in same)))
    return joined
