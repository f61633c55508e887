"""The encoder: a separate thread that turns images and audio into rows while the engine decodes other sequences.

    engine thread                                            encoder's thread
      Encoder.want(seq)      ── chunks that nobody has ──▶     projector.encode
      Encoder.take(result)   ◀── the engine's mailbox ──       rows, or why there are none

A chunk is encoded once for all of a scope (an API key, say) who want it, and images that wait go into one call where
the projector takes several. Rows stay, the least recently used leaving first, under a limit of bytes; those that a
sequence still needs are pinned. While what is pinned fills the limit the others wait in their order, so that a long
queue of images holds no more memory than a short one. The embedder has its images encoded here, too, in turn with
these. Every method but `encode` and `turn` is the engine thread's.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from llamasrv.domain.media import MediaChunk, MediaInput, MediaSpan
from llamasrv.engine.channels import Mailbox, RealThread
from llamasrv.engine.interface import MediaWork, Projector
from llamasrv.engine.kv.prefix_index import Match
from llamasrv.engine.media.turns import lacks_rows
from llamasrv.engine.metrics import EngineMetrics
from llamasrv.engine.sequence import Sequence, SequenceState
from llamasrv.errors import EngineFailure, LlamasrvError

log = logging.getLogger("llamasrv.engine")

AHEAD = 2  # calls with the thread: the next one is there when it ends one


Key = tuple[str, bytes]
"""Who shares a chunk's rows, and its content: how soon an answer begins must not tell what others have sent."""


def _key(seq: Sequence, number: int) -> Key:
    assert seq.media is not None
    return seq.spec.cache_key.scope, seq.media.spans[number].chunk.key


class Job:
    """Chunks of one input, and the recipient of their rows, called on the encoder's thread. `unwanted` is set once
    nobody waits for it."""

    def __init__(
        self, media: MediaInput, chunks: list[MediaChunk], tell: Callable[[Encoded], None], scope: str = ""
    ) -> None:
        self.media = media
        self.scope = scope
        self.chunks = chunks
        self.tell = tell
        self.unwanted = False


class Encoded(NamedTuple):
    """`rows` of the first chunks of the job; `error` if no more will come."""

    job: Job
    rows: list[np.ndarray]
    seconds: float
    error: LlamasrvError | None


class Encoder:
    """`post` hands a result to the engine thread, which passes it to `take`. `fail` ends a sequence."""

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
        self._rows: OrderedDict[Key, np.ndarray] = OrderedDict()  # least recently used first
        self._pins: dict[Key, int] = {}  # how many sequences need a chunk's rows
        self._served: set[Sequence] = set()  # who has its rows, and has not computed all of them
        self._line: list[tuple[Sequence, list[int]]] = []  # who waits, with the spans that it needs
        self._asked: list[Job] = []  # with the thread
        self._jobs: Mailbox[Job | None] = Mailbox()
        self._taken: deque[Job | None] = deque()
        self._stopping = False
        self._thread = RealThread(self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread and abandon what it works on. Nobody may be waiting any more."""
        self._stopping = True
        self._jobs.put(None)
        if self._thread.alive:
            self._thread.wait()

    def encode(self, media: MediaInput, chunks: list[MediaChunk], tell: Callable[[Encoded], None]) -> Job:
        """From any thread: encode these chunks for a caller that keeps the rows itself."""
        job = Job(media, chunks, tell)
        self._jobs.put(job)
        return job

    def want(self, seq: Sequence, cell: int) -> None:
        """Get what a sequence needs from this cell on; it is WAITING again once its rows are there."""
        assert seq.media is not None
        seq.enter(SequenceState.AWAITING_ENCODER)
        self._served.discard(seq)
        self._line.append((seq, seq.media.missing(cell)))
        self._go_on()

    def look_ahead(self, seq: Sequence, match: Match | None) -> None:
        """Encode a newcomer's images and sounds while it waits, except those that are in KV or will be in a moment."""
        cell = 0 if match is None else match.length + match.coming
        if lacks_rows(seq, cell):
            self.want(seq, cell)

    def computed(self, seq: Sequence) -> None:
        """Some of its rows are in KV now: it no longer holds them."""
        media = seq.media
        assert media is not None
        done = [number for number in media.rows if media.spans[number].end <= seq.num_computed]
        if done:
            self._release(seq, done)

    def forget(self, seq: Sequence) -> None:
        """It has ended, or starts again."""
        media = seq.media
        if media is not None:
            self._line = [waiting for waiting in self._line if waiting[0] is not seq]
            self._release(seq, list(media.rows))

    def forget_all(self) -> None:
        """All sequences have ended."""
        for seq in {*self._served, *(seq for seq, _ in self._line)}:
            assert seq.media is not None
            seq.media.rows.clear()
        self._line, self._served, self._pins = [], set(), {}
        self._go_on()

    def take(self, result: Encoded) -> None:
        job, rows, seconds, error = result
        self._asked.remove(job)
        self._metrics.encode_seconds += seconds
        self._metrics.chunks_encoded += len(rows)
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

    @property
    def num_pinned(self) -> int:
        return len(self._pins)

    def _release(self, seq: Sequence, numbers: list[int]) -> None:
        media = seq.media
        assert media is not None
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
        """Hand out the rows that are there, and ask for those that are not, in order, as far as memory allows."""
        wanted: set[Key] = set()  # by those that are served now
        reserved = sum(self._rows[key].nbytes for key in self._pins)
        is_next = not self._served  # nobody else would make room for the first of the line
        for seq, needed in list(self._line):
            media = seq.media
            assert media is not None
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
            # Once given up for good: the thread may have seen it already.
            job.unwanted = job.unwanted or not any((job.scope, chunk.key) in wanted for chunk in job.chunks)
        self._evict()

    def _serve(self, seq: Sequence, needed: list[int]) -> None:
        media = seq.media
        assert media is not None
        for number in needed:
            key = _key(seq, number)
            if number not in media.rows and key in self._rows:
                media.rows[number] = self._rows[key]
                self._rows.move_to_end(key)
                self._pins[key] = self._pins.get(key, 0) + 1
        if all(number in media.rows for number in needed):
            self._line = [waiting for waiting in self._line if waiting[0] is not seq]
            self._served.add(seq)
            self._metrics.chunks_served += len(needed)
            seq.enter(SequenceState.WAITING)

    def _ask(self, scope: str, spans: list[MediaSpan]) -> None:
        """A job for each input, with the chunks that no job covers yet."""
        of_scope = [job for job in self._asked if job.scope == scope and not job.unwanted]
        asked = {chunk.key for job in of_scope for chunk in job.chunks}
        inputs: dict[int, Job] = {}
        for span in spans:
            if span.chunk.key in asked:
                continue
            job = inputs.get(id(span.media))
            if job is None:
                if len(self._asked) + len(inputs) >= AHEAD * self.projector.most_together:
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
            if not self._taken:
                self._taken.append(self._jobs.take_one())
            self.turn()

    def turn(self) -> bool:
        """Make one call in the calling thread, for tests without a thread. True if there was work."""
        self._taken.extend(self._jobs.take())
        jobs = self._next_jobs()
        if len(jobs) > 1 and self._encode_together(jobs):
            return True
        for job in jobs:
            self._encode(job)
        return bool(jobs)

    def _next_jobs(self) -> list[Job]:
        """The next one, and those behind it that go into the same call."""
        taken = self._taken
        first = taken.popleft() if taken else None
        jobs = [first] if first is not None else []
        if first is None or first.unwanted or self.projector.most_together == 1:
            return jobs
        while taken and (job := taken[0]) is not None:
            if not job.unwanted:
                if not self.projector.fit_together([MediaWork(one.media, one.chunks) for one in (*jobs, job)]):
                    break
                jobs.append(job)
            else:
                job.tell(Encoded(job, [], 0.0, None))
            taken.popleft()
        return jobs

    def _encode_together(self, jobs: list[Job]) -> bool:
        """False if none of them has rows: each alone tells which one cannot be encoded."""
        started = time.monotonic()
        work = [MediaWork(job.media, job.chunks) for job in jobs]
        try:
            rows = self.projector.encode_together(work, lambda: self._stopping or all(job.unwanted for job in jobs))
        except Exception as error:
            level = logging.DEBUG if isinstance(error, LlamasrvError) else logging.WARNING
            log.log(level, "encoding %d images together failed: each is encoded alone", len(jobs), exc_info=True)
            return False
        seconds = (time.monotonic() - started) / len(jobs)
        for job, some in zip(jobs, rows):
            job.tell(Encoded(job, some, seconds, None))
        return True

    def _encode(self, job: Job) -> None:
        started = time.monotonic()
        rows: list[np.ndarray] = []
        error: LlamasrvError | None = None
        try:
            rows = self.projector.encode(job.media, job.chunks, lambda: job.unwanted or self._stopping)
        except LlamasrvError as refused:
            error = refused
        except Exception:
            log.exception("an image or audio clip could not be encoded")
            error = EngineFailure("Encoding the image or audio failed.")
        job.tell(Encoded(job, rows, time.monotonic() - started, error))
