"""Random schedules with real threads: several hand in and cancel, one engine and one embedder compute beside each other.

The books are compared on the engine's thread after each of its turns; answers are judged when all have ended.
"""

from __future__ import annotations

import random
import threading
import time

import numpy as np
from random_schedules import Choice, Episode
from schedule_books import check_books

from llamasrv.engine.backend.fake import FakeEmbeddings
from llamasrv.engine.base.channels import End
from llamasrv.errors import LlamasrvError

PATIENCE = 300.0  # seconds for one answer, also where the schedules run beside other work


class ThreadedEpisode(Episode):
    """`threads` threads submit `requests` each."""

    def __init__(self, seed, folder, *, threads=4, requests=25):
        self.num_threads, self.num_requests = threads, requests
        self.failures: list[BaseException] = []
        super().__init__(seed, folder, faults=False)

    def make_backend(self):
        backend = super().make_backend()
        backend.embeddings = FakeEmbeddings("mean")
        return backend

    def request(self):
        specs, grammar = super().request()
        return [spec._replace(deadline=None) for spec in specs], grammar  # nobody moves this clock

    def make_engine(self, backend, *, pool):
        self.engine_clock = time.monotonic
        engine = super().make_engine(backend, pool=None)
        host, known = engine.host, {}
        turn, doorbell = host.turn, engine.doorbell

        def checked():
            goes_on = turn()
            known.update(dict.fromkeys((*host.core.running, *host.core.waiting)))
            try:
                check_books(host.core, list(known), backend)
            except AssertionError as error:
                self.failures.append(error)
                doorbell.ring()
                return False
            return goes_on

        host.turn = checked
        return engine

    def open_engine(self):
        self.engine.start()
        while self.engine.status.state == "loading":
            time.sleep(0.001)

    def run(self):
        # Random numbers are drawn on one thread.
        work = [[self.request() for _ in range(self.num_requests)] for _ in range(self.num_threads)]
        seeds = [self.rng.getrandbits(32) for _ in range(self.num_threads)]
        threads = [threading.Thread(target=self.client, args=some) for some in zip(work, seeds)]
        threads.append(threading.Thread(target=self.embed, args=(self.rng.getrandbits(32),)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.engine.stop(PATIENCE), "its thread does not end"
        self.engine.release()
        if self.failures:
            raise self.failures[0]
        for choice in self.choices:
            assert choice.end is not None and choice.stream.open_choices == 0
            self.judge(choice)

    def client(self, requests, seed):
        rng, under_way = random.Random(seed), []
        try:
            for specs, grammar in requests:
                constraints = [self.constraint(self.engine, grammar) for _ in specs]
                stream = self.engine.submit(specs, constraints)
                made = [Choice(spec, grammar, stream) for spec in specs]
                self.choices += made
                under_way.append(made)
                if rng.random() < 0.15:
                    for choice in made:
                        choice.cancelled = True
                    self.engine.cancel(stream)
                if rng.random() < 0.2:
                    self.slots(rng)
                while len(under_way) > rng.randint(0, 6):
                    self.follow(under_way.pop(rng.randrange(len(under_way))))
            for made in under_way:
                self.follow(made)
        except BaseException as error:
            self.failures.append(error)

    def follow(self, made):
        """Read a stream to its end."""
        stream = made[0].stream
        while not all(choice.end for choice in made):
            assert stream.wait(PATIENCE), "nothing comes"
            for item in stream.take():
                choice = next(c for c in made if c.spec.choice == item.choice)
                assert choice.end is None, "something follows an End"
                choice.items.append(item)

    def slots(self, rng):
        try:
            number = rng.randrange(self.parallel)
            if rng.random() < 0.5:
                state = self.engine.save_slot(number)
                self.timelines.append((state.cache_key, state.tokens))
                self.engine.restore_slot(number, state)
            else:
                self.engine.erase_slot(number)
        except LlamasrvError:
            pass  # it is in use, or empty

    def embed(self, seed):
        """Vectors equal those computed alone, whatever the engine computes beside them."""
        rng, alone = random.Random(seed), FakeEmbeddings("mean")
        try:
            for _ in range(self.num_requests):
                inputs = [[rng.randrange(256) for _ in range(rng.randint(1, 60))] for _ in range(rng.randint(1, 8))]
                stream, found = self.engine.embedder.submit(inputs), {}
                while len(found) < len(inputs):
                    assert stream.wait(PATIENCE), "no vector comes"
                    for item in stream.take():
                        if not isinstance(item, End):
                            assert item.error is None and item.place not in found
                            found[item.place] = item.vector
                for index, tokens in enumerate(inputs):
                    (expected,) = alone.embed([np.array(tokens, np.int32)])
                    assert np.allclose(found[index], expected, atol=1e-6)
        except BaseException as error:
            self.failures.append(error)
