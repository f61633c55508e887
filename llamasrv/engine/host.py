"""The life of the engine thread: load the model, run the core, restart after a failure, close.

    loading -> ready -> stopped
         \\-> failed   (loading failed, or a restart did not help)

Publishes its status in the view. Belongs to the engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from llamasrv.engine.base.interface import Backend, CheckpointKind, LoadFailed, ModelFacts, Progress
from llamasrv.engine.base.options import EngineOptions, Status
from llamasrv.engine.base.side_thread import FAILED, STOPPING, turn_or_recover
from llamasrv.engine.core import EngineCore, Shared
from llamasrv.errors import EngineFailure, Unavailable

log = logging.getLogger("llamasrv.engine")


class EngineHost:
    """`run` is the thread's main function."""

    def __init__(
        self,
        open_backend: Callable[[Progress], Backend],
        options: EngineOptions,
        shared: Shared,
        *,
        name: str,
        clock: Callable[[], float],
    ) -> None:
        self.core: EngineCore
        self._open_backend = open_backend
        self._options = options
        self.shared = shared
        self._name = name
        self._clock = clock
        self._broken = False  # the context is unusable: do not save from it

    def run(self) -> None:
        shared = self.shared
        try:
            self.open()
        except Exception as error:
            reason = str(error)
            if not isinstance(error, LoadFailed):
                log.exception("loading %s failed", self._name)
                reason = "loading the model failed; the log has the cause"
            shared.pool.close()
            shared.publisher.set_status(Status("failed", reason=reason))
            return
        if shared.embedder.backend is not None:
            shared.embedder.start()
        if shared.speaker.backend is not None:
            shared.speaker.start()
        if self.core.encoder is not None:
            self.core.encoder.start()
        try:
            while not shared.should_stop() and self.turn():
                pass
        finally:
            self.close()

    def open(self) -> None:
        """Load the model. If anything raises, LoadFailed or other, the model is freed again."""
        shared, publisher = self.shared, self.shared.publisher
        backend = self._open_backend(self._loading)
        try:
            if backend.generates:
                shared.grammars.open(backend.vocab)
            self.core = EngineCore(backend, self._options, shared, clock=self._clock)
        except BaseException:
            backend.close()
            raise
        shared.embedder.backend = backend.embeddings
        if backend.speech is not None:
            shared.speaker.open(backend.speech)
        if self.core.encoder is not None:
            shared.embedder.line.encode = self.core.encoder.encode
        model = ModelFacts(
            backend.info,
            backend.vocab,
            backend.generates,
            backend.context,
            backend.num_lanes,
            len(backend.adapters),
            backend.state_facts,
            backend.projector,
            backend.ubatch_size,
            takes_checkpoints=backend.traits.checkpoints is not CheckpointKind.NONE and not backend.traits.split,
            host_bytes=backend.host_bytes,
        )
        publisher.set_model(model)
        publisher.set_status(Status("ready", 1.0))

    def turn(self, *, wait: bool = True) -> bool:
        """Run one turn of the core. If it raises, `recover`; returns False if that fails, too."""
        return turn_or_recover(lambda: self.core.turn(wait=wait), self.recover, "engine loop")

    def recover(self) -> bool:
        """Fail all requests and reset the context; returns False if that fails."""
        shared, publisher = self.shared, self.shared.publisher
        shared.metrics.restarts += 1
        publisher.set_status(Status("failed", reason="the engine loop failed and is being restarted"))
        try:
            self.core.abandon_all(EngineFailure(FAILED))
            shared.doorbell.ring()
            self.core.reset()
        except Exception:
            log.exception("the engine cannot be restarted")
            self._broken = True
            publisher.set_status(Status("failed", reason="the engine failed and cannot be restarted"))
            return False
        publisher.set_status(Status("ready", 1.0))
        return True

    def close(self) -> None:
        """Fail all open sequences and free everything."""
        shared = self.shared
        shared.publisher.set_status(Status("stopped"))  # before the last mail is taken: `Engine.submit` looks at it
        self.core.close(Unavailable(STOPPING), keep=not self._broken)
        shared.embedder.close()
        shared.speaker.close()
        shared.grammars.close()  # before the vocabulary that it reads is freed
        self.core.release()
        shared.pool.close()

    def _loading(self, share: float) -> bool:
        self.shared.publisher.set_status(Status("loading", share))
        return not self.shared.should_stop()
