"""A model's own layer for the token after the next (MTP), as a draft model: a second context over the same weights.

For each token it needs the target's hidden state before it, which every decode of the target returns. Rows are queued
per lane and computed when a draft is needed or MOST_WAITING are queued. A lane may start at any position, since drafts
are verified. Every change to a lane of the target is applied to the lane with the same number here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from llamasrv.engine.backend.bound_batch import BoundBatch
from llamasrv.engine.backend.draft_model import likeliest
from llamasrv.engine.backend.library import C, hidden_states
from llamasrv.engine.backend.placement import closed, open_context
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.batch import Batch
from llamasrv.engine.base.interface import LoadFailed, Proposal, Timeline

MOST_WAITING = 64  # queued rows of a lane above which they are computed without waiting for a draft


def binding() -> Any:
    """The library's functions for MTP. Raises LoadFailed if it was built without them."""
    try:
        return hidden_states()
    except (ImportError, AttributeError) as error:
        raise LoadFailed(f"this build of llama-cpp-python cannot draft with MTP layers: {error}") from None


class _Lane:
    """Rows up to `computed` are in the context; `tokens` and `hidden` are the queued rows after them."""

    __slots__ = ("computed", "before", "tokens", "hidden")

    def __init__(self, computed: int, before: Floats) -> None:
        self.computed = computed
        self.before = before  # hidden state at `computed` - 1
        self.tokens: list[int] = []
        self.hidden: list[Floats] = []  # at the place of each

    @property
    def end(self) -> int:
        return self.computed + len(self.tokens)

    @property
    def last(self) -> Floats:
        return self.hidden[-1] if self.hidden else self.before

    def advance(self, count: int) -> None:
        """The first `count` queued rows are computed."""
        if count:
            self.computed, self.before = self.computed + count, self.hidden[count - 1]
            del self.tokens[:count], self.hidden[:count]


class LlamaMtp:
    """Belongs to the engine thread. The model must be loaded with its MTP layer, or the library aborts."""

    source = "mtp"

    def __init__(self, model: Any, target: Any, params: Any, *, vocab_size: int, num_lanes: int) -> None:
        """`params`: those of the target's context. Raises LoadFailed."""
        self._ext = binding()
        self._target, self._vocab_size = target, vocab_size
        self._width = int(C.llama_model_n_embd(model))
        self._lanes: dict[int, _Lane] = {}
        self.follows = False
        params.ctx_type, params.ctx_other = C.LLAMA_CONTEXT_TYPE_MTP, target
        params.n_rs_seq, params.n_outputs_max = 0, num_lanes
        self.context = open_context(model, params, "cannot create a context for the model's MTP layer")
        self._memory = C.llama_get_memory(self.context)
        self._batch = Batch(params.n_batch)
        self._rows = BoundBatch(self._batch)
        self._hidden = np.zeros((params.n_batch, self._width), np.float32)
        self._rows.native.embd = self._hidden.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        # Request all rows: asked only for those with logits, the library returns the first ones instead.
        self._ext.llama_set_embeddings_nextn(self.context, True, False)
        self.follow(True)

    def close(self) -> None:
        self.context = closed(self.context)

    def follow(self, is_on: bool) -> None:
        """Whether the target returns hidden states. Off, it cannot draft and costs nothing."""
        if is_on != self.follows:
            self.follows = is_on
            self._ext.llama_set_embeddings_nextn(self._target, is_on, False)
            if not is_on:
                self.drop(list(self._lanes))

    # what happens to the target

    def note(self, batch: Batch) -> None:
        """The target has computed these rows."""
        if not self.follows:
            return
        full = [number for number, lane in self._lanes.items() if len(lane.tokens) > MOST_WAITING]
        if full:
            self._catch_up(full)
        n = batch.num_rows
        hidden = np.ctypeslib.as_array(self._ext.llama_get_embeddings_nextn(self._target), (n, self._width)).copy()
        lanes = batch.lane[:n]
        starts = [0, *(np.flatnonzero(np.diff(lanes)) + 1).tolist(), n]
        for start, end in zip(starts, starts[1:]):
            self._add(
                int(lanes[start]), int(batch.position[start]), batch.token[start:end].tolist(), list(hidden[start:end])
            )

    def _add(self, number: int, position: int, tokens: list[int], hidden: list[Floats]) -> None:
        lane = self._lanes.get(number)
        if lane is None or lane.end != position:
            self.drop([number])
            if position:  # the hidden state before the first row is unknown: start with the second
                lane = _Lane(position + 1, hidden[0])
                tokens, hidden = tokens[1:], hidden[1:]
            else:
                lane = _Lane(0, np.zeros(self._width, np.float32))
            self._lanes[number] = lane
        lane.tokens += tokens
        lane.hidden += hidden

    def cut(self, number: int, position: int) -> None:
        lane = self._lanes.get(number)
        if lane is None or position >= lane.end:
            return
        if position < lane.computed:
            self.drop([number])
            return
        del lane.tokens[position - lane.computed :], lane.hidden[position - lane.computed :]

    def copy(self, source: int, target: int, position: int) -> None:
        self.drop([target])
        lane = self._lanes.get(source)
        if lane is None or not lane.computed <= position <= lane.end:
            return
        C.llama_memory_seq_cp(self._memory, source, target, 0, lane.computed)
        twin = self._lanes[target] = _Lane(lane.computed, lane.before)
        count = position - lane.computed
        twin.tokens, twin.hidden = lane.tokens[:count], lane.hidden[:count]

    def drop(self, numbers: list[int]) -> None:
        for number in numbers:
            if self._lanes.pop(number, None) is not None:
                C.llama_memory_seq_rm(self._memory, number, -1, -1)

    # drafts

    def lag(self, timeline: Timeline) -> int | None:
        lane = self._lanes.get(timeline.lane)
        return 1 + len(lane.tokens) if lane is not None and lane.end == len(timeline.tokens) - 1 else None

    def advance(self, timeline: Timeline, most: int) -> bool:
        """Compute everything missing at once: it is a single layer."""
        return self._catch_up([timeline.lane])

    def _catch_up(self, numbers: list[int]) -> bool:
        """Compute the queued rows of these lanes. False if a decode failed."""
        while any(number in self._lanes and self._lanes[number].tokens for number in numbers):
            row, counts = 0, {}
            for number in numbers:
                lane = self._lanes.get(number)
                if lane is None:
                    continue
                counts[number] = count = min(len(lane.tokens), self._batch.capacity - row)
                row = self._fill(row, number, lane, count)
            if not self._decode(row):
                return False
            for number, count in counts.items():
                self._lanes[number].advance(count)
        return True

    def _fill(self, row: int, number: int, lane: _Lane, count: int) -> int:
        """Lay out the first `count` queued rows of a lane; returns where they end."""
        end, b = row + count, self._batch
        if count:
            b.token[row:end], b.position[row:end] = lane.tokens[:count], range(lane.computed, lane.computed + count)
            b.lane[row:end], b.wants_logits[row:end] = number, 0
            self._hidden[row] = lane.before
            self._hidden[row + 1 : end] = lane.hidden[: count - 1] if count > 1 else 0
        return end

    def _fill_one(self, row: int, number: int, token: int, position: int, hidden: Floats) -> None:
        b = self._batch
        b.token[row], b.position[row], b.lane[row], b.wants_logits[row] = token, position, number, 1
        self._hidden[row] = hidden

    def propose(self, timelines: Sequence[Timeline], most: int) -> list[Proposal]:
        """Up to `most` greedy tokens per timeline. The first decode also computes the queued rows."""
        proposals = [Proposal([], []) for _ in timelines]
        row = 0
        active: list[tuple[int, int]] = []  # number of the timeline, and its row
        for i, timeline in enumerate(timelines):
            lane = self._lanes.get(timeline.lane)  # None: a decode has failed since `lag` was asked
            if lane is None or row + len(lane.tokens) + 1 > self._batch.capacity:
                continue
            row = self._fill(row, timeline.lane, lane, len(lane.tokens))
            self._fill_one(row, timeline.lane, timeline.tokens[-1], lane.end, lane.last)
            active.append((i, row))
            row += 1
        asked = [timelines[i].lane for i, _ in active]
        for step in range(most):
            if not row or not self._decode(row):
                return proposals
            if not step:
                for number in asked:
                    self._lanes[number].advance(len(self._lanes[number].tokens))
            found = [(i, at, *likeliest(self.context, at, self._vocab_size)) for i, at in active]
            active, row = [], 0
            for i, at, token, gap in found:
                proposals[i].tokens.append(token)
                proposals[i].gaps.append(gap)
                number = timelines[i].lane
                state = self._ext.llama_get_embeddings_nextn_ith(self.context, at)
                hidden = np.ctypeslib.as_array(state, (self._width,)).copy()
                active.append((i, row))
                self._fill_one(row, number, token, self._lanes[number].computed + step + 1, hidden)
                row += 1
        for number in asked:
            C.llama_memory_seq_rm(self._memory, number, self._lanes[number].computed, -1)
        return proposals

    def _decode(self, num_rows: int) -> bool:
        """Decode; if it fails, drop all lanes, whose contents are unknown then."""
        self._rows.native.n_tokens = num_rows
        if C.llama_decode(self.context, self._rows.native) == 0:
            return True
        self.drop(list(self._lanes))
        return False
