"""Prefixes outlive the engine: in host memory for the model's next engine, on disk for the next process."""

import os

import pytest
from engine_driver import Driver, chat, end_of, no_leaks, text_of
from recording_backend import RecordingBackend

from llamasrv.engine.base.interface import HYBRID, RECURRENT
from llamasrv.engine.kv.host_cache import HostCache

KINDS = {
    "attention": {},
    "partial": {"traits": HYBRID},
    "whole": {"traits": RECURRENT},
}
TALK = chat("a long question " * 20)
NEXT = TALK + "You said<|im_end|>\n" + chat("and?")  # what was said is not what the model had said


@pytest.fixture(params=KINDS)
def life(request, monkeypatch):
    """`life(prefixes, **options)`: an engine of the same model; `end()` closes it, as when the model is unloaded."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    drivers = []

    def start(prefixes=None, facts=None, **options):
        backend = RecordingBackend(**KINDS[request.param])
        backend.state_facts = {"library": "fake", **(facts or {})}
        driver = Driver(backend, prefixes=prefixes, **{"digest": "m", **options})
        driver.core.scheduler.cost.prompt_seconds = lambda count: count * 0.01
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        if not driver.backend.closed:
            no_leaks(driver)


def end(driver):
    driver.engine.host.close()


def reused(driver, prompt):
    stream = driver.submit(prompt)
    driver.finish()
    items = stream.take()
    assert text_of(items).startswith("You said")
    return end_of(items).num_reused


def test_a_conversation_is_found_after_its_model_was_unloaded(life):
    prefixes = HostCache()
    first = life(prefixes)
    reused(first, TALK)
    end(first)
    assert prefixes.used
    assert reused(life(prefixes), NEXT) > 0.9 * len(TALK.encode()) - 60


@pytest.mark.parametrize("other", [{"facts": {"library": "newer"}}, {"digest": "another file"}, {"cache_bytes": 2**20}])
def test_an_engine_with_another_model_or_library_finds_nothing(life, other):
    prefixes = HostCache()
    first = life(prefixes)
    reused(first, TALK)
    end(first)
    assert reused(life(prefixes, **other), NEXT) == 0


def test_an_engine_takes_over_the_cache_of_another(life):
    """As after a change of options that do not affect states."""
    old, new = HostCache(), HostCache()
    first, second = life(old), life(new)
    reused(first, TALK)
    end(first)
    second.core.prefixes.take_over(old)
    assert reused(second, NEXT) > 250 and old.used == 0


def test_the_cache_stays_within_its_limit(life):
    prefixes = HostCache()
    driver = life(prefixes, cache_bytes=4000, checkpoint_bytes=4000, parallel=4)
    for n in range(6):
        reused(driver, chat(f"{n} " * 60))
    end(driver)
    assert prefixes.host.used <= 4000 and prefixes.checkpoints.used <= 4000


def test_a_closing_engine_writes_its_prefixes_to_disk(life, tmp_path):
    disk = {"disk_bytes": 1 << 24, "disk_folder": tmp_path}
    first = life(**disk)
    reused(first, TALK)
    end(first)
    assert reused_from_disk(life(**disk)) > 250


def test_a_kill_loses_only_the_last_seconds(life, tmp_path):
    disk = {"disk_bytes": 1 << 24, "disk_folder": tmp_path}
    first = life(**disk)
    reused(first, TALK)
    first.turn()
    for _ in range(3):
        first.now += 15
        first.engine.turn()
        wait_for_disk(first)
    assert first.core.metrics.prefixes_written == 1, "once, not at each look"
    assert reused_from_disk(life(**disk)) > 250  # nothing was closed


def test_a_continued_conversation_replaces_its_file(life, tmp_path):
    driver = life(disk_bytes=1 << 24, disk_folder=tmp_path)
    text = TALK
    for _ in range(3):
        stream = driver.submit(text)
        driver.finish()
        text += text_of(stream.take()) + "<|im_end|>\n" + chat("go on " * 8)
        for _ in range(2):
            driver.now += 25
            driver.engine.turn()
            wait_for_disk(driver)
    assert driver.core.metrics.prefixes_written >= 2 and len(driver.core.disk) <= 2


def test_after_a_failed_restart_no_state_is_saved(life):
    driver = life(HostCache())
    driver.submit(TALK)
    driver.core.scheduler.plan = driver.backend.reset = lambda *a: 1 / 0
    driver.engine.take_mail()
    assert driver.engine.host.turn() is False
    driver.backend.save = driver.backend.saved_size = lambda lane: 1 / 0
    driver.engine.host.close()


def wait_for_disk(driver):
    while driver.core.disk._writing:
        driver.engine.take_mail(1)


def reused_from_disk(driver):
    stream = driver.submit(NEXT)
    for _ in range(2000):
        if not driver.engine.num_open:
            break
        driver.engine.take_mail(0.001)
        driver.turn()
    items = stream.take()
    assert text_of(items) == "You said: and?" and driver.engine.metrics.prefixes_read == 1
    return end_of(items).num_reused
