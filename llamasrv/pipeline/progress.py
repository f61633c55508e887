"""Progress of a running request: prompt progress from the engine and token rates, as events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from llamasrv.domain import events
from llamasrv.domain.events import Event, Pace, PromptProgress, Usage
from llamasrv.engine.base.channels import Delta, PromptComputed, QueuePlace


class Progress:
    """Adds progress events to a generation. With `progress` there is one when its place in the queue changes, and for
    each part of a prompt that was computed; with `pace` each event follows one that reports the speed."""

    def __init__(self, *, progress: bool, pace: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress, self._pace, self._clock = progress, pace, clock
        self._prompts: dict[int, PromptComputed] = {}
        self._tokens: dict[int, tuple[int, float]] = {}  # how many, and when the first one came

    def note(self, item: Any, out: list[Event]) -> None:
        if type(item) is PromptComputed:
            before = self._prompts.get(item.choice)
            if before is not None and item.num_computed <= before.num_computed:
                return  # preempted: computed again
            self._prompts[item.choice] = item
        elif type(item) is Delta:
            count, first = self._tokens.get(item.choice, (0, self._clock()))
            self._tokens[item.choice] = count + 1, first
        elif type(item) is QueuePlace and self._progress:
            out.append(events.PromptWaits(item.choice, item.place, item.num_waiting))
            return
        else:
            return
        if self._pace and item.choice in self._prompts:
            if out and type(out[-1]) is Pace and out[-1].choice == item.choice:
                out.pop()  # a text of several tokens needs one of them
            out.append(Pace(item.choice, self._usage(item.choice)))
        if self._progress and type(item) is PromptComputed:
            total, cached, processed = item.num_prompt, item.num_reused, item.num_computed
            out.append(PromptProgress(item.choice, total, cached, processed, item.seconds))

    def _usage(self, choice: int) -> Usage:
        prompt = self._prompts[choice]
        now = self._clock()
        count, first = self._tokens.get(choice, (0, now))
        return Usage(
            prompt.num_computed, prompt.num_reused, count, prefill_seconds=prompt.seconds, decode_seconds=now - first
        )
