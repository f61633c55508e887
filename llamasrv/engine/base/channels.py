"""What the engine thread says to the readers of its streams.

    HTTP side -> engine   Mailbox: a native queue of commands (llamasrv/concurrency.py)
    engine -> HTTP side   Stream: a deque of deltas per request, and one Doorbell ring a step for all of them

Deltas are tokens; the reader's side turns them into text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from gevent import get_hub, getcurrent, monkey

from llamasrv.domain.events import DraftCounts, FinishReason, TokenLogprob
from llamasrv.errors import LlamasrvError

T = TypeVar("T")

GATHERED = 128  # items that wake a gathering reader
WAKE_SECONDS = 0.004  # max time the hub spends waking readers before it serves other events


class Delta(NamedTuple):
    """One token of one choice. `data`: its bytes (b"" for control tokens), which may end inside a character."""

    choice: int
    token: int
    data: bytes
    logprobs: TokenLogprob | None = None


class PromptScored(NamedTuple):
    """Log-probabilities of the prompt's tokens, before any Delta of that choice. Only on request."""

    choice: int
    logprobs: tuple[TokenLogprob, ...]


class TokensRead(NamedTuple):
    """How likely each token of `SequenceSpec.reads` is right after the prompt: log-probabilities over the whole
    vocabulary, before any sampler. The only item of that choice before its End."""

    choice: int
    logprobs: tuple[float, ...]


class PromptComputed(NamedTuple):
    """Progress of a prompt, before any Delta of that choice: `num_computed` of `num_prompt` tokens, `num_reused` of
    them from a cache. Sent at the start and after each step; only on request."""

    choice: int
    num_prompt: int
    num_reused: int
    num_computed: int
    seconds: float  # since it was admitted


class QueuePlace(NamedTuple):
    """A choice has no lane yet. `place` among the `num_waiting` sequences in the queue (1: next); None while its images
    and sounds are being encoded. Sent again when that changes; only on request."""

    choice: int
    place: int | None
    num_waiting: int


class End(NamedTuple):
    """The last item of a choice, exactly one. `error` is set for FAILED and DEADLINE. `num_prompt` counts prompt tokens
    that were computed or reused."""

    choice: int
    reason: FinishReason
    stop: str | None
    error: LlamasrvError | None
    num_prompt: int
    num_reused: int
    num_generated: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    slot: int | None = None  # slot it was seated in; None if it never was
    num_forgotten: int = 0  # tokens of prompt and answer that context shifts dropped
    drafts: DraftCounts = DraftCounts()
    pinned: tuple[tuple[float, int], ...] = ()  # (seconds, number of newly pinned prompt tokens)
    paused_seconds: float = 0.0  # without a lane after preemptions, within the seconds of prefill and decode


TokenItem = Delta | PromptScored | TokensRead | PromptComputed | QueuePlace | End
"""What a TokenStream brings."""


class Stream(Generic[T]):
    """What one request receives: the items of all its choices, in order. The engine thread puts, one reader takes."""

    __slots__ = (
        "_items", "_doorbell", "_resume", "_rung", "_enough", "is_due", "num_choices", "open_choices",
        "_most_unread", "_overflow", "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        doorbell: Doorbell,
        choices: int = 1,
        most_unread: int | None = None,
        overflow: Callable[[Stream[T]], None] | None = None,
    ) -> None:
        """`overflow` is called, on the reader's side, once more than `most_unread` items per choice are unread."""
        self._most_unread = None if most_unread is None else most_unread * choices
        self._overflow = overflow
        self._items: deque[T] = deque()
        self._doorbell = doorbell
        self._resume: Callable[[bool], object] | None = None
        self._rung = False
        self._enough = 1
        self.is_due = False  # whether to wake the reader now
        self.num_choices = choices
        self.open_choices = choices  # counted down by the engine thread as choices end

    def put(self, item: T) -> None:
        """Engine thread only. Readers wake at the next `Doorbell.ring`."""
        items = self._items
        items.append(item)
        if len(items) >= self._enough or type(item) is End:
            self.is_due = True
            if not self._rung:
                self._rung = True
                self._doorbell.ready.append(self)

    def gather(self) -> None:
        """From now on wake the reader for GATHERED items at once, or for the end of a choice."""
        self._enough = GATHERED

    def __len__(self) -> int:
        return len(self._items)

    def take(self) -> list[T]:
        """All items put so far."""
        self.is_due = False  # before taking: an item put meanwhile sets it again
        take = self._items.popleft
        return [take() for _ in range(len(self._items))]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there are items to take; False after `timeout` seconds without any."""
        return self.is_due or self._doorbell.wait(self, timeout)


class TokenStream(Stream[TokenItem]):
    """The stream of sequences: each choice ends with an End."""

    __slots__ = ("ended", "ids", "num_held", "reused")

    def __init__(
        self,
        doorbell: Doorbell,
        choices: int = 1,
        most_unread: int | None = None,
        overflow: Callable[[Stream[TokenItem]], None] | None = None,
    ) -> None:
        super().__init__(doorbell, choices, most_unread, overflow)
        self.ids: tuple[int, ...] = ()  # ids of its sequences
        self.ended: set[int] = set()  # choices whose End was put
        self.reused: dict[int, int] = {}  # by choice: tokens reused from a cache; set when the choice is seated
        self.num_held = 0  # tokens of the prompt that were held for its session; set before `reused`

    def finish(self, end: End) -> None:
        """Put the last item of a choice. Engine thread only."""
        self.ended.add(end.choice)
        self.open_choices -= 1
        self.put(end)


class Doorbell:
    """Wakes the readers of all streams with new items, with one wake-up per step.

    Create it on the HTTP side's thread (in the worker, after the fork): it binds to that thread's hub.
    """

    def __init__(self) -> None:
        self.ready: deque[Stream[Any]] = deque()
        self._green = monkey.is_module_patched("threading")
        if self._green:
            self._hub = get_hub()
            self._async = self._hub.loop.async_()
            self._async.start(self._wake_some)
            self.ring = self._ring_hub
        else:
            self._condition = threading.Condition()
            self.ring = self._ring_threads

    ring: Callable[[], None]

    def _ring_hub(self) -> None:
        if self.ready:
            self._async.send()

    def _wake_some(self) -> None:
        self._wake_greenlets(perf_counter() + WAKE_SECONDS)
        if self.ready:
            self._async.send()  # wake the rest in the hub's next turn: other events are waiting, too

    def _wake_greenlets(self, end: float) -> None:
        # Runs in the hub: it may switch to greenlets, but must not block.
        ready = self.ready
        while ready and perf_counter() < end:
            stream = ready.popleft()
            stream._rung = False  # before the reader takes: an item put from now on rings again
            resume = stream._resume
            if resume is not None:
                stream._resume = None
                resume(True)
            elif stream._most_unread is not None and len(stream._items) > stream._most_unread:
                # The reader is blocked writing to a client that does not read.
                stream._most_unread = None
                if stream._overflow is not None:
                    stream._overflow(stream)

    def _ring_threads(self) -> None:
        if self.ready:
            with self._condition:
                while self.ready:
                    self.ready.popleft()._rung = False
                self._condition.notify_all()

    def wait(self, stream: Stream[T], timeout: float | None) -> bool:
        if not self._green:
            with self._condition:
                return self._condition.wait_for(lambda: stream.is_due, timeout)
        hub = self._hub
        timer = None
        resume = getcurrent().switch
        stream._resume = resume
        try:
            if timeout is not None:
                timer = hub.loop.timer(timeout)
                timer.start(resume, False)
            return bool(hub.switch())
        finally:
            # Also when the greenlet is killed while it waits: switching to it later would raise.
            if stream._resume is resume:
                stream._resume = None
            if timer is not None:
                timer.stop()
                timer.close()

    def close(self) -> None:
        """Stop ringing, after waking the readers that have unread items."""
        if self._green:
            self._hub.loop.run_callback(self._close_green)

    def _close_green(self) -> None:
        self._wake_greenlets(inf)
        self._async.stop()
        self._async.close()
