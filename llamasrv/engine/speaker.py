"""The speaker: the native thread of a speech model, which turns texts into frames; its vocoder turns these into sound.

    take mail -> seat -> decode -> advance -> hand over

Utterances decode together, each in a lane of its own; the generator's calls after that are one at a time. The next one
to be seated belongs to the owner who speaks least. Between two chunks of a long text its lane goes to one who waits,
unless that one's owner speaks more. An utterance whose reader or vocoder falls behind pauses in its lane, and after a
while leaves it to one who waits. Each ends once, with a SpeechEnd as the last item of its stream. Knows rows and
frames, no protocol. Methods below the line "speaker's thread" run on that thread only.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from llamasrv.domain.events import FinishReason
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.channels import Stream
from llamasrv.engine.base.interface import DecodeFailed, SpeechBackend, Utterance
from llamasrv.engine.base.metrics import SpeakerMetrics
from llamasrv.engine.base.side_thread import STOPPING, SideThread
from llamasrv.engine.vocoder import Sound, SpeechEnd, SpeechSequence, Vocoder
from llamasrv.errors import DeadlineExceeded, EngineFailure, LlamasrvError, QueueFull, Unavailable

log = logging.getLogger("llamasrv.engine")

QUEUE_LIMIT = 256
UNREAD = 16  # sounds and pieces of frames: at that many the utterance pauses
LONGEST_PAUSE = 2.0  # seconds in a lane that others wait for
LOOK_SECONDS = 0.05  # between two looks at the readers of paused utterances
MAX_VOICES = 64  # max voices whose rows are kept; at most 1.5 MB each


class Speaker(SideThread[SpeechBackend]):
    """`submit` a text and read its stream: Sounds, then one SpeechEnd."""

    name, context_name = "speaker", "the context for speech"

    def __init__(
        self,
        *,
        queue_limit: int = QUEUE_LIMIT,
        unread: int = UNREAD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(queue_limit, clock)
        self.metrics = SpeakerMetrics()
        self.unread = unread
        self._voices: dict[str, Floats] = {}  # the one used last is last
        self.waiting: list[SpeechSequence] = []
        self.running: list[SpeechSequence] = []
        self.ending: list[SpeechSequence] = []  # all their frames are made, their sound is not
        self.vocoder = Vocoder(self._doorbell, self.metrics, self._ended, clock)
        self._free: list[int] = []  # lanes

    # -- any thread ------------------------------------------------------------------------------------------

    def submit(
        self, utterance: Utterance, *, owner: str = "", deadline: float | None = None
    ) -> Stream[Sound | SpeechEnd]:
        """Start an utterance that the backend has made. Raises QueueFull or Unavailable."""
        if self.backend is None or self._stopping:
            raise Unavailable(STOPPING)
        if self.is_full:
            raise QueueFull(f"The queue is full ({self.num_open} texts). Try again shortly.")
        self._num_submitted += 1
        stream: Stream[Sound | SpeechEnd] = Stream(self._doorbell)
        speech = SpeechSequence(utterance, stream, owner, deadline, self.clock())
        self._mailbox.put(lambda: self._arrive(speech))
        return stream

    def cancel(self, stream: Stream[Sound | SpeechEnd]) -> None:
        """End it early. Idempotent."""
        if stream.open_choices:
            self._mailbox.put(lambda: self._cancel(stream))

    def voice(self, key: str) -> Floats | None:
        """The rows of a voice that was added lately."""
        rows = self._voices.pop(key, None)
        if rows is not None:
            self._voices[key] = rows
        return rows

    def add_voice(self, key: str, clip: bytes) -> Floats:
        """The rows of a voice from its clip: 32-bit floats in native byte order, mono, at SAMPLE_RATE. Slow; call it
        off the hub. Raises InvalidRequest or Unavailable."""
        if self.backend is None:
            raise Unavailable(STOPPING)
        rows = self._voices[key] = self.backend.encode_voice(np.frombuffer(clip, np.float32))
        for old in list(self._voices)[:-MAX_VOICES]:
            self._voices.pop(old, None)
        return rows

    def release(self) -> None:
        super().release()
        self.vocoder.backend = None
        self._voices.clear()

    # -- the engine's thread ---------------------------------------------------------------------------------

    def open(self, backend: SpeechBackend) -> None:
        self._free = list(range(backend.num_lanes))
        self.backend, self.vocoder.backend = backend, backend.vocoder

    def start(self) -> None:
        super().start()
        if self.backend is not None and self.backend.has_own_vocoder:
            self.vocoder.start()

    def close(self) -> None:
        super().close()
        self.vocoder.close()
        self._take_mail(0)  # notice cancelled sequences

    # -- the vocoder's thread --------------------------------------------------------------------------------

    def _ended(self, speech: SpeechSequence) -> None:
        self._num_ended += 1
        self._mailbox.put(lambda: self._release(speech))

    # -- speaker's thread ------------------------------------------------------------------------------------

    def turn(self, *, wait: bool = False) -> bool:
        """One step of all that speak; with `wait`, sleep while there is nothing to do. True if anything was
        computed."""
        idle = not (self._free and self._ready()) and all(map(self._is_paused, self.running))
        self._take_mail((LOOK_SECONDS if self.running or self.waiting else 1.0) if wait and idle else 0)
        self._expire()
        self._end_pauses()
        self._seat()
        parts = self._parts()
        if parts:
            self._compute(parts)
        while not self.loaded.has_own_vocoder and self.vocoder.turn():
            pass
        self._doorbell.ring()
        return bool(parts)

    def check(self) -> None:
        """That every lane is free or held by one utterance."""
        held = [speech.lane for speech in self.running if speech.lane is not None]
        assert len(held) == len(self.running)
        assert sorted([*self._free, *held]) == list(range(self.loaded.num_lanes)), (self._free, held)
        assert all(speech.lane is None for speech in self.waiting)
        assert all(speech.lane is None for speech in self.ending)
        assert self.num_open >= len(self.running) + len(self.waiting)

    def _arrive(self, speech: SpeechSequence) -> None:
        self.metrics.requests += 1
        self.waiting.append(speech)

    def _cancel(self, stream: Stream[Sound | SpeechEnd]) -> None:
        for speech in [*self.running, *self.ending, *self.waiting]:
            if speech.stream is stream:
                self._end(speech, FinishReason.CANCELLED)

    def _fail_all(self, error: LlamasrvError) -> None:
        for speech in [*self.running, *self.ending, *self.waiting]:
            self._end(speech, FinishReason.FAILED, error)

    def _recreate(self) -> None:
        self.loaded.reset()

    def _expire(self) -> None:
        now = self.clock()
        for speech in [*self.running, *self.ending, *self.waiting]:
            if speech.deadline is not None and now >= speech.deadline:
                self._end(speech, FinishReason.DEADLINE, DeadlineExceeded("The request timed out."))

    def _seat(self) -> None:
        speaking = Counter(speech.owner for speech in self.running)
        while self._free and (ready := self._ready()):
            speech = min(ready, key=lambda speech: speaking[speech.owner])
            self.waiting.remove(speech)
            speech.lane = self._free.pop()
            speech.seated = self.clock() if speech.seated is None else speech.seated
            speaking[speech.owner] += 1
            self.running.append(speech)

    def _ready(self) -> list[SpeechSequence]:
        """Who waits for a lane and has a reader. One that was paused would soon be again, before it is heard so far."""
        return [speech for speech in self.waiting if speech.num_unheard <= self.unread // 2]

    def _end_pauses(self) -> None:
        """Lanes of those whose readers have not read for long go to those who wait."""
        now, wanted = self.clock(), len(self._ready()) - len(self._free)
        for speech in list(self.running):
            if not self._is_paused(speech):
                speech.paused = None
            elif speech.paused is None:
                speech.paused = now
            elif wanted > 0 and now - speech.paused >= LONGEST_PAUSE and not self.loaded.is_deterministic:
                speech.paused = None
                self._give_up_lane(speech)
                self.waiting.insert(0, speech)
                wanted -= 1

    def _give_up_lane(self, speech: SpeechSequence) -> None:
        speech.utterance.release_lane()
        self._release(speech)

    def _gives_way(self, speech: SpeechSequence) -> bool:
        if self.loaded.is_deterministic and speech.utterance.kept:
            return False  # its kept rows would be computed in other batches
        speaking = Counter(speech.owner for speech in self.running)
        return any(speaking[other.owner] <= speaking[speech.owner] for other in self._ready())

    def _is_paused(self, speech: SpeechSequence) -> bool:
        return speech.num_unheard >= self.unread

    def _parts(self) -> list[tuple[SpeechSequence, Floats]]:
        """The rows of this step: every frame, then prompts as far as there is room."""
        if self.loaded.is_deterministic:
            return self._part_alone(self.loaded.max_rows)
        parts, room = [], self.loaded.max_rows
        for speech in sorted(self.running, key=lambda speech: len(speech.utterance.pending) > 1):
            if room and not self._is_paused(speech):
                rows = speech.utterance.pending[:room]
                parts.append((speech, rows))
                room -= len(rows)
        return parts

    def _part_alone(self, max_rows: int) -> list[tuple[SpeechSequence, Floats]]:
        """The rows of the utterance whose last step is longest ago."""
        for speech in self.running:
            if not self._is_paused(speech):
                self.running.remove(speech)
                self.running.append(speech)
                return [(speech, speech.utterance.pending[:max_rows])]
        return []

    def _compute(self, parts: list[tuple[SpeechSequence, Floats]]) -> None:
        backend, m, started = self.loaded, self.metrics, self.clock()
        computed = [(s.lane, s.utterance.position, rows) for s, rows in parts if s.lane is not None]
        try:
            places = backend.decode(computed)
            for (speech, rows), place in zip(parts, places):
                self._advance(speech, len(rows), place)
        except DecodeFailed as error:
            # NaN in a lane may spread to the others; so all of them start over with a fresh context.
            log.error("speech failed: %s", error)
            m.failed += 1
            for speech in list(self.running):
                self._end(speech, FinishReason.FAILED, EngineFailure("Decoding failed for this request."))
            self._reset()
        m.steps += 1
        m.seconds += self.clock() - started

    def _advance(self, speech: SpeechSequence, num_rows: int, place: int) -> None:
        assert speech.lane is not None
        utterance, before = speech.utterance, speech.utterance.num_frames
        utterance.mark_computed(num_rows)
        if len(utterance.pending):
            return
        try:
            if utterance.advance(place):
                if self._gives_way(speech):
                    self._give_up_lane(speech)
                    self.waiting.append(speech)
                else:
                    self.loaded.release(speech.lane, utterance.kept)
        except LlamasrvError as error:
            self._end(speech, FinishReason.FAILED, error)
            return
        self.metrics.frames += utterance.num_frames - before
        self.vocoder.give(speech, utterance.take_pieces())
        if utterance.is_done:
            self._end(speech, FinishReason.LENGTH if utterance.is_cut else FinishReason.STOP)

    def _end(self, speech: SpeechSequence, reason: FinishReason, error: LlamasrvError | None = None) -> None:
        self._release(speech)
        self.ending.append(speech)  # until the vocoder says that it has ended
        speech.deadline = None if error is not None else speech.deadline
        self.vocoder.end(speech, speech.end(reason, error, self.clock()))

    def _release(self, speech: SpeechSequence) -> None:
        for place in (self.waiting, self.running, self.ending):
            if speech in place:
                place.remove(speech)
        if speech.lane is not None:
            self.loaded.release(speech.lane)
            self._free.append(speech.lane)
            speech.lane = None
