"""An answer that has only so long: it ends at the first line's end after its time is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from llamasrv.domain.events import Event, Finished, FinishReason, Text, Usage
from llamasrv.pipeline.generation import Generation


class Hasty:
    """A generation that is given up `seconds` after its first text, once every choice has ended a line. What it said
    counts as complete. Reads like a Generation."""

    def __init__(
        self, generation: Generation, seconds: float, *, num_choices: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._generation = generation
        self._seconds, self._clock = seconds, clock
        self._began: float | None = None
        self._without_line = set(range(num_choices))
        self._over = False
        self.model = generation.model
        self.fingerprint = generation.fingerprint
        self.num_prompt = generation.num_prompt
        self.params = generation.params
        self.end_tokens = generation.end_tokens
        self.num_prompt_of = generation.num_prompt_of
        self.prompt_text = generation.prompt_text
        self.cancelled = False

    @property
    def done(self) -> bool:
        return self._generation.done

    @property
    def usage(self) -> Usage | None:
        return self._generation.usage

    def cancel(self) -> None:
        if not self.done:
            self.cancelled = True
            self._generation.cancel()

    def gather(self) -> None:
        """Nothing else: it always reads along, to see how lines end."""

    def events(self, timeout: float | None = None) -> list[Event]:
        out: list[Event] = []
        for event in self._generation.events(timeout):
            if isinstance(event, Text):
                self._look(event)
            elif self._over and isinstance(event, Finished) and event.reason is FinishReason.CANCELLED:
                event = Finished(event.index, FinishReason.LENGTH, None, event.usage, event.lane)
            out.append(event)
        return out

    def _look(self, event: Any) -> None:
        now = self._clock()
        if self._began is None:
            self._began = now
        if "\n" in event.text:
            self._without_line.discard(event.index)
        if not self._over and not self._without_line and now - self._began >= self._seconds:
            self._over = True
            self._generation.cancel()
