"""Loads and unloads models.

    request     waits for its turn and for memory; a new file is tried first; loads in a thread of its own
    use         stays loaded while in use, and `keep_alive` seconds longer
    memory      the least recently used idle model is unloaded; if all are in use for a while, the one requested longest
                ago takes no new work, finishes, and is unloaded
    failure     all requests for the model get the error; retried at growing intervals

memory_budget.py decides which models take memory, failures.py when to retry. Everything here runs on the HTTP side;
only engines have threads of their own. Knows nothing of files, names and protocols.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from llamasrv.concurrency import Notice, off_hub
from llamasrv.engine.base.allocator import release_memory
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.engine import Engine
from llamasrv.errors import LlamasrvError, Unavailable
from llamasrv.models.failures import Failures
from llamasrv.models.memory import as_gib, available_memory, resident_memory
from llamasrv.models.memory_budget import ON_THEIR_WAY, MemoryBudget, PrefixLimit
from llamasrv.models.model import Model
from llamasrv.models.remote import reach_all

log = logging.getLogger("llamasrv")

TICK = 1.0  # seconds between checks for idle models
# Seconds that a model waits for memory before a busy one has to be unloaded: twice its load time, so that the server
# does not spend its time loading.
HOLD_AFTER, LEAST_HOLD, MOST_HOLD = 2.0, 0.5, 15.0
REPORT_EVERY = 5.0  # seconds between log lines about a slow load
STOP_TIMEOUT = 30.0  # timeout in seconds for an engine to stop
POLL = 0.05  # seconds between checks of what sends no notice: free memory, an engine's last request
STOPPING = "The server is shutting down."


class ModelLoader:
    """Loads and unloads models, and evicts idle ones for memory. One per process."""

    def __init__(
        self,
        *,
        memory_limit: int | None = None,
        load_timeout: float = 300.0,
        most_loaded: int | None = None,
        on_demand: bool = True,
        check: Callable[[Model], None] | None = None,
        free_memory: Callable[[], int] = available_memory,
        clock: Callable[[], float] = time.monotonic,
        poll: float = POLL,
        hold_after: float = HOLD_AFTER,
        report_every: float = REPORT_EVERY,
    ) -> None:
        """`memory_limit` None: the machine's free memory. `check` may raise LoadFailed before a model is loaded."""
        self.budget = MemoryBudget(memory_limit, most_loaded, free_memory)
        self.load_timeout = load_timeout
        self.on_demand = on_demand  # requests load the models they name
        self.notice = Notice()  # signalled whenever a model's state may have changed
        self.on_load: list[Callable[[Model], object]] = []  # called when the engine is ready, before anyone uses it
        # Called before the memory is freed: drop what was built from the model.
        self.on_unload: list[Callable[[Model], object]] = []
        self._check = check
        self._clock = clock
        self._poll, self._hold_after, self._report_every = poll, hold_after, report_every
        self._lock = threading.RLock()
        self._queue: list[Model] = []  # models that wait for memory, in order
        self._leaving: dict[Model, Engine] = {}  # engines that take no new work and finish what they have
        self._failures = Failures(clock)
        self._prefix_limit = PrefixLimit()
        self.draining = False  # load nothing more
        self._stopping = False

    @property
    def models(self) -> list[Model]:
        """The models that take memory: loaded, loading or unloading."""
        return list(self.budget)

    @property
    def engines(self) -> list[Engine]:
        """All engines that have a thread, or will have one in a moment."""
        return [*self._leaving.values(), *(m.current for m in self.budget if m.current is not None)]

    # loading

    def load(self, model: Model, *, anyway: bool = False) -> None:
        """Start loading, unless it is loaded or loading. Raises the error of the last attempt if it is too early for a
        retry, unless `anyway`."""
        with self._lock:
            if self.draining:
                raise Unavailable(STOPPING)
            self._drop_dead(model)
            if model.current is not None or self._coming(model):
                return
            if not anyway:
                self._failures.check(model)
            self._queue.append(model)
            if not model.phase:
                model.phase = "waiting"
        threading.Thread(target=self._load, args=(model,), daemon=True).start()

    def wait(self, model: Model, timeout: float | None = None, given_up: Callable[[], bool] = lambda: False) -> bool:
        """True when it is loaded; False on timeout or if `given_up()`. Raises if loading failed."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            self.notice.wait(lambda: model.is_loaded or not self._coming(model) or given_up(), left)
            if model.is_loaded:
                return True
            if self._coming(model) or given_up():
                return False
            if model.failure is not None:
                raise self._failures.error(model, model.failure)
            self.load(model)  # it was evicted before the caller got to use it

    def _coming(self, model: Model) -> bool:
        return model in self._queue or model.phase in ON_THEIR_WAY

    def _load(self, model: Model) -> None:
        try:
            self._fit(model)
            self._wait_for_room(model)
            began = self._clock()
            if self._check is not None:
                model.phase = "checking"
                self._check(model)
            model.phase = "loading"
            self._start(model)
            model.load_seconds = self._clock() - began
            log.info("%s is loaded", model.name, extra=_figures(model, seconds=model.load_seconds))
        except (LlamasrvError, LoadFailed) as error:
            self._failed(model, error)
        except Exception:
            log.exception("loading %s failed", model.name)
            self._failed(model, LoadFailed("see the server's log for the cause"))
        finally:
            with self._lock:
                if model in self._queue:
                    self._queue.remove(model)
                if model.phase != "unloading":
                    model.phase = ""
                    if model.current is None:
                        self.budget.release(model)
            self.notice.tell()

    def _start(self, model: Model) -> None:
        load_plan = model.load_plan
        assert load_plan is not None, model.name
        model.current = engine = Engine(
            load_plan.open_backend,
            load_plan.options,
            name=model.name,
            metrics=model.metrics,
            prefixes=model.prefixes,
            on_status=self.notice.tell,
        )
        engine.start()
        while not self.notice.wait(lambda: engine.status.state != "loading", self._report_every):
            share = engine.status.progress
            if share < 1:
                log.info("loading %s: %d %%", model.name, share * 100)
            else:
                log.info("warming up %s", model.name)
        if engine.status.state != "ready":
            reason = engine.status.reason
            engine.stop(STOP_TIMEOUT)  # it may still be loading when the server stops
            model.current = None
            engine.release()
            if self.draining:
                raise Unavailable(STOPPING)
            raise LoadFailed(reason)
        try:
            for prepare in self.on_load:
                prepare(model)
        except BaseException:
            model.current = None
            engine.stop(STOP_TIMEOUT)
            engine.release()
            raise
        with self._lock:
            model.num_loads += 1
            model.last_used = time.monotonic()
            self._failures.drop(model)
            self.budget.loaded(model, engine.model.host_bytes)

    def _failed(self, model: Model, error: Exception) -> None:
        if not isinstance(error, Unavailable):
            self._failures.enter(model, error)
            return
        if not self.draining and (model.failure is None or model.failure.message != error.message):
            log.warning("cannot load %s now: %s", model.name, error.message)
        self._failures.postpone(model, error)

    def _drop_dead(self, model: Model) -> None:
        """Drop an engine whose thread has died."""
        engine = model.current
        if engine is None or model.phase or engine.alive or engine.status.state == "loading":
            return
        log.error("the engine of %s has died; the next request reloads it", model.name)
        model.current = None
        self._unloaded(model, engine)

    # memory

    def _fit(self, model: Model) -> None:
        """Choose the placement from what is free on the devices, counting what evictable models would free."""
        if model.load_plan is None:
            return
        computing = (other.load_plan for other in self.budget if other.load_plan is not None)
        reach_all(
            model.load_plan.options.rpc, {endpoint for load_plan in computing for endpoint in load_plan.options.rpc}
        )
        if model.load_plan.fit is not None:
            model.load_plan = off_hub(model.load_plan.fit, self.budget.on_devices())
        else:
            self.budget.measure(model)

    def _wait_for_room(self, model: Model) -> None:
        """Wait until memory is reserved. First come, first served, so that no model starves."""
        self.budget.check(model)
        began = self._clock()
        hold = self._hold_after if not model.num_loads else min(MOST_HOLD, max(LEAST_HOLD, 2 * model.load_seconds))
        while not self.draining:
            with self._lock:
                victim = None
                if self._queue[0] is model and model.phase == "waiting":
                    place, missing = self.budget.missing(model)
                    if missing <= 0:
                        self.budget.take(model)
                        self._queue.remove(model)
                        return
                    if not self.budget.holds(place):
                        raise LoadFailed(self.budget.too_much(model, place))
                    if not self._leaving:
                        victim = self.budget.victim(place, missing, in_use=self._clock() - began >= hold)
                    if victim is not None:
                        self._seize(victim)
            if victim is not None:
                self._finish_unloading(victim)
                continue
            if self._clock() - began >= self.load_timeout:
                raise Unavailable(
                    "There is not enough memory for this model while other models are in use.", code="model_loading"
                )
            self.notice.wait(lambda: self.draining, self._poll)
        raise Unavailable(STOPPING)

    # unloading

    def unload(self, model: Model) -> None:
        """Take no new work, finish what runs, free the memory. Returns when the memory is free."""
        with self._lock:
            if not model.is_loaded:
                return
            self._seize(model)
        self._finish_unloading(model)

    def _seize(self, model: Model) -> None:
        """From here on, requests for it wait until it is loaded again."""
        assert model.current is not None
        model.phase = "unloading"
        self._leaving[model], model.current = model.current, None

    def _finish_unloading(self, model: Model) -> None:
        engine = self._leaving[model]
        while (model.in_use or engine.num_open) and engine.alive and not self._stopping:
            self.notice.wait(lambda: self._stopping, self._poll)
        if not engine.stop(STOP_TIMEOUT):
            log.error("the engine of %s did not stop in time", model.name)
        self._unloaded(model, engine)
        with self._lock:
            del self._leaving[model]
            model.phase = "waiting" if model in self._queue else ""
        log.info("%s is unloaded", model.name, extra=_figures(model))
        self.notice.tell()

    def _unloaded(self, model: Model, engine: Engine) -> None:
        for forget in self.on_unload:
            forget(model)
        engine.release()
        release_memory()
        model.num_unloads += 1
        self.budget.release(model)
        self._prefix_limit.unloaded(model)

    def changed(self, model: Model) -> None:
        """Call after a change that needs no reload: drops objects built from the model."""
        for forget in self.on_unload:
            forget(model)

    def close_when_unused(self, model: Model, successor: Model | None = None) -> None:
        """Unload a model that is no longer served once it is unused. Returns when that is done. The `successor` takes
        over its cached prefixes if it is the same file with other options."""
        model.closing = True
        while self._coming(model) or model.phase or model.current is not None:
            self.notice.wait(lambda: not self._coming(model), self._poll)
            self.unload(model)
            if self.draining:
                return
        if successor is not None:
            with contextlib.suppress(LlamasrvError):
                if successor.current is not None:
                    successor.current.take_over(model.prefixes)
                elif not successor.phase:
                    successor.prefixes = model.prefixes

    # time

    def run(self) -> None:
        """Look after idle models, forever. The target of a thread."""
        while not self.notice.wait(lambda: self.draining, TICK):
            self.tick()

    def tick(self) -> None:
        """Unload models that have been idle for too long; retry loads that were postponed."""
        for model in self._failures.due():
            if model.settings.at_start and not model.closing:
                with contextlib.suppress(Unavailable):
                    self.load(model)
        for model in self.models:
            with self._lock:
                self._drop_dead(model)
            if not model.is_loaded:
                if model.settings.at_start and model.current is None and not model.phase:
                    self.load(model)
                continue
            now = time.monotonic()
            if model.in_use:
                model.last_used = now
            elif 0 <= model.stay <= now - model.last_used:
                self.unload(model)
            elif now - model.last_used >= TICK and (engine := model.current) is not None:
                engine.grammars.prepare()  # otherwise the first constrained request would wait for it

    def drain(self) -> None:
        """Load nothing more and accept nothing new; running work continues."""
        self.draining = True
        for engine in self.engines:
            engine.drain()
        self.notice.tell()

    def stop(self, timeout: float) -> bool:
        """Stop all engines; returns whether they stopped in time."""
        self.draining = self._stopping = True
        self.notice.tell()
        end = self._clock() + timeout
        return all([engine.stop(max(0.1, end - self._clock())) for engine in self.engines])


def _figures(model: Model, **more: float) -> dict[str, dict[str, float | str]]:
    used = as_gib(model.memory_used or model.memory)
    return {"fields": {"memory": used, "at_most": as_gib(model.memory), "process": as_gib(resident_memory()), **more}}
