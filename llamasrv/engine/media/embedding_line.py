"""A queue of embedding inputs whose images and sounds are being encoded.

Only the first AHEAD inputs are encoded, so that a long queue holds no more memory than a short one. Rows are kept until
no input near the front needs them, so equal images in a row are encoded once. Belongs to the embedder's thread.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from llamasrv.domain.media import MediaChunk, MediaInput
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.channels import Stream
from llamasrv.engine.base.media_timeline import MediaTimeline
from llamasrv.engine.base.metrics import EmbedderMetrics
from llamasrv.engine.media.encoder import Encoded, Job
from llamasrv.errors import LlamasrvError

AHEAD = 2  # inputs encoded ahead: the second is ready when the first was computed


class Embedded(NamedTuple):
    """The result of one input, by its place in the request: its vector or an error."""

    place: int
    vector: Floats | None  # [size]; [tokens, size] with pooling "none"
    error: LlamasrvError | None = None


class EmbeddingInput(NamedTuple):
    """Input `index` of a request."""

    place: int
    tokens: array[int]
    stream: Stream[Embedded]
    deadline: float | None
    media: MediaTimeline | None = None


Encode = Callable[[MediaInput, list[MediaChunk], Callable[[Encoded], None]], Job]
"""`Encoder.encode`."""


class EmbeddingLine:
    """`tell` passes a result from the encoder's thread to the embedder's, which calls `come` with it; `fail` ends an
    input."""

    def __init__(
        self,
        tell: Callable[[Encoded], None],
        fail: Callable[[EmbeddingInput, LlamasrvError], None],
        metrics: EmbedderMetrics,
    ) -> None:
        self.encode: Encode | None = None  # set with the model
        self._tell, self._fail, self._metrics = tell, fail, metrics
        self._line: deque[EmbeddingInput] = deque()
        self._jobs: dict[bytes, Job] = {}  # by the chunk's key
        self._rows: dict[bytes, Floats] = {}

    def __bool__(self) -> bool:
        return bool(self._line)

    @property
    def is_ready(self) -> bool:
        """Whether the first input can be computed."""
        return bool(self._line) and all(key in self._rows for key in _keys(self._line[0]))

    def add(self, one: EmbeddingInput) -> None:
        self._line.append(one)
        self._go_on()

    def take(self) -> EmbeddingInput:
        """Remove the first input, with its rows."""
        one = self._line[0]
        assert one.media is not None and self.is_ready
        for number, span in enumerate(one.media.spans):
            one.media.rows[number] = self._rows[span.chunk.key]
        self._line.popleft()
        self._go_on(keep=_keys(one))
        return one

    def drop(self, is_gone: Callable[[EmbeddingInput], bool]) -> list[EmbeddingInput]:
        """Remove and return the inputs for which `is_gone`; encodes nothing more for them."""
        gone = [one for one in self._line if is_gone(one)]
        if gone:
            self._line = deque(one for one in self._line if not is_gone(one))
            self._go_on()
        return gone

    def come(self, result: Encoded) -> None:
        job, rows, seconds, error = result
        self._metrics.media_encode_seconds += seconds
        self._metrics.media_encoded += len(rows)
        self._rows.update((chunk.key, some) for chunk, some in zip(job.chunks, rows))
        for chunk in job.chunks:
            if self._jobs.get(chunk.key) is job:
                del self._jobs[chunk.key]
        if error is not None:
            failed = {chunk.key for chunk in job.chunks[len(rows) :]}
            for one in self.drop(lambda one: not failed.isdisjoint(_keys(one))):
                self._fail(one, error.but())
        self._go_on()

    def _go_on(self, keep: Collection[bytes] = ()) -> None:
        """Ask for the rows that the first AHEAD inputs lack; drop all others except `keep`."""
        wanted: dict[bytes, tuple[MediaInput, MediaChunk]] = {}
        for one in list(self._line)[:AHEAD]:
            assert one.media is not None
            wanted.update({span.chunk.key: (span.media, span.chunk) for span in one.media.spans})
        for key in [key for key in self._rows if key not in wanted and key not in keep]:
            del self._rows[key]
        for key in [key for key, job in self._jobs.items() if not any(chunk.key in wanted for chunk in job.chunks)]:
            self._jobs.pop(key).unwanted = True
        asked: dict[int, tuple[MediaInput, list[MediaChunk]]] = {}
        for key, (media, chunk) in wanted.items():
            if key not in self._rows and key not in self._jobs:
                asked.setdefault(id(media), (media, []))[1].append(chunk)
        for media, chunks in asked.values():
            assert self.encode is not None
            job = self.encode(media, chunks, self._tell)
            self._jobs.update({chunk.key: job for chunk in chunks})


def _keys(one: EmbeddingInput) -> set[bytes]:
    assert one.media is not None
    return {span.chunk.key for span in one.media.spans}
