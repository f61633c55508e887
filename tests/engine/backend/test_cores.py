"""Threads among contexts that compute at the same time."""

from __future__ import annotations

import pytest

from llamasrv.engine.backend.cores import RECENT, Cores, gnu_openmp, spare_one


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


def test_one_alone_has_all(cores):
    assert cores.begin("a") == 1
    cores.end("a")
    assert cores.begin("a") == 1


def test_two_at_work_share(cores):
    cores.begin("a")
    assert cores.begin("b") == 2
    cores.end("a")
    assert cores.begin("a") == 2


def test_one_that_has_just_computed_is_expected_again(cores, clock):
    cores.begin("a")
    cores.end("a")
    clock.now = RECENT / 2
    assert cores.begin("b") == 2


def test_one_that_rests_leaves_its_share(cores, clock):
    cores.begin("a")
    cores.end("a")
    clock.now = RECENT * 2
    assert cores.begin("b") == 1


def test_a_long_computation_counts_until_it_ends(cores, clock):
    cores.begin("a")
    clock.now = 1000.0
    assert cores.begin("b") == 2


def test_one_that_is_gone_does_not_count(cores):
    cores.begin("a")
    cores.leave("a")
    assert cores.begin("b") == 1


def test_it_knows_whose_openmp_the_library_has(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert not gnu_openmp()
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"...libomp.so.5...")
    assert not gnu_openmp()
    library.write_bytes(b"...libgomp.so.1...")
    assert gnu_openmp()


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
def test_a_step_leaves_a_core_to_others_where_they_want_it_for_longer_than_the_step_grows(threads, cores, load, left):
    assert spare_one(threads, cores, load) == left
