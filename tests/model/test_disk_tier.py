"""States of tiny models on disk: a restart finds exactly what was computed."""

from __future__ import annotations

import pytest

from llamasrv.domain.params import SamplingParams

SYSTEM = [5 + (i * i) % 290 for i in range(300)]


@pytest.fixture
def restart(real, tmp_path, monkeypatch):
    """`restart(kind)`: an engine with the same folder as the ones before it."""

    monkeypatch.setattr("os.fsync", lambda fd: None)  # what only a power cut could lose is not waited for

    def start(kind="llama", **options):
        settings = {"disk_bytes": 1 << 26, "disk_folder": tmp_path / "prefixes", "digest": kind} | options
        engine = real(kind, **settings)
        engine.core.scheduler.cost.prompt_seconds = lambda count: count * 0.01  # as if the model were large
        return engine

    return start


def ask(engine, *tail, **settings):
    params = SamplingParams(temperature=0, ignore_eos=True)
    settings = {"params": params, "max_tokens": 8, "logprobs": 3} | settings
    return engine.run([engine.sequence([*SYSTEM, *tail], **settings)])[0]


def written(engine):
    while engine.core.disk._writing:
        engine.engine.take_mail(1)
    return engine.core.metrics.prefixes_written


def test_a_restart_finds_the_common_prefix_and_continues_as_if_computed(restart):
    first = restart()
    cold = ask(first, 7, 8, 9)
    ask(first, 11, 12, 13)
    assert written(first) == 1
    again = restart()
    warm = ask(again, 7, 8, 9)
    assert warm.end.num_reused == len(SYSTEM) and cold.end.num_reused == 0
    assert warm.tokens == cold.tokens and warm.distance_to(cold) < 0.15


@pytest.mark.parametrize(
    "options",
    [
        {"cache_type_k": "f32"},
        {"digest": "another file"},
        {"flash_attn": "off"},
        {"rope_freq_scale": 0.25},
        {"rope_freq_base": 5e5},
    ],
    ids=str,
)
def test_a_restart_with_other_settings_recomputes(restart, options):
    first = restart()
    ask(first, 7)
    ask(first, 11)
    assert written(first) == 1
    assert ask(restart(**options), 13).end.num_reused == 0


def test_a_sliding_window_is_restored_whole_or_not_at_all(restart):
    first = restart("swa")
    cold = ask(first, 7, 8)
    for tail in (11, 12, 13):
        ask(first, tail)
    written(first)
    warm = ask(restart("swa"), 7, 8)
    assert warm.tokens == cold.tokens


@pytest.mark.parametrize("kind", ["mamba", "hybrid"])
def test_recurrent_states_answer_the_same_after_a_restart(restart, kind):
    first = restart(kind)
    cold = ask(first, 7, 8)
    ask(first, 11)
    written(first)
    assert ask(restart(kind), 7, 8).tokens == cold.tokens


def test_a_state_refused_by_the_library_is_recomputed(restart, tmp_path):
    """A file with valid checksums that is not a state: no answer suffers."""
    first = restart()
    cold = ask(first, 7, 8, 9)
    save = first.backend.save
    first.backend.save = lambda lane: save(lane)[:1000]
    ask(first, 11)
    assert written(first) == 1
    again = restart()
    assert ask(again, 7, 8, 9).tokens == cold.tokens
