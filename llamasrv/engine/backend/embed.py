"""Embeddings through llama.cpp: a separate context over a loaded model that turns inputs into vectors.

    bidirectional (BERT and its kin)    all rows of a group in one call; the ubatch holds the longest input
    causal                              calls of one ubatch each; an input may span several

Rows are pooled here, so that an input may be longer than a ubatch; only ranking uses the library's pooling. Checks
before each call whatever would abort the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from llamasrv.engine.backend.bound_batch import BoundBatch
from llamasrv.engine.backend.control_vector import steer
from llamasrv.engine.backend.cores import CoreShare
from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.library import C, reason
from llamasrv.engine.backend.media_rows import decode_rows
from llamasrv.engine.backend.placement import closed, open_context, place_context
from llamasrv.engine.backend.projector import LlamaProjector
from llamasrv.engine.base.arrays import Floats, Int32s, pooled
from llamasrv.engine.base.batch import Batch, MediaRows
from llamasrv.engine.base.interface import DecodeFailed, LoadFailed
from llamasrv.engine.base.media_timeline import MediaTimeline
from llamasrv.engine.base.options import POOLINGS, EngineOptions

LONGEST = 2048  # default max tokens of an input, if the model allows more
GROUP_INPUTS = 64
GROUP_STATES = 8  # inputs of a group for recurrent models, where each has a state
GROUP_TOKENS = 512
LOGIT_ROOM = 64 << 20  # max number of logits: the library allocates them for every row, even if unused


_UNSPECIFIED = ("0", "-1", "4294967295")
"""`pooling_type` of models that generate: none, and "as you like" (-1), which llama.cpp's own saver writes unsigned."""


def only_embeds(model: Any, metadata: dict[str, str]) -> bool:
    """Whether a model is made for embeddings: it specifies a pooling, or attention is bidirectional."""
    architecture = metadata.get("general.architecture", "")
    pooling = metadata.get(f"{architecture}.pooling_type", "0")
    return pooling not in _UNSPECIFIED or is_bidirectional(model, metadata)


def is_bidirectional(model: Any, metadata: dict[str, str]) -> bool:
    causal = metadata.get(f"{metadata.get('general.architecture', '')}.attention.causal", "true")
    return causal == "false" or not C.llama_model_has_decoder(model)


def pooling_of(metadata: dict[str, str], wanted: str | None) -> str:
    """The pooling: the operator's, else the model's, else the mean."""
    if wanted is not None:
        return wanted
    number = metadata.get(f"{metadata.get('general.architecture', '')}.pooling_type", "")
    own = POOLINGS[int(number)] if number.isdigit() and int(number) < len(POOLINGS) else "none"
    return "mean" if own == "none" else own


def _has_head(path: str) -> bool:
    """Whether a model's file has a classification head. Without one the library would return a hidden value as score.
    Read from the file, since the library does not list a loaded model's tensors."""
    with opened(Path(path)) as file:
        return file is not None and any(file.has_tensor(name) for name in ("cls.weight", "cls.output.weight"))


class LlamaEmbeddings:
    """The embedding context of a model; `vocab_size` and `context_train` are the model's."""

    def __init__(
        self,
        model: Any,
        options: EngineOptions,
        metadata: dict[str, str],
        *,
        path: str,
        vocab_size: int,
        context_train: int,
        threads: int,
        projector: LlamaProjector | None = None,
        most_whole: int = 0,
        group_inputs: int = GROUP_INPUTS,
        group_tokens: int = GROUP_TOKENS,
    ) -> None:
        """`most_whole`: max rows of an image that must be computed in one step. `group_inputs`, `group_tokens`: what is
        computed together; a longer input takes several calls. Raises LoadFailed."""
        self._model, self._options = model, options
        self._path, self._threads = path, threads
        self._cores = CoreShare(self._threads, lambda n: C.llama_set_n_threads(self._context, n, n))
        self._vocab_size = vocab_size
        self._projector, self._most_whole = projector, most_whole
        self.pooling = pooling_of(metadata, options.pooling)
        self._bidirectional = is_bidirectional(model, metadata)
        stateful = bool(C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))
        self.group_inputs = min(GROUP_STATES, group_inputs) if stateful else group_inputs
        longest = context_train or LONGEST
        self.context = min(longest, options.embedding_ctx) if options.embedding_ctx else min(longest, LONGEST)
        self.group_tokens = max(self.context, min(group_tokens, LOGIT_ROOM // vocab_size))
        self._tokens_a_call = self.group_tokens if self._bidirectional else min(self.group_tokens, group_tokens)
        if self.pooling == "rank" and not _has_head(path):
            raise LoadFailed(f"{path}: cannot rank documents: the model has no classification head")
        self._open_context()
        self.size: int = C.llama_model_n_cls_out(model) if self.pooling == "rank" else C.llama_model_n_embd_out(model)
        self.labels = self._labels_of(model) if self.pooling == "rank" else ()

    def _labels_of(self, model: Any) -> tuple[str, ...]:
        named = [C.llama_model_cls_label(model, i) for i in range(self.size)]
        return tuple(f"LABEL_{i}" if name is None else name.decode("utf-8", "replace") for i, name in enumerate(named))

    @property
    def context_handle(self) -> Any:
        """The library's handle."""
        return self._context

    def _open_context(self) -> None:
        p = C.llama_context_default_params()
        p.n_ctx = self.group_tokens
        p.n_batch = max(self._tokens_a_call, self.group_inputs, self._most_whole)
        p.n_ubatch = p.n_batch
        p.n_seq_max = self.group_inputs
        p.n_threads = p.n_threads_batch = self._threads
        self._cores.reset()
        p.kv_unified = True
        p.embeddings = True
        p.pooling_type = POOLINGS.index("rank") if self.pooling == "rank" else POOLINGS.index("none")
        place_context(p, self._options)
        what = f"{self._path}: cannot create an embedding context of {p.n_ctx} tokens"
        self._context = context = open_context(self._model, p, what)
        steer(context, self._model, self._options, self._path)
        self._memory = C.llama_get_memory(context)
        if not self._memory and not self._bidirectional:
            # The file may fail to say that attention is bidirectional: then a group must not be split into calls.
            self._bidirectional = True
            self.close()
            self._open_context()
            return
        self._rows_a_call: int = C.llama_n_ubatch(context)
        self._batch = Batch(self._rows_a_call)
        self._bound = BoundBatch(self._batch)
        takes_media = self._projector is not None and self._memory and not self._bidirectional
        self.most_rows = self._rows_a_call if takes_media and self.pooling != "rank" else 0

    def embed(self, inputs: Sequence[array[int]]) -> list[Floats]:
        lengths = [len(tokens) for tokens in inputs]
        assert 0 < len(lengths) <= self.group_inputs and min(lengths) > 0 and sum(lengths) <= self.group_tokens
        token = np.concatenate([np.frombuffer(tokens, np.int32) for tokens in inputs])
        assert token.min() >= 0 and token.max() < self._vocab_size
        position = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        lane = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        try:
            if self.pooling == "rank":
                return self._rank(token, position, lane, np.cumsum(lengths))
            rows = np.empty((len(token), self.size), np.float32)
            for start, end in self._calls(len(token)):
                self._decode(token[start:end], position[start:end], lane[start:end])
                rows[start:end] = self._vectors(end - start)
            return [pooled(part, self.pooling) for part in np.split(rows, np.cumsum(lengths)[:-1])]
        finally:
            if self._memory:
                C.llama_memory_clear(self._memory, False)

    def embed_media(self, tokens: array[int], media: MediaTimeline) -> Floats:
        numbers = np.frombuffer(tokens, np.int32)
        out = np.empty((len(numbers), self.size), np.float32)
        cell = 0
        try:
            while cell < len(numbers):
                end = self._advance(numbers, media, cell)
                out[cell:end] = self._vectors(end - cell)
                cell = end
            return pooled(out, self.pooling)
        finally:
            C.llama_memory_clear(self._memory, False)

    def _advance(self, numbers: Int32s, media: MediaTimeline, cell: int) -> int:
        """Compute the next tokens of text, or the next media rows. Returns where they end."""
        number = media.at(cell)
        if number is None:
            end = min(media.text_end(cell, len(numbers)), cell + self._rows_a_call)
            count = end - cell
            assert numbers[cell:end].min() >= 0 and numbers[cell:end].max() < self._vocab_size
            position = np.arange(count, dtype=np.int32) + media.position(cell)
            self._decode(numbers[cell:end], position.astype(np.int32), np.zeros(count, np.int32))
            return end
        projector, span = self._projector, media.spans[number]
        assert projector is not None
        first, count = cell - span.start, min(span.end - cell, self._rows_a_call)
        rows = MediaRows(
            media.rows[number][first : first + count],
            media.positions(number, first, count, projector.dimensions),
            span.chunk.whole,
        )
        self._decode_media(rows, projector)
        return cell + count

    def _calls(self, num_rows: int) -> list[tuple[int, int]]:
        step = self._rows_a_call
        return [(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]

    def _decode(self, token: Int32s, position: Int32s, lane: Int32s) -> None:
        n = len(token)
        assert 0 < n <= self._rows_a_call
        b, native = self._batch, self._bound.native
        b.token[:n], b.position[:n], b.lane[:n], b.wants_logits[:n] = token, position, lane, 1
        native.n_tokens = n
        self._compute(n, partial(C.llama_decode if self._memory else C.llama_encode, self._context, native))

    def _decode_media(self, rows: MediaRows, projector: LlamaProjector) -> None:
        n, b = len(rows.embeddings), self._batch
        assert 0 < n <= self._rows_a_call
        b.lane[:n], b.wants_logits[:n] = 0, 1
        compute = partial(
            decode_rows,
            self._context,
            self._bound.native,
            rows,
            width=projector.width,
            dimensions=projector.dimensions,
            ubatch_size=self._rows_a_call,
        )
        self._compute(n, compute)

    def _compute(self, n: int, compute: Callable[[], int]) -> None:
        code = self._cores.compute(compute)
        if code:
            raise DecodeFailed(f"computing {n} rows returned {code} ({reason()})", fatal=code == -3)

    def _vectors(self, num_rows: int) -> Floats:
        """The vectors of the last call: float32 [num_rows, size], valid until the next call."""
        found = C.llama_get_embeddings(self._context)
        if not found:
            raise DecodeFailed("llama.cpp returned no embeddings")
        return np.ctypeslib.as_array(found, (num_rows, self.size))

    def _rank(self, token: Int32s, position: Int32s, lane: Int32s, ends: Int32s) -> list[Floats]:
        out = []
        for start, end in self._calls(len(token)):
            self._decode(token[start:end], position[start:end], lane[start:end])
            # An input's score belongs to its last row.
            for number in np.flatnonzero((ends > start) & (ends <= end)).tolist():
                found = C.llama_get_embeddings_seq(self._context, number)
                if not found:
                    raise DecodeFailed("llama.cpp returned no score")
                out.append(np.ctypeslib.as_array(found, (self.size,)).copy())
        return out

    def reset(self) -> None:
        self.close()
        self._open_context()

    def close(self) -> None:
        self._cores.close()
        self._context = closed(self._context)
