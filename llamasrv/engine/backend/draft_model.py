"""The draft model: a smaller model that predicts what the target model would write.

Its lanes have the same numbers as the target's. The tokens of each lane are remembered, so rejections need no call:
before drafting, the part that differs from the timeline is cut off and the missing part is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llamasrv.engine.backend.bound_batch import BoundBatch
from llamasrv.engine.backend.library import C, function
from llamasrv.engine.backend.limits import rows_and_ubatch
from llamasrv.engine.backend.placement import closed, load_model, open_context, place_context
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.base.arrays import common_prefix
from llamasrv.engine.base.batch import Batch
from llamasrv.engine.base.interface import LoadFailed, Proposal, Timeline
from llamasrv.engine.base.machine import available_cpus
from llamasrv.engine.base.options import EngineOptions

MOST_DIFFERENCE = 128  # max difference in vocabulary size, for padding
FIRST_CHECKED = 5  # lower tokens are specials whose texts may differ
WORTH_COPYING = 64  # min tokens to copy from another lane

_logits_of = function(
    "llama_get_logits_ith", C.llama_get_logits_ith.restype, *C.llama_get_logits_ith.argtypes, quick=True
)


def likeliest(context: Any, row: int, vocab_size: int) -> tuple[int, float]:
    """The most likely token of a row of logits, and its gap to the next one."""
    logits = np.ctypeslib.as_array(_logits_of(context, row), (vocab_size,))
    token = int(logits.argmax())
    best, logits[token] = float(logits[token]), -np.inf
    return token, best - float(logits.max())


class LlamaDraftModel:
    """Belongs to the engine thread."""

    source = "draft"

    def __init__(
        self, path: str, options: EngineOptions, target: Any, vocab: LlamaVocabulary, *, num_lanes: int
    ) -> None:
        """`target`: the model for which it drafts, with its vocabulary. Raises LoadFailed."""
        self._options = replace(
            options,
            gpu_layers=options.draft_gpu_layers,
            control_vectors=(),
            override_kv=(),
            override_tensor=(),
            mtp=False,
        )
        self._context: Any = None
        self._num_lanes = num_lanes
        self._model = load_model(path, self._options, lambda share: True)
        self._path = path
        self._size = vocab.size
        try:
            if C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model):
                raise LoadFailed(f"{path}: a draft model must be able to roll back; this one is recurrent")
            check_vocabularies(path, self._model, target)
            has_window = bool(C.llama_model_n_swa(self._model))
            rows, self._ubatch = rows_and_ubatch(options, least=num_lanes, whole=0, has_window=has_window)
            self._batch = Batch(rows)
            self._rows = BoundBatch(self._batch)
            self.reset()
        except BaseException:
            self.close()
            raise

    def reset(self) -> None:
        self._context = closed(self._context)
        o = self._options
        p = C.llama_context_default_params()
        p.n_ctx = o.context_cells or 32768
        p.n_batch, p.n_ubatch = self._batch.capacity, self._ubatch
        p.n_seq_max = self._num_lanes
        p.n_outputs_max = self._num_lanes
        p.n_threads = o.threads or available_cpus()
        p.n_threads_batch = o.threads_batch or p.n_threads
        p.kv_unified = True
        place_context(p, o)
        what = f"{self._path}: cannot create a draft context of {p.n_ctx} tokens"
        self._context = open_context(self._model, p, what)
        self._memory = C.llama_get_memory(self._context)
        self._held = [array("i") for _ in range(self._num_lanes)]
        self._vocab_size = int(C.llama_vocab_n_tokens(C.llama_model_get_vocab(self._model)))

    @property
    def sizes(self) -> tuple[list[Any], int, int]:
        """The arguments of `breakdown.host_bytes`: contexts, vocabulary size, output rows."""
        return [self._context], self._vocab_size, self._num_lanes

    def close(self) -> None:
        self._context = closed(self._context)
        if self._model:
            C.llama_model_free(self._model)
            self._model = None

    def follow(self, is_on: bool) -> None:
        """Nothing to do: it computes only on demand."""

    def lag(self, timeline: Timeline) -> int:
        """Number of tokens to compute before it can draft."""
        return len(timeline.tokens) - self._known(timeline)

    def _known(self, timeline: Timeline) -> int:
        held = self._held[timeline.lane]
        return min(common_prefix(held, timeline.tokens), len(timeline.tokens) - 1) if held else 0

    def advance(self, timeline: Timeline, most: int) -> bool:
        """Compute at most `most` of the missing tokens. Returns whether it now lags by a single token."""
        tokens, lane = timeline.tokens, timeline.lane
        start = self._begin(timeline)
        end = min(len(tokens) - 1, start + most)
        b = self._batch
        while start < end:
            count = min(end - start, b.capacity)
            b.token[:count], b.position[:count] = tokens[start : start + count], range(start, start + count)
            b.lane[:count], b.wants_logits[:count] = lane, 0
            if not self._decode(count, (lane,)):
                return False
            self._held[lane].extend(tokens[start : start + count])
            start += count
        return start >= len(tokens) - 1

    def propose(self, timelines: Sequence[Timeline], most: int) -> list[Proposal]:
        """Up to `most` greedy tokens per timeline, each with its gap to the next best token, in logits.

        Timelines that do not fit the batch or the cells get fewer tokens, or none. Each lags by a few tokens at most.
        """
        proposals = [Proposal([], []) for _ in timelines]
        b, keep = self._batch, tuple(t.lane for t in timelines)
        row, active, last = 0, [], []
        for i, timeline in enumerate(timelines):
            start = self._begin(timeline)
            missing = timeline.tokens[start:]
            end = row + len(missing)
            if end > b.capacity:
                continue
            b.token[row:end], b.position[row:end] = missing, range(start, start + len(missing))
            b.lane[row:end], b.wants_logits[row:end] = timeline.lane, 0
            b.wants_logits[end - 1] = 1
            self._held[timeline.lane].extend(missing)
            row = end
            active.append(i)
            last.append(end - 1)
        for step in range(most):
            if not row or not self._decode(row, keep):
                self._drop(keep)
                return proposals
            row, rows, going_on = 0, [], []
            for i, at in zip(active, last):
                token, gap = likeliest(self._context, at, self._vocab_size)
                if token >= self._size:
                    continue
                proposals[i].tokens.append(token)
                proposals[i].gaps.append(gap)
                going_on.append(i)
                rows.append(token)
            if step + 1 == most or not going_on:
                break
            for i, token in zip(going_on, rows):
                timeline = timelines[i]
                held = self._held[timeline.lane]
                b.token[row], b.position[row], b.lane[row], b.wants_logits[row] = token, len(held), timeline.lane, 1
                held.append(token)
                row += 1
            active, last = going_on, list(range(row))
        return proposals

    def _begin(self, timeline: Timeline) -> int:
        """Cut the lane to its common prefix with the timeline, or copy a longer one from another lane; returns its
        length."""
        tokens, lane = timeline.tokens, timeline.lane
        known = self._known(timeline)
        if len(tokens) - known > WORTH_COPYING:
            known = self._take_over(timeline, known)
        if known < len(self._held[lane]):
            C.llama_memory_seq_rm(self._memory, lane, known, -1)
            del self._held[lane][known:]
        return known

    def _take_over(self, timeline: Timeline, known: int) -> int:
        tokens, lane = timeline.tokens, timeline.lane
        found = ((common_prefix(held, tokens), other) for other, held in enumerate(self._held) if held)
        length, other = max(found, default=(0, lane))
        length = min(length, len(tokens) - 1)
        if other == lane or length < known + WORTH_COPYING:
            return known
        C.llama_memory_seq_rm(self._memory, lane, -1, -1)
        C.llama_memory_seq_cp(self._memory, other, lane, 0, length)
        self._held[lane] = tokens[:length]
        return length

    def _decode(self, num_rows: int, keep: Sequence[int]) -> bool:
        """Decode the batch; if cells run out, empty the lanes not in `keep` and try again. False if it failed."""
        native = self._rows.native
        native.n_tokens = num_rows
        code = C.llama_decode(self._context, native)
        if code == 1 and any(held for lane, held in enumerate(self._held) if lane not in keep):
            self._drop([lane for lane in range(self._num_lanes) if lane not in keep])
            code = C.llama_decode(self._context, native)
        if code:
            self._drop(keep)
        return bool(code == 0)

    def _drop(self, lanes: Sequence[int]) -> None:
        for lane in lanes:
            C.llama_memory_seq_rm(self._memory, lane, -1, -1)
            self._held[lane] = array("i")


def check_vocabularies(path: str, draft: Any, target: Any) -> None:
    """Raises LoadFailed if the two models' tokens differ."""
    a, b = C.llama_model_get_vocab(draft), C.llama_model_get_vocab(target)

    def fail(what: str) -> None:
        raise LoadFailed(
            f"{path}: its vocabulary differs from that of the target model: {what}. Use a smaller "
            "model of the same family."
        )

    if C.llama_vocab_type(a) != C.llama_vocab_type(b):
        fail("its type differs")
    for name in ("bos", "eos"):
        adds = getattr(C, f"llama_vocab_get_add_{name}")
        token = getattr(C, f"llama_vocab_{name}")
        if bool(adds(a)) != bool(adds(b)) or (adds(a) and token(a) != token(b)):
            fail(f"its begin or end token differs ({name})")
    sizes = C.llama_vocab_n_tokens(a), C.llama_vocab_n_tokens(b)
    if abs(sizes[0] - sizes[1]) > MOST_DIFFERENCE:
        fail(f"it has {sizes[0]} tokens, the other {sizes[1]}")
    text = C.llama_vocab_get_text
    for token in range(FIRST_CHECKED, min(sizes)):
        if text(a, token) != text(b, token):
            fail(f"token {token} is {_shown(text(a, token))} in one and {_shown(text(b, token))} in the other")


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace")[:40])
