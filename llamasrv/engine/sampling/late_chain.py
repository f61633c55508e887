"""Sampler chains that take long to make: on a thread of the pool, while the prompt is computed.

DRY looks at the whole vocabulary for each of its breakers, and penalties over a long window are told of each of its
tokens. A sequence whose chain is not there in time waits for it alone, as for a mask.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable

from llamasrv.concurrency import Mailbox, native_lock
from llamasrv.domain.params import SAMPLERS, SamplingParams
from llamasrv.engine.interface import Backend, Chain
from llamasrv.engine.native_pool import NativePool

log = logging.getLogger("llamasrv.engine")

MANY = 4096  # tokens, a millisecond; a chain that is told of more of them is made elsewhere


class ChainMaker:
    """One per engine. Makes one chain after another."""

    def __init__(self, pool: NativePool) -> None:
        self._queue = pool.queue(1)
        self._done: Mailbox[LateChain] = Mailbox()

    def begin(self, make: Callable[[], Chain]) -> LateChain:
        late = LateChain(make)

        def job() -> None:
            late.run()
            self._done.put(late)

        if not self._queue.put(job):
            late.run()  # the pool is closed
        return late

    def wait(self, timeout: float) -> None:
        """Wait until a chain is made, but not longer than `timeout` seconds."""
        self._done.take(timeout)

    def close(self) -> None:
        """Wait for what is being made: it reads the vocabulary."""
        ended: Mailbox[bool] = Mailbox()
        if self._queue.put(lambda: ended.put(True)):
            ended.take_one()


class LateChain:
    """A chain that is being made. Whoever asked for it takes it, or closes this."""

    __slots__ = ("is_pending", "_make", "_chain", "_lock", "_is_closed")

    def __init__(self, make: Callable[[], Chain]) -> None:
        self.is_pending = True
        self._make: Callable[[], Chain] | None = make
        self._chain: Chain | None = None
        self._lock = native_lock()
        self._is_closed = False

    def run(self) -> None:
        """On the pool's thread."""
        make, self._make = self._make, None
        chain: Chain | None = None
        try:
            if make is not None and not self._is_closed:
                chain = make()
        except Exception:
            log.exception("a sampler chain cannot be made")
        with self._lock:
            self.is_pending = False
            if not self._is_closed:
                self._chain = chain
                return
        if chain is not None:
            chain.close()

    def take(self) -> Chain | None:
        """The chain, which the caller owns from now on; None if it could not be made. Not while it is pending."""
        assert not self.is_pending
        chain, self._chain = self._chain, None
        return chain

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            chain, self._chain = self._chain, None
        if chain is not None:
            chain.close()


def is_slow(params: SamplingParams, num_seen: int) -> bool:
    """Whether making the chain, and telling it of that many tokens, takes longer than a step has time for."""
    return num_seen > MANY or (SAMPLERS["dry"].is_on(params) and bool(params.dry_sequence_breakers))


def made(backend: Backend, params: SamplingParams, seen: array[int], *, greedy: bool) -> Chain:
    """A chain that has seen these tokens; those of images are left out."""
    chain = backend.chain(params, greedy=greedy)
    for token in seen:
        if token >= 0:
            chain.accept(token)
    return chain
