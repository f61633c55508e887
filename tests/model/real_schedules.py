"""Random schedules on tiny real models with their projectors: log-probabilities are those of each answer alone."""

from __future__ import annotations

import random
from pathlib import Path

from model.conftest import RealEngine, Result
from schedule_books import check_sequences
from test_projectors import AFTER, BEFORE, EXACT, media_of, prompt

from llamasrv.errors import LlamasrvError

TOLERANCE = 0.01  # of log-probabilities, with 32-bit KV: only the order of sums differs
BEGINNINGS = (BEFORE, "<s>all of them begin with these words, which is where they part: ", "<s>")


class RealEpisode:
    """`paths`: of a text model and its projector."""

    def __init__(self, seed, kind, paths, *, requests=24):
        self.rng, self.kind, self.num_requests = random.Random(seed), kind, requests
        rng = self.rng
        text, projector = paths
        options = EXACT | {
            "mmproj": Path(projector),
            "parallel": rng.choice([2, 4, 8]),
            "context_cells": rng.choice([512, 1024, 2048]),
            "idle_cells": rng.choice([0, 2048]),
            "media_bytes": rng.choice([1 << 16, 1 << 24]),
            "cache_bytes": rng.choice([0, 1 << 24]),
            "swap_bytes": rng.choice([0, 1 << 24]),
        }
        self.engine = RealEngine(text, **options)
        self.alone = RealEngine(text, **EXACT, mmproj=Path(projector), parallel=1, spec="off", cache_bytes=0)
        self.streams = []

    def run(self):
        rng, real = self.rng, self.engine
        left, turns = self.num_requests, 0
        while left or real.engine.num_open:
            if left and rng.random() < 0.25:
                left -= 1
                self.submit()
            self.disturb()
            if real.core.encoder is not None and rng.random() < 0.7:
                real.core.encoder.turn()
            assert real.engine.host.turn(wait=False), "the engine gave up"
            assert not real.engine.metrics.restarts, "the loop failed"
            check_sequences(real.core, real.sequences)
            real.core.memory.check()
            real.core.memory.tree.check()
            for seq in real.core.running:
                if seq.media is None:
                    assert real.backend.length(seq.lane) == seq.num_computed, seq
            turns += 1
            assert turns < 20_000, "no end"
        self.judge()
        for engine in (real, self.alone):
            engine.engine.host.close()

    def submit(self):
        rng = self.rng
        parts = [rng.choice(BEGINNINGS)]
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            parts += [media_of(self.kind, rng.randrange(3)), rng.choice(["and", "", " then "])]
        spec = prompt(
            self.engine,
            *parts,
            f"{AFTER} {rng.randrange(99)}",
            max_tokens=rng.choice([1, 5, 12]),
            priority=rng.choice([0, 0, 1]),
            deferrable=rng.random() < 0.2,
            cache_prompt=rng.random() < 0.9,
            owner=rng.choice("ab"),
        )
        if len(spec.tokens) + 16 < self.engine.engine.context:
            self.streams.append((spec, self.engine.engine.submit([spec])))

    def disturb(self):
        rng, engine, core = self.rng, self.engine.engine, self.engine.core
        if self.streams and rng.random() < 0.02:
            engine.cancel(rng.choice(self.streams)[1])
        if core.running and rng.random() < 0.05:
            engine.preempt(rng.choice(core.running))
        if rng.random() < 0.03:
            number = rng.randrange(self.engine.options.places)
            try:
                state = engine.ask_by_hand(lambda core: core.admission.slots.save(number, core.memory))
                engine.ask_by_hand(lambda core: core.admission.slots.restore(number, state, core.memory))
            except LlamasrvError:
                pass  # it is in use, or empty

    def judge(self):
        for spec, stream in self.streams:
            result = Result(stream.take())
            assert result.end.error is None, result.end.error
            (alone,) = self.alone.run([spec._replace(cache_prompt=False, deferrable=False)])
            assert result.distance_to(alone) < TOLERANCE, (result.tokens, alone.tokens)
            if result.end.reason is alone.end.reason:
                assert len(result.tokens) == len(alone.tokens)
