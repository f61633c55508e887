"""Sampler chains that are slow to build: built on the pool while the prompt is computed.

DRY searches the whole vocabulary for each breaker, and penalties with a long window must accept each of its tokens. A
sequence whose chain is late waits for it alone, as for a mask.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Callable

from llamasrv.concurrency import Mailbox, native_lock
from llamasrv.domain.params import SAMPLERS, SamplingParams
from llamasrv.engine.base.interface import Backend, Chain
from llamasrv.engine.base.native_pool import NativePool

log = logging.getLogger("llamasrv.engine")

MANY = 4096  # tokens to accept in about 1 ms; chains that need more are built on the pool


class ChainMaker:
    """One per engine. Builds one chain after another."""

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
        """Wait until a chain is ready, at most `timeout` seconds."""
        self._done.take(timeout)

    def close(self) -> None:
        """Wait for pending builds, which read the vocabulary."""
        ended: Mailbox[bool] = Mailbox()
        if self._queue.put(lambda: ended.put(True)):
            ended.take_one()


class LateChain:
    """A chain being built. Its owner must `take` it or `close` this."""

    __slots__ = ("is_pending", "_make", "_chain", "_lock", "_is_closed")

    def __init__(self, make: Callable[[], Chain]) -> None:
        self.is_pending = True
        self._make: Callable[[], Chain] | None = make
        self._chain: Chain | None = None
        self._lock = native_lock()
        self._is_closed = False

    def run(self) -> None:
        """Build the chain; on the pool's thread."""
        make, self._make = self._make, None
        chain: Chain | None = None
        try:
            if make is not None and not self._is_closed:
                chain = make()
        except Exception:
            log.exception("building a sampler chain failed")
        with self._lock:
            self.is_pending = False
            if not self._is_closed:
                self._chain = chain
                return
        if chain is not None:
            chain.close()

    def take(self) -> Chain | None:
        """The chain, now owned by the caller; None if building it failed. Do not call it while it is pending."""
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
    """Whether building a chain that accepts `num_seen` tokens takes too long for a step."""
    return num_seen > MANY or (SAMPLERS["dry"].is_on(params) and bool(params.dry_sequence_breakers))


def made(backend: Backend, params: SamplingParams, seen: array[int]) -> Chain:
    """A chain that has accepted these tokens, except pseudo-tokens of media."""
    chain = backend.chain(params)
    for token in seen:
        if token >= 0:
            chain.accept(token)
    return chain


def seeded(p: SamplingParams) -> SamplingParams:
    """The parameters with a seed in the chain's range."""
    seed = random.getrandbits(32) if p.seed is None else p.seed & 0xFFFFFFFF
    return p if seed == p.seed else p._replace(seed=seed)
