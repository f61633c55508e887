"""Engines on tiny real models, driven by hand."""

from __future__ import annotations

import functools
import time

import architectures
import pytest
import tiny_models
import tiny_projectors
import tiny_speech
from engine_by_hand import HandEngine
from engine_driver import no_leaks, spec

from llamasrv.engine.base.channels import Delta
from llamasrv.engine.engine import EngineOptions


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """`model_path("swa")`: the file of a tiny model of that kind; `text-gemma3` and `mmproj-gemma3` for one that sees."""
    folder = tmp_path_factory.mktemp("models")

    @functools.lru_cache(None)
    def make(kind):
        path = folder / f"{kind}.gguf"
        if kind in tiny_models.KINDS:
            return str(tiny_models.KINDS[kind](path))
        what, _, projector = kind.partition("-")
        if projector in tiny_projectors.KINDS and what in ("text", "mmproj"):
            make_one = tiny_projectors.text_model if what == "text" else tiny_projectors.projector
            return str(make_one(path, projector))
        if projector in tiny_speech.KINDS and what in ("text", "mmproj"):
            return str((tiny_speech.model if what == "text" else tiny_speech.projector)(path, projector))
        return str(architectures.make(kind, path))

    return make


class RealEngine:
    def __init__(self, path, **options):
        from llamasrv.engine.backend.context import open_model

        settings = {"context_cells": 2048, "batch_size": 256, "ubatch_size": 64, "threads": 1, "parallel": 16} | options
        self.options = EngineOptions(**settings)
        self.stopped: float | None = None  # what its clock shows, where that stands still
        self.engine = HandEngine(functools.partial(open_model, path, self.options), self.options, clock=self.clock)
        self.engine.open()
        self.backend = self.engine.backend
        self.core, self.sequences = self.engine.core, self.engine.arrived

    def clock(self):
        return time.monotonic() if self.stopped is None else self.stopped

    def sequence(self, prompt, **settings):
        tokens = self.engine.vocab.tokenize(prompt) if isinstance(prompt, str) else prompt
        return spec(tokens, **settings)

    def preempt(self, spec):
        """Preempt the sequence of this spec, if it runs."""
        self.engine.preempt(next(seq for seq in self.sequences if seq.spec is spec))

    def run(self, sequences, *, at_turn=lambda turn: None):
        """Each sequence's tokens, log-probabilities and number of reused tokens."""
        streams = [self.engine.submit([seq]) for seq in sequences]
        turn = 0
        while self.engine.num_open:
            at_turn(turn)
            if self.core.encoder is not None:
                self.core.encoder.turn()
            self.engine.turn()
            turn += 1
        return [Result(stream.take()) for stream in streams]


class Result:
    def __init__(self, items):
        deltas = [i for i in items if isinstance(i, Delta)]
        self.tokens = [d.token for d in deltas]
        self.logprobs = [d.logprobs.logprob if d.logprobs else None for d in deltas]
        self.top = [{t.token: t.logprob for t in d.logprobs.top} if d.logprobs else {} for d in deltas]
        self.text = b"".join(d.data for d in deltas)
        self.end = items[-1]

    def same_as(self, other):
        return self.tokens == other.tokens and self.logprobs == other.logprobs

    def distance_to(self, other):
        """Largest difference of log-probabilities up to the first token that differs, that place included."""
        most = 0.0
        for mine, theirs, a, b in zip(self.tokens, other.tokens, self.top, other.top):
            most = max([most, *(abs(a[t] - b[t]) for t in a.keys() & b.keys())])
            if mine != theirs:
                break
        return most


@pytest.fixture
def real(model_path):
    """`real(kind, **options)`: an engine on a tiny model of that kind, or on a file; afterwards nothing may be left."""
    made = []

    def make(kind="llama", **options):
        made.append(RealEngine(kind if kind.endswith(".gguf") else model_path(kind), **options))
        return made[-1]

    yield make
    for engine in made:
        no_leaks(engine)
        engine.engine.host.close()
