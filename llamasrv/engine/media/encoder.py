"""The encoder: a separate thread that turns images and audio into rows while the engine decodes other sequences.

    engine thread                                            encoder's thread
      Encoder.want(seq)      ── missing chunks ──▶             projector.encode
      Encoder.take(result)   ◀── the engine's mailbox ──       rows, or an error

A chunk is encoded once per scope (an API key, say). Rows are kept under a limit of bytes and evicted by least recent
use; those that a sequence still needs are pinned. While pinned rows fill the limit, further sequences wait in order, so
that a long queue of images holds no more memory than a short one. The embedder's images are encoded here, too.
All methods but `encode` and `turn` belong to the engine thread.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from llamasrv.concurrency import Mailbox, RealThread
from llamasrv.domain.media import MediaChunk, MediaInput, MediaSpan
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.interface import Projector
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.media.turns import lacks_rows
from llamasrv.errors import EngineFailure, LlamasrvError

log = logging.getLogger("llamasrv.engine")

AHEAD = 2  # calls handed to the thread at once, so that it never waits for the next


Key = tuple[str, bytes]
"""Scope and content of a chunk. Scopes do not share rows: a quicker answer would reveal what others have sent."""


def _key(seq: Sequence, number: int) -> Key:
    return seq.spec.cache_key.scope, seq.own_media.spans[number].chunk.key


class Job:
    """Chunks of one input. `tell` gets the result, on the encoder's thread; `unwanted` cancels the job."""

    def __init__(
        self, media: MediaInput, chunks: list[MediaChunk], tell: Callable[[Encoded], None], scope: str = ""
    ) -> None:
        self.media = media
        self.scope = scope
        self.chunks = chunks
        self.tell = tell
        self.unwanted = False


class Encoded(NamedTuple):
    """`rows` of the job's first chunks; `error` if the others failed."""

    job: Job
    rows: list[Floats]
    seconds: float
    error: LlamasrvError | None


class Encoder:
    """`post` passes a result to the engine thread, which calls `take` with it. `fail` ends a sequence."""

    def __init__(
        self,
        projector: Projector,
        limit: int,
        *,
        post: Callable[[Encoded], None],
        fail: Callable[[Sequence, LlamasrvError], None],
        metrics: EngineMetrics,
    ) -> None:
        self.projector = projector
        self.limit = limit
        self.used = 0  # bytes of all rows
        self._post, self._fail, self._metrics = post, fail, metrics
        self._rows: OrderedDict[Key, Floats] = OrderedDict()  # least recently used first
        self._pins: dict[Key, int] = {}  # number of sequences that need a chunk's rows
        self._served: set[Sequence] = set()  # sequences with their rows, not all of them computed
        self._line: list[tuple[Sequence, list[int]]] = []  # waiting sequences, with the spans they need
        self._asked: list[Job] = []  # handed to the thread
        self._jobs: Mailbox[Job | None] = Mailbox()
        self._taken: deque[Job | None] = deque()
        self._stopping = False
        self._thread = RealThread(self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread and abandon its job. No sequence may be waiting."""
        self._stopping = True
        self._jobs.put(None)
        if self._thread.alive:
            self._thread.wait()

    def encode(self, media: MediaInput, chunks: list[MediaChunk], tell: Callable[[Encoded], None]) -> Job:
        """Encode these chunks for a caller that keeps the rows itself. Any thread may call it."""
        job = Job(media, chunks, tell)
        self._jobs.put(job)
        return job

    def want(self, seq: Sequence, cell: int) -> None:
        """Get the rows that a sequence needs from `cell` on; it is WAITING again once it has them."""
        seq.enter(SequenceState.AWAITING_ENCODER)
        self._served.discard(seq)
        self._line.append((seq, seq.own_media.missing(cell)))
        self._go_on()

    def look_ahead(self, seq: Sequence, cell: int) -> None:
        """Encode a newcomer's images and sounds from `cell` on while it waits."""
        if lacks_rows(seq, cell):
            self.want(seq, cell)

    def computed(self, seq: Sequence) -> None:
        """Release the rows of a sequence that are in KV now."""
        media = seq.own_media
        done = [number for number in media.rows if media.spans[number].end <= seq.num_computed]
        if done:
            self._release(seq, done)

    def release(self, seq: Sequence) -> None:
        """Release everything of a sequence that has ended or starts again."""
        media = seq.media
        if media is not None:
            self._line = [waiting for waiting in self._line if waiting[0] is not seq]
            self._release(seq, list(media.rows))

    def release_all(self) -> None:
        """Release everything: all sequences have ended."""
        for seq in {*self._served, *(seq for seq, _ in self._line)}:
            seq.own_media.rows.clear()
        self._line, self._served, self._pins = [], set(), {}
        self._go_on()

    def take(self, result: Encoded) -> None:
        job, rows, seconds, error = result
        self._asked.remove(job)
        self._metrics.media_encode_seconds += seconds
        self._metrics.media_encoded += len(rows)
        for chunk, one in zip(job.chunks, rows):
            key = job.scope, chunk.key
            if key not in self._rows:
                self._rows[key] = one
                self.used += one.nbytes
        if error is not None:
            failed = {(job.scope, chunk.key) for chunk in job.chunks[len(rows) :]}
            for seq, needed in list(self._line):
                if any(_key(seq, n) in failed for n in needed):
                    self._fail(seq, error.but())
        self._go_on()

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    def _release(self, seq: Sequence, numbers: list[int]) -> None:
        media = seq.own_media
        for number in numbers:
            key = _key(seq, number)
            del media.rows[number]
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
        if not media.rows:
            self._served.discard(seq)
        self._go_on()

    def _go_on(self) -> None:
        """Hand out available rows and ask for missing ones, in order, as far as memory allows."""
        wanted: set[Key] = set()  # by the sequences that fit the limit
        reserved = sum(self._rows[key].nbytes for key in self._pins)
        is_next = not self._served  # no other sequence would free memory: serve the first one beyond the limit
        for seq, needed in list(self._line):
            media = seq.own_media
            chunks = {_key(seq, n): media.spans[n] for n in needed if n not in media.rows}
            more = sum(
                4 * self.projector.width * span.chunk.num_tokens
                for key, span in chunks.items()
                if key not in wanted and key not in self._pins
            )
            if reserved + more > self.limit and not is_next:
                break
            is_next = False
            reserved += more
            wanted.update(chunks)
            self._serve(seq, needed)
            self._ask(seq.spec.cache_key.scope, [span for key, span in chunks.items() if key not in self._rows])
        for job in self._asked:
            # Never withdrawn: the thread may have skipped the job already.
            job.unwanted = job.unwanted or not any((job.scope, chunk.key) in wanted for chunk in job.chunks)
        self._evict()

    def _serve(self, seq: Sequence, needed: list[int]) -> None:
        media = seq.own_media
        for number in needed:
            key = _key(seq, number)
            if number not in media.rows and key in self._rows:
                media.rows[number] = self._rows[key]
                self._rows.move_to_end(key)
                self._pins[key] = self._pins.get(key, 0) + 1
        if all(number in media.rows for number in needed):
            self._line = [waiting for waiting in self._line if waiting[0] is not seq]
            self._served.add(seq)
            self._metrics.media_served += len(needed)
            seq.enter(SequenceState.WAITING)

    def _ask(self, scope: str, spans: list[MediaSpan]) -> None:
        """Start a job per input, with the chunks that no job covers yet."""
        of_scope = [job for job in self._asked if job.scope == scope and not job.unwanted]
        asked = {chunk.key for job in of_scope for chunk in job.chunks}
        inputs: dict[int, Job] = {}
        for span in spans:
            if span.chunk.key in asked:
                continue
            job = inputs.get(id(span.media))
            if job is None:
                if len(self._asked) + len(inputs) >= AHEAD:
                    break
                job = inputs[id(span.media)] = Job(span.media, [], self._post, scope)
            job.chunks.append(span.chunk)
        for job in inputs.values():
            self._asked.append(job)
            self._jobs.put(job)

    def _evict(self) -> None:
        for key in list(self._rows):
            if self.used <= self.limit:
                return
            if key not in self._pins:
                self.used -= self._rows.pop(key).nbytes

    # -- encoder's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self.turn(wait=True)

    def turn(self, *, wait: bool = False) -> bool:
        """Encode one job, on the calling thread. True if there was one. Tests without a thread call it."""
        if not self._taken:
            self._taken.extend([self._jobs.take_one()] if wait else self._jobs.take())
        job = self._taken.popleft() if self._taken else None
        if job is not None:
            self._encode(job)
        return job is not None

    def _encode(self, job: Job) -> None:
        started = time.monotonic()
        rows: list[Floats] = []
        error: LlamasrvError | None = None
        try:
            rows = self.projector.encode(job.media, job.chunks, lambda: job.unwanted or self._stopping)
        except LlamasrvError as refused:
            error = refused
        except Exception:
            log.exception("an image or audio clip could not be encoded")
            error = EngineFailure("Encoding the image or audio failed.")
        job.tell(Encoded(job, rows, time.monotonic() - started, error))
