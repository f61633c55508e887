"""Where sequences leave checkpoints along the way, and when they reach them. Belongs to the engine thread."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llamasrv.engine.interface import Backend
from llamasrv.engine.kv.checkpoints import Checkpoint, Checkpoints
from llamasrv.engine.metrics import EngineMetrics
from llamasrv.engine.sequence import Sequence

if TYPE_CHECKING:
    from llamasrv.engine.scheduler import Plan

LEAST = 32  # tokens that a checkpoint has to spare beyond the one before it
APART = 256  # tokens between two beginnings of messages that both get one, but for the last two
APART_RAW = 48  # the same in a prompt of which nobody says where it may part
BEFORE_END = 4  # tokens: what ends a prompt is often written otherwise the next time
EVERY = 2048  # tokens
NEAR = 16  # tokens before a place that was asked for where a checkpoint does as well


class Checkpointing:
    """One per context. Only consulted if it `is_on`."""

    def __init__(self, checkpoints: Checkpoints, backend: Backend, metrics: EngineMetrics) -> None:
        self._checkpoints = checkpoints
        self._backend = backend
        self._metrics = metrics
        self.is_on = bool(checkpoints.limit) and not backend.split
        self._places: dict[int, list[int]] = {}  # of the sequence in a lane

    def along(self, seq: Sequence) -> dict[int, Checkpoint]:
        """The checkpoints to which a sequence could be brought back, by length."""
        if self._checkpoints.whole:
            return {}
        return self._checkpoints.along(seq.tokens, seq.num_tokens - 1, seq.spec.cache_key)

    def occupy(self, lane: int, seq: Sequence) -> None:
        self._places[lane] = seq.checkpoints

    def leave(self, lane: int) -> None:
        self._places.pop(lane, None)

    def plan(self, seq: Sequence, start: int, *, branch: int) -> None:
        """Where a newcomer that has `start` tokens already, and shares `branch` tokens with others, leaves
        checkpoints."""
        if not seq.spec.cache_prompt:
            return
        wanted = checkpoint_places(seq.num_tokens, start, seq.spec.boundaries, branch if branch - start >= LEAST else 0)
        if seq.media is not None:
            wanted = [seq.media.cut(at) for at in wanted]
        seq.checkpoints[:] = sorted({at for at in (*wanted, *seq.checkpoints) if at > start})

    def ask(self, lane: int, length: int) -> None:
        """Have the sequence in this lane leave a checkpoint there: another one waits for it."""
        _add(self._places.get(lane), length)

    def ask_of(self, seq: Sequence, length: int) -> None:
        """The same, for a sequence that is about to be seated."""
        _add(seq.checkpoints, length)

    def take(self, seq: Sequence) -> None:
        """After a step: keep the state of a sequence that has reached one of its places."""
        places = seq.checkpoints
        at, lane, key = seq.num_computed, seq.lane, seq.spec.cache_key
        while places and places[0] < at:
            del places[0]
        if not places or places[0] != at or lane is None:
            return
        del places[0]
        if not self.is_on:  # somebody else wanted it
            return
        whole, backend = self._checkpoints.whole, self._backend
        size = backend.saved_size(lane) if whole else backend.mark_size(lane)
        if self._checkpoints.wants(seq.tokens, at, key, size):
            self._checkpoints.add(seq.tokens[:at], backend.save(lane) if whole else backend.mark(lane), key)
            self._metrics.checkpoints += 1


def _add(places: list[int] | None, length: int) -> None:
    """Add a place, unless there is one close before it."""
    if places is None or length < LEAST:
        return
    at = bisect_right(places, length)
    if not at or places[at - 1] < length - NEAR:
        places.insert(at, length)


def checkpoint_places(num_prompt: int, start: int, boundaries: Iterable[int], branch: int = 0) -> list[int]:
    """Where a prompt that is computed from `start` on gets checkpoints, ascending.

    `boundaries` are where it may diverge from other prompts: the last two get one each, and enough of those before.
    They are denser towards the end, because prompts diverge there most often. `branch` is where it diverges from one
    that was computed: what two prompts share, others will share.
    """
    marks = sorted(set(boundaries))
    must = {branch, *marks[-2:]}
    if not any(num_prompt - LEAST <= at < num_prompt for at in must):
        must.add(num_prompt - BEFORE_END)
    wishes = [*marks[-3::-1]] if len(marks) > 2 else []
    wishes += [num_prompt - 2**n for n in range(6, max(7, num_prompt.bit_length()))]
    wishes += range(EVERY, num_prompt, EVERY)
    apart = APART if marks else APART_RAW
    kept = sorted(at for at in must if max(start, LEAST) < at < num_prompt)
    for at in wishes:
        i = bisect_left(kept, at)
        near = [*kept[max(0, i - 1) : i + 1], start]
        if start < at < num_prompt and at >= LEAST and min(abs(at - other) for other in near) >= apart:
            kept.insert(i, at)
    return kept


def stop_at_checkpoints(plan: Plan) -> None:
    """End the part of a sequence where its state is to be kept; other parts are not changed."""
    parts = plan.parts
    for i in range(plan.num_decodes, len(parts)):
        seq, count = parts[i]
        ahead = next((at - seq.num_computed for at in seq.checkpoints if at > seq.num_computed), count)
        if ahead < count:
            parts[i] = (seq, ahead)
    plan.num_prompt = sum(count for _, count in parts[plan.num_decodes :])
