"""More choices than were asked for, of which the likeliest are told."""

from __future__ import annotations

from typing import Any

from llamasrv.domain.events import Event, Failed, Finished, Text, Usage
from llamasrv.pipeline.generation import Generation


class BestOf:
    """A generation of more choices than were asked for: keeps everything back until all have ended, then tells the
    `n` of each prompt with the highest log-probability per token. Reads like a Generation."""

    def __init__(self, generation: Generation, *, best_of: int, n: int, with_logprobs: bool) -> None:
        self._generation = generation
        self._best_of, self._n, self._with_logprobs = best_of, n, with_logprobs
        self._kept: list[Event] = []
        self.model = generation.model
        self.fingerprint = generation.fingerprint
        self.num_prompt = generation.num_prompt
        self.cancel = generation.cancel
        self.gather = generation.gather

    @property
    def done(self) -> bool:
        return self._generation.done

    @property
    def cancelled(self) -> bool:
        return self._generation.cancelled

    @property
    def usage(self) -> Usage | None:
        return self._generation.usage

    def events(self, timeout: float | None = None) -> list[Event]:
        """[] until all choices have ended, then everything."""
        self._kept += self._generation.events(timeout)
        return self._chosen() if self._generation.done else []

    def _chosen(self) -> list[Event]:
        by_choice: dict[int, list[Any]] = {}
        for event in self._kept[:-1]:
            by_choice.setdefault(event.index, []).append(event)  # type: ignore[union-attr]
        out: list[Event] = []
        for first in range(0, len(by_choice), self._best_of):
            group = range(first, first + self._best_of)
            best = sorted(group, key=lambda index: -_mean_logprob(by_choice[index]))[: self._n]
            for place, index in enumerate(best):
                new = first // self._best_of * self._n + place
                out += [self._renumbered(event, new) for event in by_choice[index]]
        return [*out, self._kept[-1]]

    def _renumbered(self, event: Any, index: int) -> Event:
        if isinstance(event, Text):
            return Text(index, event.text, event.logprobs if self._with_logprobs else ())
        if isinstance(event, Finished):
            return Finished(index, event.reason, event.stop)
        return Failed(index, event.error)


def _mean_logprob(events: list[Any]) -> float:
    values = [t.logprob for e in events if isinstance(e, Text) for t in e.logprobs if t.logprob is not None]
    return sum(values) / len(values) if values else float("-inf")
