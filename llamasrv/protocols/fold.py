"""Folds the events of a generation into what a whole reply is written from."""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.domain.events import (
    Compacted,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    Spoken,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    ToolsFound,
    Usage,
)
from llamasrv.domain.request import ToolCall
from llamasrv.protocols.reader import EventReader


class FoldedChoice:
    """One choice, complete once `reason` is set."""

    __slots__ = (
        "before",
        "text",
        "reasoning",
        "calls",
        "logprobs",
        "tokens",
        "reason",
        "stop",
        "usage",
        "slot",
        "audio",
    )

    def __init__(self) -> None:
        self.before: list[tuple[FoldedChoice, ToolsFound]] = []  # the parts before each tool search that the server ran
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[str, str, list[str]]] = []  # id, name, fragments of the arguments
        self.logprobs: list[TokenLogprob] = []
        self.tokens: list[int] = []  # token ids of the text, if requested
        self.reason: FinishReason | None = None
        self.stop: str | None = None
        self.usage: Usage | None = None
        self.slot: int | None = None
        self.audio: list[bytes] = []  # pieces of the audio file in which the text is spoken

    def finished(self, choice: int) -> Finished:
        """The event that completed the choice."""
        assert self.reason is not None
        return Finished(choice, self.reason, self.stop, self.usage, self.slot)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that were begun: an answer that was cut off may have ended inside the last one's arguments."""
        return tuple(ToolCall(id, name, "".join(fragments)) for id, name, fragments in self.calls)


class Fold(EventReader):
    """All choices of a generation, by number."""

    def __init__(self) -> None:
        self.choices: list[FoldedChoice] = []
        self.usage = Usage()
        self.compacted: Compacted | None = None

    def add(self, events: Iterable[Event]) -> None:
        methods = self._methods
        for event in events:
            methods[type(event)](self, event)

    def choice(self, number: int) -> FoldedChoice:
        while len(self.choices) <= number:
            self.choices.append(FoldedChoice())
        return self.choices[number]

    def on_text(self, event: Text) -> None:
        choice = self.choice(event.choice)
        choice.text.append(event.text)
        if event.logprobs:
            choice.logprobs += event.logprobs
        if event.tokens:
            choice.tokens += event.tokens

    def on_reasoning(self, event: Reasoning) -> None:
        self.choice(event.choice).reasoning.append(event.text)  # only the content has log-probabilities

    def on_call(self, event: ToolCallStart) -> None:
        self.choice(event.choice).calls.append((event.id, event.name, []))

    def on_arguments(self, event: ToolCallArguments) -> None:
        self.choice(event.choice).calls[event.call][2].append(event.fragment)

    def on_tools_found(self, event: ToolsFound) -> None:
        part = self.choice(event.choice)
        self.choices[event.choice] = rest = FoldedChoice()
        rest.before, part.before = [*part.before, (part, event)], []

    def on_compacted(self, event: Compacted) -> None:
        self.compacted = event

    def on_spoken(self, event: Spoken) -> None:
        self.choice(event.choice).audio.append(event.data)

    def on_finished(self, event: Finished) -> None:
        choice = self.choice(event.choice)
        choice.reason, choice.stop = event.reason, event.stop
        choice.usage, choice.slot = event.usage, event.slot

    def on_usage(self, event: Usage) -> None:
        self.usage = event
