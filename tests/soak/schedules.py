"""Random schedules for an hour: no finding. The same as in tests/engine, with new seeds, and on models with projectors.

`tox -e soak` runs it; SOAK_SECONDS is shared among the kinds. SOAK_SEED begins where an earlier run has ended: a
failure names its seed.
"""

from __future__ import annotations

import itertools
import os
import random
import time

import pytest
import tiny_projectors
from model.real_schedules import RealEpisode
from random_schedules import Episode
from threaded_schedules import ThreadedEpisode

SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))
SEED = int(os.environ.get("SOAK_SEED", random.randrange(1_000_000_000)))
SHARES = {"by hand": 0.6, "threads": 0.2, "projectors": 0.2}


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """What only a power cut could lose is not waited for."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(scope="module")
def seeing_models(tmp_path_factory):
    """Files of a text model and its projector, by kind."""
    folder = tmp_path_factory.mktemp("models")
    return {
        kind: (
            str(tiny_projectors.text_model(folder / f"text-{kind}.gguf", kind)),
            str(tiny_projectors.projector(folder / f"mmproj-{kind}.gguf", kind)),
        )
        for kind in tiny_projectors.KINDS
    }


@pytest.mark.timeout(0)
@pytest.mark.parametrize("what", SHARES)
def test_random_schedules_break_nothing(tmp_path_factory, seeing_models, what):
    ends, episodes = time.monotonic() + SECONDS * SHARES[what], 0
    for seed in itertools.count(SEED):
        if time.monotonic() >= ends:
            break
        folder = tmp_path_factory.mktemp("episode")
        try:
            if what == "by hand":
                Episode(seed, folder, num_operations=random.Random(seed).choice([100, 200, 600])).run()
            elif what == "threads":
                ThreadedEpisode(seed, folder).run()
            else:
                kind = list(seeing_models)[seed % len(seeing_models)]
                RealEpisode(seed, kind, seeing_models[kind]).run()
        except Exception as error:
            raise AssertionError(f"{what}: SOAK_SEED={seed} finds it, after {episodes} episodes") from error
        episodes += 1
    print(f"{what}: {episodes} episodes from seed {SEED}, no finding")
    assert episodes
