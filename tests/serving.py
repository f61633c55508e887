"""A pipeline and a web service on the fake model, driven by hand or by the engine's own thread."""

from __future__ import annotations

import threading
import time

from engine_by_hand import HandEngine
from recording_backend import RecordingBackend

from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.engine import EngineOptions
from llamasrv.models.model import Model, ModelSettings
from llamasrv.models.registry import Registry
from llamasrv.pipeline import Pipeline
from llamasrv.store import StoreOptions, open_store
from llamasrv.web.app import create_app
from llamasrv.web.service import Service, WebOptions


def openai_error_keys(error):
    """The members of an error object in OpenAI's words; a prompt that is too long also tells its size, and the room."""
    sizes = {"n_prompt_tokens", "n_ctx"} if error["code"] == "context_length_exceeded" else set()
    return {"message", "type", "param", "code"} | sizes


def open_engine(*, options=None, **fake):
    """An engine that has loaded and takes a turn when it is told."""
    engine = HandEngine(lambda progress: RecordingBackend(**fake), options or EngineOptions(parallel=8), name="fake")
    engine.open()
    return engine


def pipeline_on(engine, **settings):
    return Pipeline(Registry([Model("fake", ModelSettings(**settings), engine=engine)]))


def read(engine, generation, *, most=10_000):
    """All events of a generation, whose engine is turned by hand."""
    events = []
    for _ in range(most):
        engine.turn()
        events += generation.events(0)
        if generation.done:
            return events
    raise AssertionError(f"no end after {most} turns: {events}")


def check_no_leaks(engine):
    engine.memory.lanes.check()
    assert engine.num_open == 0 and not engine.core.running and not engine.core.waiting
    assert not engine.memory.lanes.held


class RunningService:
    """The application with an engine thread behind it."""

    def __init__(
        self,
        *,
        options=None,
        aliases=("alias",),
        web=None,
        store="memory",
        any_name=False,
        model=None,
        voice=None,
        **fake,
    ):
        """`voice`: a FakeSpeech, served as the model of that name beside the one that writes."""
        fake = {"num_lanes": 16, "num_cells": 8192, "context": 1024, **fake}
        self.backends = []

        def open_backend(progress):
            self.backends.append(RecordingBackend(**fake))
            return self.backends[-1]

        self.engine = HandEngine(open_backend, options or EngineOptions(parallel=8), name="fake")
        self.engine.start()
        wait_until(lambda: self.engine.status.state != "loading")
        self.store = open_store(store, StoreOptions())
        settings = ModelSettings(aliases, **(model or {}))
        models = [Model("fake", settings, engine=self.engine)]
        self.voice_engine = None
        if voice is not None:
            self.voice_engine = HandEngine(
                lambda progress: RecordingBackend(speech=voice), EngineOptions(), name="voice"
            )
            self.voice_engine.start()
            wait_until(lambda: self.voice_engine.status.state != "loading")
            models.append(Model("voice", ModelSettings(), engine=self.voice_engine))
        registry = Registry(models, any_name=any_name)
        self.service = Service.of(registry, web or WebOptions(), self.store)
        self.app = create_app(self.service)
        self.app.wsgi_app = closed_at_the_end(self.app.wsgi_app)
        self.client = self.app.test_client()

    @property
    def backend(self):
        return self.backends[-1]

    def check_at_rest(self):
        """Nothing of a test goes on after it: a body that was not read to its end, a batch. It would be seen by
        another test, which fails in its place."""
        stats = self.service.stats
        try:
            wait_until(lambda: not stats.num_open, what="the end of every request (is its body closed?)")
            wait_until(lambda: not self.service.idle_gate.num_workers, what="the end of every batch")
        finally:
            stats.open.clear()  # the next test is not to blame

    def close(self):
        self.service.batches.close()
        self.check_at_rest()
        wait_until(lambda: self.engine.num_open == 0)
        assert self.engine.stop(10)
        if self.voice_engine is not None:
            wait_until(lambda: self.voice_engine.num_open == 0)
            assert self.voice_engine.stop(10)
        self.engine.memory.lanes.check()
        wait_until(lambda: not len(self.service.background))
        if self.store is not None:
            self.store.close()
        assert all(chain.closed for chain in self.backend.chains)


def closed_at_the_end(application):
    """The application with bodies that are closed after their last piece, as a server does; the test client leaves that
    to its caller."""

    def call(environ, start_response):
        body = application(environ, start_response)
        close = getattr(body, "close", None)
        return body if close is None else ClosedAtTheEnd(body, close)

    return call


class ClosedAtTheEnd:
    def __init__(self, body, close):
        self._pieces = iter(body)
        self.close = close

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self._pieces)
        except BaseException:  # its end, or a reply that breaks off
            self.close()
            raise


def wait_until(condition, timeout=10.0, what="it"):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"{what} did not come in time"
        time.sleep(0.001)


def failing_midway(running, path, body):
    """What a stream says whose first piece has been read when computing begins to fail."""
    decode, heard, steps = running.backend.decode, threading.Event(), iter(range(8))

    def failing():
        if next(steps, None) is None:
            assert heard.wait(10)
            raise DecodeFailed("secret reason")
        decode()

    running.backend.decode = failing
    pieces = running.client.post(path, json=body).iter_encoded()
    first = next(pieces)
    heard.set()
    return first + b"".join(pieces)
