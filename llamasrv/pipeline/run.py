"""A running request: loads its model if necessary, then yields its events.

    Run          what the pipeline returns for a request
    Starter      submits the request to the engine once its model is loaded
    Submission   what the engine returned for it

Stages (`stages.py`) are functions on the events of each wake-up; they combine in any order. Knows no wire format and no
HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from llamasrv.domain.context_edits import AppliedEdit
from llamasrv.domain.events import Compacted, Event, Failed, Finished, FinishReason, Text, Usage
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence_spec import Urgency
from llamasrv.engine.base.channels import Delta, End, PromptScored, TokenItem, TokenStream
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.errors import EngineFailure, LlamasrvError, Unavailable
from llamasrv.pipeline.cache_report import CacheReport
from llamasrv.pipeline.compaction import LongConversation
from llamasrv.pipeline.detokenizer import Detokenizer
from llamasrv.pipeline.load_wait import LoadWait
from llamasrv.pipeline.progress import Progress
from llamasrv.pipeline.run_usage import usage_of, usage_of_all
from llamasrv.pipeline.stages import TimeLimit

Stage = Callable[[list[Event]], list[Event]]
"""Called with the events of each wake, in order; returns the events to emit instead. The last events end with Usage."""


class RunInfo(NamedTuple):
    """What is known about a request once it has begun."""

    model: str
    fingerprint: str  # changes when the same seed could give another text
    params: SamplingParams  # how its tokens are chosen
    prompts: Sequence[list[int]]  # the tokens of each
    choices_each: int  # of each prompt, as the reply shows them
    left_out: int  # messages dropped because they did not fit
    vocab: Vocabulary
    cache: CacheReport | None = None  # which part of its prompts was cached; None for a batch
    windows: Sequence[tuple[float, float]] = ()  # seconds, start and end of each prompt's part of a recording
    edits: Sequence[AppliedEdit] = ()  # what was removed from the conversation
    compacted: Compacted | None = None  # the summary that it continues from

    @property
    def num_media(self) -> int:
        """Tokens of all prompts that belong to images and sounds."""
        return sum(token < 0 for tokens in self.prompts for token in tokens)

    @property
    def num_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self.vocab.eog

    def num_prompt_of(self, choice: int) -> int:
        """Tokens of the prompt of a choice."""
        return len(self.prompts[choice // self.choices_each])

    def prompt_text(self, choice: int) -> str:
        """The prompt of a choice as the model saw it: with control tokens, without images and sounds."""
        vocab = self.vocab
        controls = {token: text.encode() for text, token in vocab.controls.items()}
        tokens = self.prompts[choice // self.choices_each]
        pieces = [vocab.pieces[t] or controls.get(t, b"") for t in tokens if t >= 0]
        return b"".join(pieces).decode("utf-8", "replace")

    def whole_text(self, answer: str) -> list[int]:
        """The tokens of the first prompt and its answer, so that a later request can continue it; without images and
        sounds."""
        return [token for token in self.prompts[0] if token >= 0] + self.vocab.tokenize(answer, parse_special=False)


class RunEngine(Protocol):
    """The part of an engine that a run uses."""

    def cancel(self, stream: TokenStream) -> None: ...

    def hurry(self, stream: TokenStream, urgency: Urgency) -> None: ...

    def end_thinking(self, constraints: Iterable[OutputConstraint]) -> None: ...


class Submission(NamedTuple):
    """A request that the engine has taken."""

    info: RunInfo
    engine: RunEngine
    stream: TokenStream
    choices: Sequence[Detokenizer]  # one per choice: turns its tokens into events
    each: int = 1  # choices of one prompt
    start_token: int | None = None  # a first token that is not part of the prompt's text
    progress: Progress | None = None  # receives the items that report progress
    thinking: Sequence[OutputConstraint] = ()  # constraints that can close a thinking block on demand
    stages: Sequence[Stage] = ()
    time_limit: float | None = None  # seconds, counted from its first text
    summary: bytes | None = None  # key in the book of summaries: this run writes a summary that the answer needs first
    talk: LongConversation | None = None  # a conversation that may have to be shortened
    on_calls: Callable[[], object] | None = None  # called when an answer ends with calls for the client


class Starter(Protocol):
    """Submits one request to the engine."""

    def start(self) -> Submission | None:
        """None if the model is not loaded yet; loading has begun. Raises if the request is invalid."""

    def wait(self) -> LoadWait:
        """A wait for that model."""


class RunState(Enum):
    LOADING = "loading"  # its model is not loaded yet; if it cannot be, Failed is the only event
    RUNNING = "running"  # the engine has taken it: `info` is known
    DONE = "done"  # all its events have been read


class Run:
    """Read `events` until `done`. One reader; any code may `cancel`."""

    def __init__(
        self,
        starter: Starter,
        *,
        on_start: Callable[[RunInfo], None] | None = None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None = None,
    ) -> None:
        """`on_start` is called once the engine has accepted the request, before any event. An invalid request raises if
        the model is loaded; otherwise the error becomes an event. `explain` rewords both."""
        self.info: RunInfo | None = None
        self.cancelled = False
        self._on_start = on_start
        self._explain = explain or _as_it_is
        self._gathers = False
        self._reason: LlamasrvError | None = None
        try:
            self._begin(starter)
        except LlamasrvError as error:
            raise self._explain(error) from None

    def _begin(self, starter: Starter) -> None:
        """Start a generation. A subclass may start another one when the first has ended."""
        self.state = RunState.LOADING
        self._starter = starter
        self._wait: LoadWait | None = None
        self._work: Submission | None = None
        self._stages: Sequence[Stage] = ()
        self._is_stopped = False  # the engine was asked to end it early
        self._counted: dict[int, Usage] = {}  # of the choices that have ended
        self._start()
        if self.state is RunState.LOADING:
            self._wait = starter.wait()

    @property
    def done(self) -> bool:
        return self.state is RunState.DONE

    @property
    def has_begun(self) -> bool:
        """Whether its model was loaded and the engine has taken it."""
        return self.info is not None

    @property
    def sequences(self) -> tuple[int, ...]:
        """Ids of its sequences in the engine; () until it has begun."""
        return () if self._work is None else self._work.stream.ids

    def events(self, timeout: float | None = None) -> list[Event]:
        """The events since the last call; waits for at least one. [] after `timeout` seconds without any. Ends with
        Failed if the model cannot be loaded or the request cannot be started."""
        if self._work is None:
            started = time.monotonic()
            try:
                self._wait_for_model(timeout)
            except LlamasrvError as error:
                self.state = RunState.DONE
                return [Failed(0, self._explain(error))]
            except BaseException:
                self.state = RunState.DONE
                raise
            if self._work is None:
                if not self.cancelled:
                    return []
                self.state = RunState.DONE
                return [] if self._reason is None else [Failed(0, self._reason)]
            if timeout is not None:
                timeout = max(0.0, timeout - (time.monotonic() - started))
        events = self._read(self._work, timeout)
        for stage in self._stages:
            events = stage(events)
        return events

    def cancel(self, error: LlamasrvError | None = None) -> None:
        """Cancel. The events still end: with FinishReason.CANCELLED if it had begun, else with `error` if there is
        one. May be called any number of times."""
        if self.done or self.cancelled:
            return
        self.cancelled, self._reason = True, error
        if self._wait is not None:
            self._wait.cancel()
        self._stop()

    def stop(self) -> None:
        """End it early for a reader that stays: events continue to the end, and the text so far is kept. Does nothing
        while its model loads."""
        self._stop()

    def hurry(self, urgency: Urgency) -> None:
        """A deferrable one is needed sooner. Does nothing while its model loads."""
        if self._work is not None:
            self._work.engine.hurry(self._work.stream, urgency)

    def end_thinking(self) -> bool:
        """Have the model close its thinking block now and answer. False if it has none, or the request did not ask for
        `thinking_control`."""
        work = self._work
        if work is None or self.done or not work.thinking:
            return False
        work.engine.end_thinking(work.thinking)
        return True

    def gather(self) -> None:
        """Deliver many events at once from now on, for a reader that sends everything at the end; unless something
        acts on each of them."""
        self._gathers = True
        if self._work is not None and self._work.time_limit is None:
            self._work.stream.gather()

    # ------------------------------------------------------------ loading

    def _wait_for_model(self, timeout: float | None) -> None:
        """Start the request once its model is loaded; gives up after `timeout` seconds or if cancelled."""
        wait = self._wait
        assert wait is not None
        with wait:
            # The model may have been unloaded again before this thread ran.
            while self._work is None and not self.cancelled and wait.wait(timeout):
                self._start()

    def _start(self) -> None:
        work = self._starter.start()
        if work is None:
            return
        self._work, self._stages = work, work.stages
        self.state, self._wait = RunState.RUNNING, None
        if work.time_limit is not None:
            limit = TimeLimit(work.time_limit, self._stop, num_choices=len(work.choices))
            self._stages = [limit, *work.stages]
        if work.summary is None:
            self.info = work.info
            if self._on_start is not None:
                self._on_start(work.info)
                self._on_start = None
        if self._gathers:
            self.gather()
        if self.cancelled:
            self._stop()

    # ------------------------------------------------------------ running

    def _stop(self) -> None:
        """End it early and keep the text so far."""
        if self.state is RunState.RUNNING and not self._is_stopped and self._work is not None:
            self._is_stopped = True
            self._work.engine.cancel(self._work.stream)

    def _read(self, work: Submission, timeout: float | None) -> list[Event]:
        stream, give_up = work.stream, None
        while self.state is RunState.RUNNING:
            if not stream.wait(timeout):
                break
            events = self._convert(work, stream.take())
            if events:
                return events
            # Half a character, or tokens without text: no event yet.
            if timeout is not None:
                now = time.monotonic()
                give_up = give_up or now + timeout
                if now >= give_up:
                    break
                timeout = give_up - now
        return []

    def _convert(self, work: Submission, items: list[TokenItem]) -> list[Event]:
        """The events of one wake-up. Tokens without log-probabilities are joined into one text per choice."""
        out: list[Event] = []
        choices, progress = work.choices, work.progress
        said: dict[int, list[Delta]] = {}
        for item in items:
            if progress is not None and not isinstance(item, End):
                progress.note(item, out)
            if isinstance(item, Delta):
                if item.logprobs is not None:
                    choices[item.choice].hold(item, out)
                elif item.choice in said:
                    said[item.choice].append(item)
                else:
                    said[item.choice] = [item]
                continue
            if item.choice in said:
                choices[item.choice].say(said.pop(item.choice), out)
            if isinstance(item, End):
                self._convert_end(work, item, out)
            elif isinstance(item, PromptScored):
                _scored(work, item, out)
        for choice, deltas in said.items():
            choices[choice].say(deltas, out)
        return out

    def _convert_end(self, work: Submission, end: End, out: list[Event]) -> None:
        choice, text = end.choice, work.choices[end.choice]
        text.finish(choice, out, cut=end.reason is not FinishReason.STOP)
        usage = self._counted[choice] = usage_of(end, text)
        if end.error is not None:
            out.append(Failed(choice, self._explain(end.error.but())))  # a copy: others may receive the same error
        elif end.reason is FinishReason.CANCELLED and not self._is_stopped:
            out.append(Failed(choice, Unavailable("The server is stopping.")))
        elif end.reason is FinishReason.FAILED:
            out.append(Failed(choice, EngineFailure("The model failed to compute this request.")))
        elif end.reason is FinishReason.STOP and text.made_calls:
            out.append(Finished(choice, FinishReason.TOOL_CALLS, usage=usage))
            if work.on_calls is not None:
                work.on_calls()
        else:
            out.append(Finished(choice, end.reason, end.stop, usage, end.slot))
        if len(self._counted) == len(work.choices):
            usage = usage_of_all(self._counted, work.each)
            if work.info.cache is not None:
                work.info.cache.ended(usage)
            out.append(usage)
            self.state = RunState.DONE


def _scored(work: Submission, item: PromptScored, out: list[Event]) -> None:
    logprobs = item.logprobs
    if len(logprobs) > 1 and logprobs[0].token == work.start_token:
        logprobs = logprobs[1:]  # its text does not show it
    out.append(Text(item.choice, "", tuple(logprobs)))


def _as_it_is(error: LlamasrvError) -> LlamasrvError:
    return error
