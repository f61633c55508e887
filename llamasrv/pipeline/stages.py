"""Stages of an answer: each takes a list of events and returns the events to pass on.

TimeLimit   ends an answer at a line break once its time is up
Echo        puts the prompt in front of an answer
BestOf      generates more choices than the client asked for and returns the likeliest
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from llamasrv.domain.events import Event, Failed, Finished, FinishReason, Text, Usage


class TimeLimit:
    """A stage. Stops a generation `seconds` after its first text, as soon as every choice has ended a line; what was
    written counts as complete."""

    def __init__(
        self,
        seconds: float,
        give_up: Callable[[], None],
        *,
        num_choices: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._give_up, self._clock = seconds, give_up, clock
        self._began: float | None = None
        self._without_line = set(range(num_choices))
        self._over = False

    def __call__(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            if isinstance(event, Text):
                self._look(event)
            elif self._over and isinstance(event, Finished) and event.reason is FinishReason.CANCELLED:
                event = Finished(event.choice, FinishReason.LENGTH, None, event.usage, event.slot)
            out.append(event)
        return out

    def _look(self, event: Text) -> None:
        now = self._clock()
        if self._began is None:
            self._began = now
        if "\n" in event.text:
            self._without_line.discard(event.choice)
        if not self._over and not self._without_line and now - self._began >= self._seconds:
            self._over = True
            self._give_up()


class Echo:
    """A stage. `texts`: what each choice begins with, by number."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = dict(enumerate(texts))

    def __call__(self, events: list[Event]) -> list[Event]:
        if not self._texts:
            return events
        out: list[Event] = []
        for event in events:
            if isinstance(event, Text) and event.choice in self._texts:
                event = event._replace(text=self._texts.pop(event.choice) + event.text)
            elif isinstance(event, Finished | Failed) and event.choice in self._texts:
                out.append(Text(event.choice, self._texts.pop(event.choice)))
            out.append(event)
        return out


class BestOf:
    """A stage. Holds everything back until all choices have ended, then passes on the `n` of each prompt, of `drawn`,
    with the highest log-probability per token."""

    def __init__(self, *, drawn: int, n: int, with_logprobs: bool) -> None:
        self._drawn, self._n, self._with_logprobs = drawn, n, with_logprobs
        self._kept: list[Event] = []

    def __call__(self, events: list[Event]) -> list[Event]:
        self._kept += events
        return self._chosen() if events and isinstance(events[-1], Usage) else []

    def _chosen(self) -> list[Event]:
        by_choice: dict[int, list[Any]] = {}
        for event in self._kept[:-1]:
            by_choice.setdefault(event.choice, []).append(event)  # type: ignore[union-attr]
        out: list[Event] = []
        for first in range(0, len(by_choice), self._drawn):
            group = range(first, first + self._drawn)
            best = sorted(group, key=lambda choice: -_mean_logprob(by_choice[choice]))[: self._n]
            for place, choice in enumerate(best):
                new = first // self._drawn * self._n + place
                out += [self._renumbered(event, new) for event in by_choice[choice]]
        return [*out, self._kept[-1]]

    def _renumbered(self, event: Any, choice: int) -> Event:
        if isinstance(event, Text) and not self._with_logprobs:
            event = event._replace(logprobs=())
        renumbered: Event = event._replace(choice=choice)
        return renumbered


def _mean_logprob(events: list[Any]) -> float:
    values = [t.logprob for e in events if isinstance(e, Text) for t in e.logprobs if t.logprob is not None]
    return sum(values) / len(values) if values else float("-inf")
