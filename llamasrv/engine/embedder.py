"""The embedder: a model's second native thread, which turns inputs into vectors while the engine generates.

    take mail -> choose a group of inputs -> compute -> deliver

It has its own context over the same weights, so neither waits for the other. Inputs of different requests share a
group: requests take turns, each with its longest input that fits. While several requests wait, a group ends
after what is predicted to take GROUP_SECONDS, or after one input. Inputs with images or sounds are computed one by one,
once these are encoded. Knows tokens and vectors, no protocol and no text. Methods below the line
"embedder's thread" run on that thread only.
"""

from __future__ import annotations

import logging
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from llamasrv.domain.media import MediaSpan
from llamasrv.engine.base.arrays import Floats, Reals
from llamasrv.engine.base.channels import Stream
from llamasrv.engine.base.interface import DecodeFailed, EmbeddingBackend
from llamasrv.engine.base.media_timeline import MediaTimeline
from llamasrv.engine.base.metrics import EmbedderMetrics
from llamasrv.engine.base.side_thread import STOPPING, SideThread
from llamasrv.engine.media.embedding_line import Embedded, EmbeddingInput, EmbeddingLine
from llamasrv.engine.step.cost_model import CostModel, work_of
from llamasrv.errors import (
    DeadlineExceeded,
    EngineFailure,
    InputTooLong,
    InvalidRequest,
    LlamasrvError,
    QueueFull,
    Unavailable,
    Unsupported,
)

log = logging.getLogger("llamasrv.engine")

NONE: Mapping[int, Sequence[MediaSpan]] = {}
GROUP_SECONDS = 0.2  # max seconds of a group while others wait: inputs are answered with the longest of their group


def _length(one: EmbeddingInput) -> int:
    return len(one.tokens)


class Embedder(SideThread[EmbeddingBackend]):
    """`submit` inputs and read their stream: one Embedded per input, in any order."""

    name, context_name = "embedder", "the embedding context"

    def __init__(self, *, queue_limit: int = 1 << 14, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(queue_limit, clock)
        self.metrics = EmbedderMetrics()
        self._cost = CostModel(0.0, 0.0)  # before one was timed no group is cut
        # By stream, whose turn is next first; the shortest input first.
        self._waiting: dict[int, list[EmbeddingInput]] = {}
        self.line = EmbeddingLine(
            lambda result: self._mailbox.put(lambda: self.line.come(result)),
            lambda one, error: self._deliver(one, None, error),
            self.metrics,
        )

    # -- any thread ------------------------------------------------------------------------------------------

    def submit(
        self,
        inputs: Sequence[Sequence[int]],
        *,
        media: Mapping[int, Sequence[MediaSpan]] = NONE,
        deadline: float | None = None,
    ) -> Stream[Embedded]:
        """Submit the inputs of one request. `media`: by input, its images and sounds. Raises InvalidRequest,
        InputTooLong, Unsupported, QueueFull or Unavailable."""
        backend = self.backend
        if backend is None or self._stopping:
            raise Unavailable(STOPPING)
        for i, tokens in enumerate(inputs):
            if not tokens:
                raise InvalidRequest(f"Input {i} is empty.", param="input")
            if len(tokens) > backend.context:
                raise InputTooLong(num_prompt=len(tokens), context=backend.context, param="input")
        for spans in media.values():
            self._check(spans, backend)
        if len(inputs) > self.queue_limit:
            raise InvalidRequest(
                f"The request has {len(inputs)} inputs; this server takes at most {self.queue_limit} at once. "
                "Send them in several requests.",
                param="input",
            )
        if self.num_open + len(inputs) > self.queue_limit:
            raise QueueFull(f"The queue is full ({self.num_open} inputs). Try again shortly.")
        stream: Stream[Embedded] = Stream(self._doorbell, len(inputs))
        self._num_submitted += len(inputs)
        waiting = [
            EmbeddingInput(
                i, array("i", tokens), stream, deadline, MediaTimeline(tuple(media[i])) if media.get(i) else None
            )
            for i, tokens in enumerate(inputs)
        ]
        self._mailbox.put(lambda: self._arrive(waiting))
        return stream

    def _check(self, spans: Sequence[MediaSpan], backend: EmbeddingBackend) -> None:
        if not backend.most_rows or self.line.encode is None:
            raise Unsupported("This model makes embeddings of text only.", param="input")
        largest = max((span.chunk.num_tokens for span in spans if span.chunk.whole), default=0)
        if largest > backend.most_rows:
            raise InvalidRequest(
                f"The image takes {largest} tokens that have to be computed in one step; this server computes at most "
                f"{backend.most_rows}. Send a smaller image.",
                param="input",
            )

    def cancel(self, stream: Stream[Embedded]) -> None:
        """Cancel the open inputs of a request; its stream gets nothing more. Idempotent."""
        if stream.open_choices:
            self._mailbox.put(lambda: self._cancel(stream))

    # -- embedder's thread -----------------------------------------------------------------------------------

    def turn(self, *, wait: bool = False) -> bool:
        """Compute one group; with `wait`, sleep while there is nothing to do. True if anything was computed."""
        self._take_mail(1.0 if wait and not self._waiting and not self.line.is_ready else 0)
        self._expire()
        group = self._group()
        if group:
            self._compute(group)
        with_media = self.line.is_ready
        if with_media:
            self._compute([self.line.take()])
        self._doorbell.ring()
        return bool(group) or with_media

    def _arrive(self, inputs: list[EmbeddingInput]) -> None:
        self.metrics.requests += 1
        texts = sorted((one for one in inputs if one.media is None), key=_length)
        if texts:
            self._waiting[id(inputs[0].stream)] = texts
        for one in inputs:
            if one.media is not None:
                self.line.add(one)

    def _cancel(self, stream: Stream[Embedded]) -> None:
        gone = self._waiting.pop(id(stream), []) + self.line.drop(lambda one: one.stream is stream)
        self._count_out(stream, len(gone))

    def _fail_all(self, error: LlamasrvError) -> None:
        for inputs in [*self._waiting.values(), self.line.drop(lambda one: True)]:
            for one in inputs:
                self._deliver(one, None, error)
        self._waiting.clear()

    def _recreate(self) -> None:
        self.loaded.reset()

    def _expire(self) -> None:
        now = self.clock()
        for key, inputs in list(self._waiting.items()):
            deadline = inputs[0].deadline
            if deadline is not None and now >= deadline:
                for one in self._waiting.pop(key):
                    self._deliver(one, None, DeadlineExceeded("The request timed out."))
        if self.line:
            for one in self.line.drop(lambda one: one.deadline is not None and now >= one.deadline):
                self._deliver(one, None, DeadlineExceeded("The request timed out."))

    def _group(self) -> list[EmbeddingInput]:
        """The inputs to compute together: of each request in turn the longest that fits."""
        backend, turns = self.loaded, deque(self._waiting)
        room, beside = backend.group_tokens, self._most_tokens(backend.group_tokens)
        group: list[EmbeddingInput] = []
        while turns and room > 0 and len(group) < backend.group_inputs:
            key = turns.popleft()
            one = self._take(key, room)
            if one is not None:
                room = (room if group else beside) - len(one.tokens)
                group.append(one)
                if key in self._waiting:  # its next turn comes after the others'
                    self._waiting[key] = self._waiting.pop(key)
                    turns.append(key)
        return group

    def _most_tokens(self, most: int) -> int:
        """Of a group with more than one input."""
        while len(self._waiting) > 1 and most > 1 and self._cost.predict(*work_of([(most, 0)], 0, 0)) > GROUP_SECONDS:
            most //= 2
        return most

    def _take(self, key: int, room: int) -> EmbeddingInput | None:
        """The longest input of a request that fits."""
        inputs = self._waiting[key]
        at = bisect_right(inputs, room, key=_length)
        if not at:
            return None
        one = inputs.pop(at - 1)
        if not inputs:
            del self._waiting[key]
        return one

    def _compute(self, group: list[EmbeddingInput]) -> None:
        backend, started = self.loaded, self.clock()
        try:
            media = group[0].media
            vectors = (
                [backend.embed_media(group[0].tokens, media)] if media else backend.embed([one.tokens for one in group])
            )
        except DecodeFailed as error:
            log.error("a group of inputs failed: %s", error)
            self._fail(group)
            if error.fatal:
                self._reset()
            return
        except Exception:
            self._fail(group)
            raise
        for one, vector in zip(group, vectors):
            if np.isfinite(vector).all():
                self._deliver(one, vector, None)
            else:
                self._deliver(one, None, EngineFailure("The embeddings contain NaN or Inf."))
        m, seconds = self.metrics, self.clock() - started
        m.groups += 1
        m.inputs += len(group)
        m.tokens += sum(len(one.tokens) for one in group)
        m.seconds += seconds
        if media is None:
            work = work_of([(len(one.tokens), 0) for one in group], 0, 0)
            self._cost.learn(work.prompt, 0, seconds, work.own_cells, work.foreign_cells)

    def _fail(self, group: list[EmbeddingInput]) -> None:
        self.metrics.failed += 1
        for one in group:
            self._deliver(one, None, EngineFailure("Decoding failed for this request."))

    def _deliver(self, one: EmbeddingInput, vector: Floats | None, error: LlamasrvError | None) -> None:
        self._count_out(one.stream, 1)
        one.stream.put(Embedded(one.place, vector, error))

    def _count_out(self, stream: Stream[Embedded], count: int) -> None:
        stream.open_choices -= count
        self._num_ended += count


def finished(vector: Floats, *, dimensions: int | None, normalise: int) -> Floats:
    """Vectors truncated to `dimensions`, then normalised. `normalise`: the norm, by llama.cpp's number."""
    out = vector if dimensions is None else vector[..., :dimensions]
    contiguous: Floats = np.ascontiguousarray(_scaled(out, normalise), np.float32)
    return contiguous


def _scaled(vector: Floats, how: int) -> Reals:
    if how < 0:
        return vector
    wide = vector.astype(np.float64)
    if how == 0:  # scaled to 16-bit integers: the largest value is 32760
        size = np.abs(wide).max(-1, keepdims=True) / 32760.0
    elif how == 2:
        size = np.sqrt((wide * wide).sum(-1, keepdims=True))
    else:
        size = (np.abs(wide) ** how).sum(-1, keepdims=True) ** (1.0 / how)
    scaled: Reals = wide / np.where(size > 0, size, 1.0)
    return scaled
