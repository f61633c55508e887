"""A request under way: its model is loaded if need be, then its events come.

A Run is what the pipeline gives for a request. Stages (`echo.py`, `best_of.py`, `time_limit.py`) are functions on the
events of each wake; they combine in any order. Knows no wire format and no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llamasrv.domain.events import Event, Failed, Usage
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.interface import Vocabulary
from llamasrv.errors import LlamasrvError
from llamasrv.pipeline.cache_report import CacheReport
from llamasrv.pipeline.generation import Generation
from llamasrv.pipeline.load_wait import LoadWait

Stage = Callable[[list[Event]], list[Event]]
"""Called with the events of each wake, in order; returns what is to be told instead. The last events end with Usage."""


@dataclass(frozen=True, slots=True, eq=False)
class RunInfo:
    """What is known about a request once it has begun."""

    model: str
    fingerprint: str  # changes when the same seed could give another text
    params: SamplingParams  # how its tokens are chosen
    prompts: Sequence[list[int]]  # the tokens of each
    choices_each: int  # of each prompt, as told
    left_out: int  # messages that there was no room for
    vocab: Vocabulary
    cache: CacheReport | None = None  # what was found of its prompts, and what was not; None: of a batch
    windows: Sequence[tuple[float, float]] = ()  # of a sound that was cut: where each prompt's begins and ends, seconds

    @property
    def num_media(self) -> int:
        """How many tokens of all prompts belong to images and sounds."""
        return sum(token < 0 for tokens in self.prompts for token in tokens)

    @property
    def num_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self.vocab.eog

    def num_prompt_of(self, index: int) -> int:
        """Tokens of the prompt of a choice."""
        return len(self.prompts[index // self.choices_each])

    def prompt_text(self, index: int) -> str:
        """The prompt of a choice as the model got it: with control tokens, without images and sounds."""
        vocab = self.vocab
        controls = {token: text.encode() for text, token in vocab.controls.items()}
        tokens = self.prompts[index // self.choices_each]
        pieces = [vocab.pieces[t] or controls.get(t, b"") for t in tokens if t >= 0]
        return b"".join(pieces).decode("utf-8", "replace")

    def whole_text(self, answer: str) -> list[int]:
        """The tokens of the first prompt and its answer, so that a later request can go on; without images and
        sounds."""
        return [token for token in self.prompts[0] if token >= 0] + self.vocab.tokenize(answer, parse_special=False)


class Begun(NamedTuple):
    """A request that the engine has taken."""

    info: RunInfo
    generation: Generation
    stages: Sequence[Stage] = ()
    may_gather: bool = True  # whether nothing is lost when events come many at once


class Run:
    """Read `events` until `done`. One reader; any code may `cancel`."""

    def __init__(
        self,
        begin: Callable[[], Begun | None],
        wait: Callable[[], LoadWait],
        *,
        on_start: Callable[[RunInfo], None] | None = None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None = None,
    ) -> None:
        """`begin` hands the request to the engine; it returns None while the model is not loaded, and `wait` waits for
        that. Raises what `begin` raises if the model is loaded; if it is not, the error becomes an event. `explain` is
        applied to both."""
        self.info: RunInfo | None = None  # set when it has begun
        self.done = False
        self.cancelled = False
        self._begin = begin
        self._on_start = on_start
        self._explain = explain or _as_it_is
        self._wait: LoadWait | None = None
        self._generation: Generation | None = None
        self._stages: Sequence[Stage] = ()
        self._gathers, self._may_gather = False, True
        self._told: LlamasrvError | None = None
        try:
            begun = self._begun()
        except LlamasrvError as error:
            raise self._explain(error) from None
        if not begun:
            self._wait = wait()

    @property
    def has_begun(self) -> bool:
        """Whether its model was loaded and the engine has taken it."""
        return self.info is not None

    @property
    def usage(self) -> Usage | None:
        return None if self._generation is None else self._generation.usage

    def events(self, timeout: float | None = None) -> list[Event]:
        """What has happened since the last call; waits for at least one event. [] after `timeout` seconds without. A
        request whose model cannot be loaded, or that cannot begin once it is, ends with Failed."""
        generation = self._generation
        if generation is None:
            started = time.monotonic()
            try:
                generation = self._wait_for_model(timeout)
            except LlamasrvError as error:
                self.done = True
                return [Failed(0, self._explain(error))]
            except BaseException:
                self.done = True
                raise
            if generation is None:
                self.done = self.cancelled
                return [Failed(0, self._told)] if self.done and self._told is not None else []
            if timeout is not None:
                timeout = max(0.0, timeout - (time.monotonic() - started))
        events = generation.events(timeout)
        self.done = generation.done
        for stage in self._stages:
            events = stage(events)
        return events

    def cancel(self, error: LlamasrvError | None = None) -> None:
        """Cancel. The events still end: with FinishReason.CANCELLED if it had begun, else with `error` if the client
        has to be told. May be called any number of times."""
        if self.done or self.cancelled:
            return
        self.cancelled, self._told = True, error
        if self._generation is not None:
            self._generation.cancel()
        elif self._wait is not None:
            self._wait.cancel()

    def end_thinking(self) -> bool:
        """Have the model close its thinking block now and answer. False if it has none, or the request did not ask for
        `thinking_control`."""
        return self._generation is not None and self._generation.end_thinking()

    def gather(self) -> None:
        """Deliver many events at once from now on: for a reader that sends everything at the end."""
        self._gathers = True
        if self._generation is not None and self._may_gather:
            self._generation.gather()

    def _wait_for_model(self, timeout: float | None) -> Generation | None:
        """Start the request once its model is loaded; None: not in time, or cancelled."""
        wait = self._wait
        assert wait is not None
        with wait:
            # It may have had to make room again before this thread came to it.
            while not self.cancelled and wait.wait(timeout):
                if self._begun():
                    return self._generation
        return None

    def _begun(self) -> bool:
        begun = self._begin()
        if begun is None:
            return False
        self._generation, self._stages, self._may_gather = begun.generation, begun.stages, begun.may_gather
        self.info = begun.info
        if self._on_start is not None:
            self._on_start(begun.info)
        if self._gathers:
            self.gather()
        if self.cancelled:
            begun.generation.cancel()
        return True


def _as_it_is(error: LlamasrvError) -> LlamasrvError:
    return error
