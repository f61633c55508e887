"""The vocoder: makes sound of the frames of all that speak, and alone puts into their streams.

    take mail -> sound of one piece -> deliver

A speech model whose calls for sound are long gives it a thread and a context of its own: meanwhile everybody's next
frames are made. Otherwise the speaker's thread turns it after each of its steps. The next piece is for the listener who
runs out of sound first, each utterance's in order; a part is left out where a longer one has come meanwhile. Methods
below the line "its thread" run on that thread only.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from llamasrv.domain.events import FinishReason
from llamasrv.domain.speech import SAMPLE_RATE
from llamasrv.engine.base.channels import Doorbell, Stream
from llamasrv.engine.base.interface import DecodeFailed, SoundBackend, Utterance
from llamasrv.engine.base.metrics import SpeakerMetrics
from llamasrv.engine.base.side_thread import SideThread
from llamasrv.engine.base.sound_track import SoundPiece, SoundTrack, as_pcm
from llamasrv.errors import EngineFailure, LlamasrvError

log = logging.getLogger("llamasrv.engine")


class Sound(NamedTuple):
    """Samples that are new: 16 bits, little-endian, mono."""

    pcm: bytes


class SpeechEnd(NamedTuple):
    """The last item of an utterance, exactly one. `error` is set for FAILED and DEADLINE."""

    reason: FinishReason
    error: LlamasrvError | None
    num_prompt: int  # rows
    num_frames: int
    queue_seconds: float


class SpeechSequence:
    """An utterance on its way: its stream, and its lane while it is seated."""

    def __init__(
        self, utterance: Utterance, stream: Stream[Sound | SpeechEnd], owner: str, deadline: float | None, now: float
    ) -> None:
        self.utterance, self.stream, self.owner, self.deadline = utterance, stream, owner, deadline
        self.arrived = now
        self.seated: float | None = None
        self.lane: int | None = None
        self.paused: float | None = None  # since when its reader or the vocoder is behind
        self.track = SoundTrack()
        self.num_given = 0  # pieces; written by the speaker
        self.num_taken = 0  # pieces; written by the vocoder
        self.heard_until = now  # when a listener who plays it as it comes runs out of sound; written by the vocoder

    @property
    def num_unheard(self) -> int:
        """Pieces and sounds that its reader has not taken."""
        return len(self.stream) + self.num_given - self.num_taken

    def end(self, reason: FinishReason, error: LlamasrvError | None, now: float) -> SpeechEnd:
        own = None if error is None else error.but()  # each reader raises its own copy
        num_prompt = 0 if self.seated is None else self.utterance.num_prompt
        waited = (now if self.seated is None else self.seated) - self.arrived
        return SpeechEnd(reason, own, num_prompt, self.utterance.num_frames, waited)


class Vocoder(SideThread[SoundBackend]):
    """`give` it pieces of utterances, then their `end`."""

    name, context_name = "vocoder", "the context for sound"

    def __init__(
        self,
        doorbell: Doorbell,
        metrics: SpeakerMetrics,
        ended: Callable[[SpeechSequence], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ended` is called on its thread, once for each utterance."""
        super().__init__(0, clock, doorbell)
        self.metrics, self._ended = metrics, ended
        self._due: dict[SpeechSequence, deque[SoundPiece | SpeechEnd]] = {}  # none is empty

    # -- speaker's thread ------------------------------------------------------------------------------------

    def give(self, speech: SpeechSequence, pieces: Sequence[SoundPiece]) -> None:
        for piece in pieces:
            speech.num_given += 1
            self._mailbox.put(partial(self._take, speech, piece))

    def end(self, speech: SpeechSequence, end: SpeechEnd) -> None:
        """After its last piece; at once if it was cancelled or failed. The first end counts."""
        self._mailbox.put(partial(self._take_end, speech, end))

    # -- its thread ------------------------------------------------------------------------------------------

    def turn(self, *, wait: bool = False) -> bool:
        """Make the sound of one piece; with `wait`, sleep while there is none. True if there was one."""
        self._take_mail(1.0 if wait and not self._due else 0)
        works = bool(self._due)
        if works:
            speech = min(self._due, key=self._order)
            item = self._due[speech][0]  # it stays until it is done: a failure must find it
            if isinstance(item, SpeechEnd):
                self._finish(speech, item)
            else:
                self._sound(speech, item)
        self._doorbell.ring()
        return works

    def _order(self, speech: SpeechSequence) -> float:
        return -math.inf if isinstance(self._due[speech][0], SpeechEnd) else speech.heard_until

    def _take(self, speech: SpeechSequence, piece: SoundPiece) -> None:
        if speech.stream.open_choices:
            self._due.setdefault(speech, deque()).append(piece)

    def _take_end(self, speech: SpeechSequence, end: SpeechEnd) -> None:
        if end.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._due.setdefault(speech, deque()).append(end)
        else:
            self._finish(speech, end)

    def _sound(self, speech: SpeechSequence, piece: SoundPiece) -> None:
        pieces = self._due[speech]
        is_overtaken = not piece.is_whole and len(pieces) > 1
        if not is_overtaken:
            started = self.clock()
            try:
                samples = speech.track.sound(self.loaded, piece)
            except DecodeFailed as error:
                # Its state is its own, so nobody else is affected.
                log.error("speech failed: %s", error)
                self._fail(speech, EngineFailure("Decoding failed for this request."))
                return
            self.metrics.sounds += 1
            now = self.clock()
            self.metrics.sound_seconds += now - started
            speech.heard_until = max(speech.heard_until, now) + len(samples) / SAMPLE_RATE
            speech.stream.put(Sound(as_pcm(samples)))
        speech.num_taken += 1
        pieces.popleft()
        if not pieces:
            del self._due[speech]

    def _fail(self, speech: SpeechSequence, error: LlamasrvError) -> None:
        self._finish(speech, speech.end(FinishReason.FAILED, error, self.clock()))

    def _finish(self, speech: SpeechSequence, end: SpeechEnd) -> None:
        self._due.pop(speech, None)
        if speech.stream.open_choices:
            speech.stream.open_choices = 0
            speech.stream.put(end)
            self._ended(speech)

    def _fail_all(self, error: LlamasrvError) -> None:
        for speech in list(self._due):
            self._fail(speech, error)

    def _recreate(self) -> None:
        """Nothing to do: its context keeps nothing from call to call."""
