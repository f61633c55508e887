"""A run whose answer is also spoken: its sentences go to a speech model while the text is still being written.

    text      one thread (a greenlet, in a worker) reads the run that writes the answer
    speech    another speaks the sentences in order, and asks for the next ones ahead
    reader    sees the events of both; the answer's end comes after its last sound

To its reader it is one run with one Usage.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from llamasrv.domain.events import Event, Failed, Finished, Spoken, Text, Usage
from llamasrv.errors import EngineFailure, LlamasrvError
from llamasrv.pipeline.run import Run, RunState
from llamasrv.pipeline.sentences import Sentences
from llamasrv.pipeline.speech import AnswerVoice, SpeechWork

log = logging.getLogger("llamasrv")

AHEAD = 2  # sentences that the speech model has at once
MOST_UNREAD = 256  # events; then both wait for the reader


class SpokenRun(Run):
    """Around the run that writes the text. Begins to read it at once."""

    def __init__(self, text: Run, voice: AnswerVoice) -> None:
        self._inner, self._voice = text, voice
        self.info, self.state, self.cancelled = text.info, RunState.RUNNING, False
        self._news = threading.Condition()
        self._events: deque[Event] = deque()
        self._sentences: deque[str] = deque()
        self._under_way: deque[SpeechWork] = deque()
        self._last: list[Event] = []  # Finished and Usage, for the end
        self._is_written = self._is_silenced = False
        self._failure: LlamasrvError | None = None
        self._num_open = 2
        self._num_frames = 0
        for read in (self._read_text, self._read_speech):
            threading.Thread(target=self._guarded, args=(read,), daemon=True).start()

    # ------------------------------------------------------------ the reader

    @property
    def has_begun(self) -> bool:
        return self._inner.has_begun

    def events(self, timeout: float | None = None) -> list[Event]:
        with self._news:
            self._news.wait_for(lambda: self._events or not self._num_open, timeout)
            events = list(self._events)
            self._events.clear()
            if not self._num_open:
                self.state = RunState.DONE
            self._news.notify_all()
        self.info = self._inner.info
        return events

    def cancel(self, error: LlamasrvError | None = None) -> None:
        if not self.done:
            self.cancelled = True
            self._inner.cancel(error)
            self._silence()

    def stop(self) -> None:
        self._inner.stop()

    def end_thinking(self) -> bool:
        return self._inner.end_thinking()

    def gather(self) -> None:
        """Sentences are spoken as they come, whatever the reader does."""

    def _silence(self) -> None:
        with self._news:
            self._is_silenced = True
            self._sentences.clear()
            self._news.notify_all()
        for utterance in list(self._under_way):
            utterance.cancel()

    def _put(self, event: Event) -> None:
        with self._news:
            self._news.wait_for(lambda: len(self._events) < MOST_UNREAD or self._is_silenced)
            self._events.append(event)
            self._news.notify_all()

    # ------------------------------------------------------------ both threads

    def _guarded(self, read: Callable[[], None]) -> None:
        try:
            read()
        except LlamasrvError as error:
            self._fail(error)
        except Exception:
            log.exception("a spoken answer failed")
            self._fail(EngineFailure("The answer could not be spoken."))
        finally:
            with self._news:
                self._num_open -= 1
                if not self._num_open:
                    self._events.extend(self._end())
                self._news.notify_all()

    def _fail(self, error: LlamasrvError) -> None:
        self._failure = self._failure or error
        self._inner.cancel()
        self._silence()

    def _end(self) -> list[Event]:
        """The last events."""
        out: list[Event] = []
        for event in self._last:
            if isinstance(event, Usage):
                tokens = event.completion_tokens + self._num_frames
                event = event._replace(completion_tokens=tokens, audio_tokens=self._num_frames)
            elif self._failure is not None:
                event = Failed(0, self._failure.but())
            out.append(event)
        if self._failure is not None and not any(isinstance(event, Failed) for event in out):
            out.insert(0, Failed(0, self._failure.but()))
        return out

    # ------------------------------------------------------------ text

    def _read_text(self) -> None:
        sentences = Sentences()
        try:
            while not self._inner.done:
                for event in self._inner.events():
                    if isinstance(event, (Finished, Usage)):
                        self._last.append(event)
                        continue
                    if isinstance(event, Failed):
                        self._failure = self._failure or event.error
                        self._silence()
                        continue
                    if isinstance(event, Text):
                        self._to_say(sentences.feed(event.text))
                    self._put(event)
            self._to_say(sentences.end())
        finally:
            with self._news:
                self._is_written = True
                self._news.notify_all()

    def _to_say(self, sentences: list[str]) -> None:
        if sentences and not self._is_silenced:
            with self._news:
                self._sentences.extend(sentences)
                self._news.notify_all()

    # ------------------------------------------------------------ speech

    def _read_speech(self) -> None:
        under_way, has_spoken = self._under_way, False
        try:
            while not self._is_silenced:
                while self._sentences and len(under_way) < AHEAD:
                    under_way.append(self._voice.say(self._sentences.popleft()))
                if self._is_silenced:
                    break
                if not under_way:
                    with self._news:
                        self._news.wait_for(lambda: self._sentences or self._is_written or self._is_silenced)
                    if not self._sentences:
                        break
                    continue
                has_spoken = True
                first = under_way[0]
                pieces = first.pieces()
                if first.done:
                    under_way.popleft()
                    self._num_frames += first.usage.completion_tokens
                    if first.error is not None:
                        raise first.error
                for piece in pieces:
                    if data := self._voice.encode(piece):
                        self._put(Spoken(0, data))
            if has_spoken and not self._is_silenced and (data := self._voice.end()):
                self._put(Spoken(0, data))
        finally:
            for utterance in under_way:
                utterance.cancel()
            for utterance in under_way:
                while not utterance.done:
                    utterance.pieces()
                self._num_frames += utterance.usage.completion_tokens
            self._voice.close()
