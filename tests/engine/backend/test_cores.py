"""CPU threads shared by contexts that compute at the same time."""

from __future__ import annotations

import math
import time

import pytest

from llamasrv.concurrency import Mailbox, RealThread
from llamasrv.engine.backend.cores import CORES, RECENT, Cores, CoreShare, gnu_openmp, spare_one


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cores(clock):
    return Cores(clock)


def test_a_single_context_gets_all_threads(cores):
    assert cores.begin("a") == 1
    cores.end("a")
    assert cores.begin("a") == 1


def test_two_computing_contexts_share_threads(cores):
    cores.begin("a")
    assert cores.begin("b") == 2
    cores.end("a")
    assert cores.begin("a") == 2


def test_a_context_that_has_just_computed_keeps_its_share(cores, clock):
    cores.begin("a")
    cores.end("a")
    clock.now = RECENT / 2
    assert cores.begin("b") == 2


def test_an_idle_context_releases_its_share(cores, clock):
    cores.begin("a")
    cores.end("a")
    clock.now = RECENT * 2
    assert cores.begin("b") == 1


def test_a_long_computation_counts_until_it_ends(cores, clock):
    cores.begin("a")
    clock.now = 1000.0
    assert cores.begin("b") == 2


def test_a_closed_context_does_not_count(cores):
    cores.begin("a")
    cores.drop("a")
    assert cores.begin("b") == 1


def joined(cores, who):
    """Let `who` join on a thread of its own; the returned mailbox gets an item once it has."""
    told = Mailbox()

    def join():
        cores.join(who, longest=60.0)
        told.put(None)

    RealThread(join).start()
    while who not in cores.at_work():
        time.sleep(0.001)
    return told


def test_a_long_computation_waits_for_the_step_that_had_all_threads(cores):
    """An encode started while a step used a thread per core: with three threads on two cores it took four times as
    long."""
    cores.begin("step")
    told = joined(cores, "encoder")
    assert told.take(0.05) == []
    cores.end("step")
    assert told.take(30) == [None]
    assert cores.begin("step") == 2


def test_a_long_computation_waits_for_all_other_contexts(cores):
    cores.begin("one")
    cores.begin("other")
    told = joined(cores, "encoder")
    cores.drop("one")
    assert told.take(0.05) == []
    cores.end("other")
    assert told.take(30) == [None]


def test_a_long_computation_starts_at_once_on_an_idle_machine(cores):
    cores.begin("step")
    cores.end("step")
    cores.join("encoder", longest=math.inf)
    assert cores.at_work() == {"encoder"}


def test_a_long_computation_does_not_wait_for_ever(cores):
    cores.begin("stuck")
    cores.join("encoder", longest=0.01)
    assert cores.begin("stuck") == 2


def test_it_detects_gnu_openmp(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert not gnu_openmp()
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"...libomp.so.5...")
    assert not gnu_openmp()
    library.write_bytes(b"...libgomp.so.1...")
    assert gnu_openmp()


def test_a_context_takes_its_share_of_the_threads_while_others_compute():
    counts, other = [], object()
    share = CoreShare(8, counts.append)
    try:
        assert share.compute(lambda: 5) == 5 and counts == []
        CORES.begin(other)
        for _ in range(2):
            share.compute(lambda: 0)
        assert counts == [4]
        CORES.drop(other)
        share.compute(lambda: 0)
        assert counts == [4, 8]
    finally:
        share.close()
        CORES.drop(other)


@pytest.mark.parametrize(
    "threads, cores, load, left",
    [
        (2, 2, 0.0, 2),
        (2, 2, 0.45, 2),  # half as many threads take twice as long: worth it from half of that step of other work on
        (2, 2, 0.55, 1),
        (16, 16, 0.05, 16),
        (16, 16, 0.1, 15),  # a sixteenth less is cheap
        (8, 16, 5.0, 8),  # there are cores left
        (1, 1, 5.0, 1),
    ],
)
def test_a_step_leaves_a_core_to_others_where_they_need_it_for_longer_than_the_step_grows(threads, cores, load, left):
    assert spare_one(threads, cores, load) == left
