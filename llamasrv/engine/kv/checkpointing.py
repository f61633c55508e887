"""Where in its prompt a sequence leaves checkpoints, and taking them there. Belongs to the engine thread."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.checkpoints import Checkpoints
from llamasrv.engine.kv.state import checkpoint

LEAST = 32  # min tokens that a checkpoint must save beyond the one before it
APART = 256  # min tokens between checkpoints at starts of messages, except the last two
APART_RAW = 48  # the same in a prompt without known message boundaries
BEFORE_END = 4  # tokens before the end of a prompt: its last tokens often differ in the next turn
EVERY = 2048  # tokens
NEAR = 16  # tokens: a checkpoint this close before a requested position serves it


class Checkpointing:
    """One per context; unused unless it `is_on`."""

    def __init__(self, checkpoints: Checkpoints, backend: Backend, metrics: EngineMetrics) -> None:
        self._checkpoints = checkpoints
        self._backend = backend
        self._metrics = metrics
        self.is_on = bool(checkpoints.limit) and not backend.traits.split

    def plan(self, seq: Sequence, start: int, *, branch: int) -> None:
        """Choose the checkpoints of a newcomer that has `start` tokens and shares `branch` tokens with others."""
        if not seq.spec.cache_prompt:
            return
        wanted = checkpoint_places(seq.num_tokens, start, seq.spec.boundaries, branch if branch - start >= LEAST else 0)
        if seq.media is not None:
            wanted = [seq.media.cut(at) for at in wanted]
        seq.checkpoints[:] = sorted({at for at in (*wanted, *seq.checkpoints) if at > start})

    def mark(self, seq: Sequence, length: int) -> None:
        """Have a sequence leave a checkpoint at `length`, unless there is one close before it, or prefixes are shared
        without."""
        places = seq.checkpoints
        at = bisect_right(places, length)
        if self.is_on and length >= LEAST and (not at or places[at - 1] < length - NEAR):
            places.insert(at, length)

    def take(self, seq: Sequence) -> None:
        """After a step: save a checkpoint if the sequence has reached one of its positions."""
        places = seq.checkpoints
        at, lane, key = seq.num_computed, seq.lane, seq.spec.cache_key
        while places and places[0] < at:
            del places[0]
        if not places or places[0] != at or lane is None:
            return
        del places[0]
        if not self.is_on:  # a pin's position
            return
        whole, backend = self._checkpoints.whole, self._backend
        size = backend.saved_size(lane) if whole else backend.mark_size(lane)
        if self._checkpoints.wants(seq.tokens, at, key, size):
            data = backend.save(lane) if whole else backend.mark(lane)
            self._checkpoints.put(checkpoint(seq.tokens[:at], data, key))
            self._metrics.checkpoints += 1


def checkpoint_places(num_prompt: int, start: int, boundaries: Iterable[int], branch: int = 0) -> list[int]:
    """Positions of checkpoints in a prompt that is computed from `start` on, ascending.

    `boundaries`: where it may diverge from other prompts; the last two get one each, the others at intervals.
    Checkpoints are denser towards the end, where prompts diverge most often. `branch`: where it diverges from another
    prompt already; what two prompts share, others will share.
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
