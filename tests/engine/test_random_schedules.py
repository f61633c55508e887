"""Random schedules: each answer equals the one alone, and all tables agree after every turn."""

import os

import pytest
from random_schedules import Episode
from threaded_schedules import ThreadedEpisode

SEEDS = range(20)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Skips waiting for data that only a power cut could lose."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_lose_and_mix_up_nothing(tmp_path, seed):
    Episode(seed, tmp_path).run()


@pytest.mark.parametrize("seed", range(2))
def test_random_schedules_with_real_threads(tmp_path, seed):
    ThreadedEpisode(seed, tmp_path).run()
