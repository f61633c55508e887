"""The engine as other threads see it: a mailbox, streams, and the latest view.

Validates requests before they cross to the engine thread. The loop is in core.py and its thread in host.py; nothing
here touches their state. Every method may be called from any thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar
from weakref import WeakSet

import numpy as np

from llamasrv.concurrency import Mailbox, RealThread
from llamasrv.domain.events import FinishReason
from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec, Urgency
from llamasrv.engine.base.channels import Doorbell, End, Stream, TokenItem, TokenStream
from llamasrv.engine.base.interface import Backend, LoadFailed, ModelFacts, ModelInfo, Progress, Vocabulary
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.base.options import Adapter, EngineOptions, Status
from llamasrv.engine.base.sequence import Sequence, end_of
from llamasrv.engine.base.side_thread import STOPPING
from llamasrv.engine.core import CoreCommand, EngineCore, Shared
from llamasrv.engine.embedder import Embedder
from llamasrv.engine.host import EngineHost
from llamasrv.engine.kv.host_cache import HostCache
from llamasrv.engine.kv.manager import Unclean
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.media.check import check_media
from llamasrv.engine.sampling.grammar_compiler import GrammarCompiler
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.engine.sampling.state import Ending
from llamasrv.engine.speaker import Speaker
from llamasrv.engine.view import EngineView, PlainView, ViewPublisher
from llamasrv.errors import (
    ContextTooLong,
    EngineFailure,
    InvalidRequest,
    LlamasrvError,
    QueueFull,
    Unavailable,
    Unsupported,
)

__all__ = ["Engine", "EngineOptions", "Status"]

log = logging.getLogger("llamasrv.engine")

R = TypeVar("R")


class Engine:
    """`start` it, `submit` sequences and read their streams, `drain` and `stop` it.

    Create it on the HTTP side's thread.
    """

    def __init__(
        self,
        open_backend: Callable[[Progress], Backend],
        options: EngineOptions | None = None,
        *,
        name: str = "model",
        clock: Callable[[], float] = time.monotonic,
        metrics: EngineMetrics | None = None,
        prefixes: HostCache | None = None,
        on_status: Callable[[], None] | None = None,
        pool: NativePool | None = None,
    ) -> None:
        """`metrics` and `prefixes`: those of the model's previous engine, to be continued. `on_status` is called, on
        any thread, whenever the status changes."""
        self.name = name
        self.options = options or EngineOptions()
        self.metrics = metrics or EngineMetrics()
        self.clock = clock
        self.embedder = Embedder(clock=clock)
        self.speaker = Speaker(clock=clock)
        pool = pool or NativePool()
        self.grammars = GrammarCompiler(pool)
        self._on_status = on_status
        self._mailbox: Mailbox[CoreCommand] = Mailbox()
        self._doorbell = Doorbell()
        self._publisher = ViewPublisher(on_status)
        self._streams: WeakSet[TokenStream] = WeakSet()  # those that still have a reader
        self._num_submitted = 0
        self._draining = self._stopping = False
        shared = Shared(
            self._mailbox,
            self._doorbell,
            self._publisher,
            self.metrics,
            self.embedder,
            self.speaker,
            self.grammars,
            pool,
            prefixes or HostCache(),
            should_stop=lambda: self._stopping,
        )
        self._host: EngineHost | None = EngineHost(open_backend, self.options, shared, name=name, clock=clock)
        self._thread = RealThread(self._host.run)

    # state

    @property
    def status(self) -> Status:
        status = self._publisher.view.status
        if self._draining and status.state in ("loading", "ready"):
            return Status("draining", status.progress, STOPPING)
        return status

    @property
    def model(self) -> ModelFacts:
        """Raises Unavailable until the model is loaded."""
        model = self._publisher.view.model
        if model is None:
            raise _unavailable(self.status)
        return model

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    @property
    def vocab(self) -> Vocabulary:
        return self.model.vocab

    @property
    def context(self) -> int:
        """Max tokens of one sequence, prompt and answer."""
        return self.model.context

    @property
    def view(self) -> EngineView:
        """The state after a recent turn; reading it does not interrupt the engine."""
        return self._publisher.view

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def stalled_seconds(self) -> float:
        """How long the current turn has taken so far; an idle engine takes a turn every second."""
        at = self.view.at
        return 0.0 if at is None or not self.alive else max(0.0, self.clock() - at)

    @property
    def num_open(self) -> int:
        """Accepted sequences, embedding inputs and texts to speak that have not ended."""
        return self._num_pending + self.embedder.num_open + self.speaker.num_open

    @property
    def is_full(self) -> bool:
        """Whether the next sequence would be refused (for a model that writes no text, the next input)."""
        if self._num_pending >= self._most_pending:
            return True
        model = self._publisher.view.model
        if model is None or model.generates:
            return False
        return self.speaker.is_full if self.speaker.backend is not None else self.embedder.is_full

    @property
    def _num_pending(self) -> int:
        """Accepted sequences that have not ended."""
        return self._num_submitted - self._publisher.num_ended

    @property
    def _most_pending(self) -> int:
        return self.options.queue_limit + self.options.places

    def snapshot(self) -> PlainView:
        """The view as plain dicts and lists, with the number of all waiting sequences."""
        view = self.view
        return {
            "status": self.status,
            "at": view.at or 0.0,
            "running": [row._asdict() for row in view.running],
            "waiting": [row._asdict() for row in view.waiting],
            "num_waiting": max(0, self._num_pending - len(view.running)),
            "cells": {"total": view.total_cells, "used": view.used_cells, "held": view.held_cells},
            "lanes": {"total": view.total_lanes, "held": view.held_lanes, "resident": view.resident_lanes},
            "strip": view.strip,
            "swapped_bytes": view.swapped_bytes,
            "pins": {"num": view.pins[0], "bytes": view.pins[1]},
            "num_sessions": view.num_sessions,
        }

    # work

    def submit(
        self, specs: list[SequenceSpec], constraints: Iterable[OutputConstraint | None] | None = None
    ) -> TokenStream:
        """Submit the choices of one request, each with its constraint; all write to the returned stream.

        Raises InvalidRequest, ContextTooLong, Unsupported, QueueFull or Unavailable.
        """
        status = self.status
        if status.state != "ready" or self._stopping:
            raise _unavailable(status) if not self._stopping else Unavailable(STOPPING)
        if not self.model.generates:
            what, use = ("embedding", "embeddings") if self.speaker.backend is None else ("speech", "audio/speech")
            raise Unsupported(f"This is a model for {what}; it cannot generate text. Use /v1/{use}.", param="model")
        for spec in specs:
            self._validate(spec)
        most, pending = self._most_pending, self._num_pending
        if len(specs) > most:
            raise InvalidRequest(
                f"This request makes {len(specs)} sequences (its prompts times 'n'); this server takes at most "
                f"{most} at once. Send fewer prompts, or ask for fewer choices.",
                param="n",
            )
        if pending + len(specs) > most:
            raise QueueFull(f"The queue is full ({pending} sequences). Try again shortly.", wait=self.metrics.last_wait)
        stream = TokenStream(self._doorbell, len(specs), self.options.unread_tokens, self._overflow)
        self._streams.add(stream)
        now = self.clock()
        sequences = [
            Sequence(spec, stream, constraint=constraint, arrived=now)
            for spec, constraint in zip(specs, constraints or itertools.repeat(None))
        ]
        stream.ids = tuple(sequence.id for sequence in sequences)
        self._num_submitted += len(sequences)
        self._hand_in(sequences)
        if self._publisher.view.status.state == "stopped":
            self._refuse_mail()  # the thread may have taken its last mail before this
        return stream

    def _hand_in(self, sequences: list[Sequence]) -> None:
        self._mailbox.put(CoreCommand(lambda core: core.arrive(sequences), partial(_fail, sequences)))

    def _refuse_mail(self) -> None:
        """Fail the mail that arrived after the thread's last look."""
        for command in self._mailbox.take():
            if command.refuse is not None:
                command.refuse(Unavailable(STOPPING))
        self._doorbell.ring()

    def cancel(self, stream: Stream[TokenItem]) -> None:
        """Cancel the open choices of a request; each still gets its End. Idempotent."""
        if stream.open_choices:
            self._mailbox.put(CoreCommand(lambda core: core.cancel(stream)))

    def hurry(self, stream: Stream[TokenItem], urgency: Urgency) -> None:
        """A deferrable request is needed sooner."""
        if stream.open_choices:
            self._mailbox.put(CoreCommand(lambda core: core.hurry(stream, urgency)))

    def end_thinking(self, constraints: Iterable[OutputConstraint]) -> None:
        """Make the answers under these constraints close their thinking blocks; ended answers ignore it."""
        for constraint in constraints:
            self._mailbox.put(CoreCommand(partial(_end_thinking, constraint)))

    def hold_session(self, spec: SequenceSpec) -> None:
        """The session of this sequence waits for its client, which runs a tool: keep its prompt, as long as the options
        say."""
        self._mailbox.put(CoreCommand(lambda core: core.hold_session(spec)))

    def prefetch(self, session: str, owner: str) -> None:
        """A session speaks, and its prompt is not known yet: start reading its last prefix if only the disk has it."""
        if self.options.disk_bytes:
            self._mailbox.put(CoreCommand(lambda core: core.memory.prefetch(session, owner)))

    def supersede(self, tokens: array[int], cache_key: CacheKey) -> None:
        """The conversation with this prompt goes on from a shorter one: do not keep what is computed of it."""
        self._mailbox.put(CoreCommand(lambda core: core.supersede(tokens, cache_key)))

    def close_session(self, session: str, owner: str) -> None:
        """Stop keeping prefixes for this session."""
        self._mailbox.put(CoreCommand(lambda core: core.close_session(session, owner)))

    def hold_deferrable(self, seconds: float) -> None:
        """Start no step for deferrable sequences for `seconds`: another request is about to arrive. 0: resume them."""
        self._mailbox.put(CoreCommand(lambda core: core.hold_deferrable(seconds)))

    def _overflow(self, stream: Stream[TokenItem]) -> None:
        self._mailbox.put(CoreCommand(lambda core: core.give_up_unread(stream)))

    def _validate(self, spec: SequenceSpec) -> None:
        model, num_prompt = self.model, len(spec.tokens)
        context, size = model.context, model.vocab.size
        if not num_prompt:
            raise InvalidRequest("The prompt is empty.", param="prompt")
        if num_prompt > context - (0 if spec.max_tokens == 0 else 1):
            raise ContextTooLong(num_prompt=num_prompt, context=context)
        ids = np.frombuffer(spec.tokens, np.int32)
        if spec.media:
            check_media(spec, ids, model)
        # Viewed as unsigned, a negative id is too large; ids of media rows are negative by design.
        if np.maximum.reduce(ids if spec.media else ids.view(np.uint32)) >= size:
            raise InvalidRequest(f"A token id is outside the vocabulary (0 to {size - 1}).", param="prompt")
        if any(not 0 <= number < model.num_adapters for number, _ in spec.cache_key.adapters):
            raise InvalidRequest(f"There are {model.num_adapters} adapters (0 is the first).", param="lora")
        if spec.reads and not 0 <= min(spec.reads) <= max(spec.reads) < size:
            raise InvalidRequest(f"A token id is outside the vocabulary (0 to {size - 1}).", param="questions")
        biased = spec.params.logit_bias.tokens  # ascending
        if biased and not 0 <= biased[0] <= biased[-1] < size:
            raise InvalidRequest(f"A token id is outside the vocabulary (0 to {size - 1}).", param="logit_bias")

    # saved slots

    def save_slot(self, number: int) -> SavedState:
        """The state that the slot's last sequence left. Raises NotFound if it is gone."""
        return self.ask(lambda core: core.admission.slots.save(number, core.memory))

    def restore_slot(self, number: int, state: SavedState) -> None:
        """Put a state into host memory, for prompts that begin with it."""
        self.ask(lambda core: core.admission.slots.restore(number, state, core.memory))

    def erase_slot(self, number: int) -> int:
        """Drop the state of a slot; returns how many tokens it had."""
        return self.ask(lambda core: core.admission.slots.erase(number, core.memory))

    def take_over(self, prefixes: HostCache) -> None:
        """Take over the prefixes of another engine of the same model, as far as they are usable here."""
        self.ask(lambda core: core.prefixes.take_over(prefixes))

    # adapters

    def load_adapter(self, adapter: Adapter) -> None:
        """Load another LoRA adapter between two steps; it becomes the last one. Raises InvalidRequest."""

        def add(core: EngineCore) -> None:
            try:
                core.backend.add_adapter(adapter)
            except LoadFailed as error:
                raise InvalidRequest(str(error), param="path") from None
            if core.memory.disk is not None:
                core.memory.disk.know(adapter.digest)
            publisher = self._publisher
            if (model := publisher.view.model) is not None:
                publisher.set_model(replace(model, num_adapters=model.num_adapters + 1))

        self.ask(add)

    def ask(self, act: Callable[[EngineCore], R], timeout: float = 60.0) -> R:
        """Call `act` on the engine thread between two steps; returns its result or raises its LlamasrvError. Raises
        Unavailable after `timeout` seconds."""
        status = self.status
        if status.state != "ready":
            raise _unavailable(status)
        stream: Stream[R | LlamasrvError] = Stream(self._doorbell)
        self._mailbox.put(CoreCommand(lambda core: answer(core, act, stream), stream.put))
        if self._publisher.view.status.state == "stopped":
            self._refuse_mail()
        if not stream.wait(timeout):
            raise Unavailable("The engine is busy.")
        result = stream.take()[0]
        if isinstance(result, LlamasrvError):
            raise result
        return result

    # life cycle

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Refuse new requests; finish those accepted."""
        self._draining = True
        if self._on_status is not None:
            self._on_status()

    def fail_all(self, error: LlamasrvError) -> None:
        """End all open sequences with this error."""
        self._mailbox.put(CoreCommand(lambda core: core.fail_all(error)))

    def abandon(self, error: LlamasrvError) -> None:
        """End all streams while the thread is stuck in a step. The process has to exit afterwards."""
        for stream in list(self._streams):
            for index in range(stream.num_choices):
                if index not in stream.ended:
                    stream.put(End(index, FinishReason.FAILED, None, error.but(), 0, 0, 0, 0, 0, 0))
        self._doorbell.ring()

    def stop(self, timeout: float = 10.0) -> bool:
        """Stop the thread; open sequences fail. True if it ended within `timeout` seconds."""
        self._stopping = True
        self.fail_all(Unavailable(STOPPING))
        return self._thread.join(timeout)

    def release(self) -> None:
        """Free what belonged to the model. Call it after `stop`, when no stream is being read any more."""
        self.embedder.release()
        self.speaker.release()
        self._doorbell.close()
        self.grammars.release()
        self._host = None
        self._publisher.set_model(None)


_UNAVAILABLE = {
    "loading": "Loading model",
    "draining": STOPPING,
    "stopped": STOPPING,
    "failed": "The model is not available; the server's log has the reason.",
}


def _end_thinking(constraint: OutputConstraint, core: EngineCore) -> None:
    constraint.end_thinking()


def _fail(sequences: list[Sequence], error: LlamasrvError) -> None:
    for seq in sequences:
        seq.stream.finish(end_of(seq, Ending(FinishReason.FAILED, error=error.but())))


def answer(core: EngineCore, act: Callable[[EngineCore], R], stream: Stream[R | LlamasrvError]) -> None:
    """Put a function's result into the stream, or its exception: only the asker fails."""
    try:
        stream.put(act(core))
    except LlamasrvError as error:
        stream.put(error)
    except Exception as error:
        log.exception("a question to the engine failed")
        stream.put(EngineFailure("The engine could not do this; the server's log has the cause."))
        if isinstance(error, Unclean):
            raise


def _unavailable(status: Status) -> Unavailable:
    return Unavailable(_UNAVAILABLE.get(status.state, "The model is not ready."))
