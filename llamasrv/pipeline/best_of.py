"""best_of: generates more choices than were asked for and returns the likeliest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llamasrv.domain.events import Event, Text, Usage


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
            by_choice.setdefault(event.index, []).append(event)  # type: ignore[union-attr]
        out: list[Event] = []
        for first in range(0, len(by_choice), self._drawn):
            group = range(first, first + self._drawn)
            best = sorted(group, key=lambda index: -_mean_logprob(by_choice[index]))[: self._n]
            for place, index in enumerate(best):
                new = first // self._drawn * self._n + place
                out += [self._renumbered(event, new) for event in by_choice[index]]
        return [*out, self._kept[-1]]

    def _renumbered(self, event: Any, index: int) -> Event:
        if isinstance(event, Text) and not self._with_logprobs:
            event = replace(event, logprobs=())
        renumbered: Event = replace(event, index=index)
        return renumbered


def _mean_logprob(events: list[Any]) -> float:
    values = [t.logprob for e in events if isinstance(e, Text) for t in e.logprobs if t.logprob is not None]
    return sum(values) / len(values) if values else float("-inf")
