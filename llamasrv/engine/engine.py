"""The engine: what other threads may ask of the one that turns sequences into tokens.

Checks what is handed in before it crosses over, and tells the state at a glance; the work is in core.py. Every method
here may be called from anywhere.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from llamasrv.domain.events import FinishReason
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.channels import End, RealThread, Stream
from llamasrv.engine.interface import Backend, ModelInfo, Progress, Vocabulary
from llamasrv.engine.core import EngineCore
from llamasrv.engine.metrics import EngineMetrics
from llamasrv.engine.options import EngineOptions, Status
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.engine.sequence import Sequence
from llamasrv.engine.spill import Spilled
from llamasrv.errors import ContextTooLong, InvalidRequest, LlamasrvError, QueueFull, Unavailable, Unsupported

__all__ = ["Engine", "EngineOptions", "Status"]

SHOWN_WAITING = 50  # of those that wait, so many are in a snapshot


class Engine(EngineCore):
    """`start` it, `submit` sequences, read their streams; `drain` and `stop` it.

    Make it on the HTTP side's thread.
    """

    def __init__(
        self,
        open_backend: Callable[[Progress], Backend],
        options: EngineOptions | None = None,
        *,
        name: str = "model",
        clock: Callable[[], float] = time.monotonic,
        metrics: EngineMetrics | None = None,
        on_status: Callable[[], None] | None = None,
    ) -> None:
        """`metrics` of an engine before this one go on; `on_status` is called, on any thread, whenever that changes."""
        super().__init__(open_backend, options, name=name, clock=clock, metrics=metrics, on_status=on_status)
        self._thread = RealThread(self._run)
        self._num_submitted = 0  # written by the HTTP side only

    @property
    def info(self) -> ModelInfo:
        return self.backend.info

    @property
    def vocab(self) -> Vocabulary:
        return self.backend.vocab

    @property
    def context(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self.backend.context

    def start(self) -> None:
        self._thread.start()

    def submit(self, specs: list[SequenceSpec], constraints: Iterable[OutputConstraint | None] | None = None) -> Stream:
        """Hand in the choices of one request, each with its constraint; they share the stream that is returned."""
        if self.status.state != "ready":
            raise Unavailable(_UNAVAILABLE.get(self.status.state, "The model is not ready."))
        if not self.backend.generates:
            raise Unsupported("This model makes embeddings: it does not generate text.", param="model")
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
        stream = Stream(self._doorbell, len(specs), self.options.unread_tokens, self._overflow)
        now = self.clock()
        sequences = [
            Sequence(spec, stream, constraint=constraint, arrived=now)
            for spec, constraint in zip(specs, constraints or itertools.repeat(None))
        ]
        self._num_submitted += len(sequences)
        self._mailbox.put((self._arrive, sequences))
        return stream

    def cancel(self, stream: Stream) -> None:
        """Give up what is still open of a request. Each open choice still gets its End. Idempotent."""
        if stream.open_choices:
            self._mailbox.put((self._cancel, stream))

    def _overflow(self, stream: Stream) -> None:
        self._mailbox.put((self._give_up_unread, stream))

    def abandon(self, error: LlamasrvError) -> None:
        """Tell everybody that it is over although the thread does not come back from a step. The process has to end."""
        for seq in [*self.running, *self.waiting]:
            index = seq.spec.index
            seq.stream.put(End(index, FinishReason.FAILED, None, error, seq.num_prompt, seq.reused, 0, 0, 0, 0))
        self._doorbell.ring()

    @property
    def stalled_seconds(self) -> float:
        """How long the current turn has taken so far; an idle engine takes a turn every second."""
        moved = self._moved
        return 0.0 if moved is None or not self.alive else max(0.0, self.clock() - moved)

    def preempt(self, seq: Sequence) -> None:
        """Take its lane from a running sequence; it goes on later from where it was."""
        self._mailbox.put((self._preempt_on_request, seq))

    def ask(self, act: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Have the engine thread call `act` between two steps; its result, or what it raised."""
        if self.status.state != "ready":
            raise Unavailable(_UNAVAILABLE.get(self.status.state, "The model is not ready."))
        stream = Stream(self._doorbell)
        self._mailbox.put((self._answer, (act, stream)))
        if not stream.wait(timeout):
            raise Unavailable("The engine is busy.")
        result = stream.take()[0]
        if isinstance(result, LlamasrvError):
            raise result
        return result

    def save_slot(self, number: int) -> Spilled:
        """The state that a lane was left with. Raises NotFound where it is gone."""
        state: Spilled = self.ask(lambda: self.slots.save(number, self.memory))
        return state

    def restore_slot(self, number: int, state: Spilled) -> None:
        """Keep a state for a prompt that begins with it."""
        self.ask(lambda: self.slots.restore(number, state, self.memory))

    def erase_slot(self, number: int) -> int:
        """Forget what a lane was left with; how many tokens that were."""
        count: int = self.ask(lambda: self.slots.erase(number, self.memory))
        return count

    def drain(self) -> None:
        """Refuse new work; what was accepted goes on."""
        if self.status.state in ("ready", "loading"):
            self.status = Status("draining", self.status.progress, "The server is shutting down.")

    def fail_all(self, error: LlamasrvError) -> None:
        """End everything that is open with this error."""
        self._mailbox.put((self._fail_all, error))

    def stop(self, timeout: float = 10.0) -> bool:
        """End the thread; what was in flight is failed. True when it ended in time."""
        self._stopping = True
        self._mailbox.put((self._fail_all, Unavailable("The server is shutting down.")))
        return self._thread.join(timeout)

    def discard(self) -> None:
        """After it has stopped and nobody reads its streams: let go of what the model took."""
        self.embedder.discard()
        self._doorbell.close()
        self.grammars.discard()
        for name in ("backend", "memory", "scheduler", "grammars", "_sampler"):
            self.__dict__.pop(name, None)

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def num_open(self) -> int:
        """Sequences and embeddings accepted and not ended."""
        return self._num_pending + self.embedder.num_open

    @property
    def is_full(self) -> bool:
        """Whether the next request would be refused: the next input, of a model that only makes embeddings."""
        if self._num_pending >= self._most_pending:
            return True
        return self.embedder.is_full and not self.backend.generates

    @property
    def _num_pending(self) -> int:
        """Sequences accepted and not ended."""
        return self._num_submitted - self._num_ended

    @property
    def _most_pending(self) -> int:
        return self.options.queue_limit + self.options.parallel

    def snapshot(self) -> dict[str, Any]:
        """The state at a glance, without stopping anything: each figure is true, together they may be a step apart."""
        memory = getattr(self, "memory", None)
        lanes = memory and memory.lanes
        return {
            "status": self.status,
            "running": [_describe(s) for s in list(self.running)],
            "waiting": [_describe(s) for s in list(self.waiting)[:SHOWN_WAITING]],
            "num_waiting": max(0, self._num_pending - len(self.running)),
            "cells": {
                "total": lanes.num_cells if lanes else 0,
                "used": lanes.used_cells if lanes else 0,
                "held": lanes.held_cells if lanes else 0,
            },
            "lanes": {
                "total": lanes.num_lanes if lanes else 0,
                "held": len(lanes.held) if lanes else 0,
                "resident": len(lanes.resident) if lanes else 0,
            },
            "strip": lanes.strip() if lanes else [],
            "swapped_bytes": self._swapped_bytes,
        }

    def _validate(self, spec: SequenceSpec) -> None:
        num_prompt = len(spec.tokens)
        if not num_prompt:
            raise InvalidRequest("The prompt is empty: there is nothing to continue.", param="prompt")
        context = self.context
        if num_prompt > context - (0 if spec.max_tokens == 0 else 1):
            raise ContextTooLong(num_prompt=num_prompt, context=context)
        ids = np.frombuffer(spec.tokens, np.int32)
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocab.size:
            raise InvalidRequest(f"A token id is outside the vocabulary (0 to {self.vocab.size - 1}).", param="prompt")
        if any(not 0 <= number < len(self.backend.adapters) for number, _ in spec.realm.adapters):
            raise InvalidRequest(f"There are {len(self.backend.adapters)} adapters (0 is the first).", param="lora")
        if any(not 0 <= token < self.vocab.size for token, _ in spec.params.logit_bias):
            raise InvalidRequest(
                f"A token id is outside the vocabulary (0 to {self.vocab.size - 1}).", param="logit_bias"
            )


_UNAVAILABLE = {
    "loading": "Loading model",
    "draining": "The server is shutting down.",
    "stopped": "The server is shutting down.",
    "failed": "The model is not available; the server's log has the reason.",
}


def _describe(seq: Sequence) -> dict[str, Any]:
    return {
        "id": seq.id,
        "lane": seq.lane,
        "num_prompt": seq.num_prompt,
        "num_computed": seq.num_computed,
        "num_reused": seq.reused,
        "num_generated": seq.num_generated,
        "max_tokens": seq.spec.max_tokens,
        "params": seq.spec.params,
    }
