"""A generation as one whole: what a reply without streaming is written from. The same events, added up."""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.domain.events import Event, Failed, Finished, FinishReason, Text, TokenLogprob, Usage
from llamasrv.errors import LlamasrvError


class Choice:
    """One choice, complete once `reason` is set."""

    __slots__ = ("text", "logprobs", "reason", "stop")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason: FinishReason | None = None
        self.stop: str | None = None


class Collected:
    """All choices of a generation, by index. The first failure is kept: it is the whole reply's."""

    def __init__(self, num_choices: int) -> None:
        self.choices = [Choice() for _ in range(num_choices)]
        self.usage = Usage()
        self.error: LlamasrvError | None = None

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Text):
                choice = self.choices[event.index]
                choice.text.append(event.text)
                if event.logprobs:
                    choice.logprobs += event.logprobs
            elif isinstance(event, Finished):
                choice = self.choices[event.index]
                choice.reason, choice.stop = event.reason, event.stop
            elif isinstance(event, Usage):
                self.usage = event
            elif isinstance(event, Failed):
                self.error = self.error or event.error
