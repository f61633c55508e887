"""Turns in a recording, by its energy."""

from __future__ import annotations

import numpy as np
import pytest

from llamasrv.media.voice_activity import FRAME_MS, VoiceActivity

RATE = 24_000


def pcm(*parts, noise=0.0):
    """(seconds, level) of tones, with noise over all of it."""
    tones = [np.sin(np.arange(int(seconds * RATE)) * (2 * np.pi * 200 / RATE)) * level for seconds, level in parts]
    samples = np.concatenate(tones)
    samples = samples + np.random.default_rng(1).standard_normal(len(samples)) * noise
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def edges(data, step=None, **options):
    activity = VoiceActivity(RATE, **options)
    step = step or len(data)
    return [(e.is_start, e.ms) for at in range(0, len(data), step) for e in activity.feed(data[at : at + step])]


@pytest.mark.parametrize("step", [None, 960, 1500, 333])
def test_a_turn_begins_with_its_sound_and_ends_after_a_silence(step):
    found = edges(pcm((1, 0), (1, 0.3), (1, 0)), step)
    assert found == [(True, 1000), (False, 2500)]


def test_a_short_pause_is_part_of_the_turn():
    data = pcm((0.5, 0), (0.5, 0.3), (0.3, 0), (0.5, 0.3), (0.6, 0))
    assert edges(data) == [(True, 500), (False, 2300)]
    assert len(edges(data, silence_ms=200)) == 4


def test_a_click_is_no_turn():
    assert edges(pcm((0.5, 0), (FRAME_MS / 1000, 0.9), (1, 0))) == []


def test_noise_that_stays_is_no_turn_and_speech_above_it_is():
    found = edges(pcm((1, 0), (1, 0.5), (1, 0), noise=0.003))
    assert [start for start, _ in found] == [True, False]
    assert edges(pcm((3, 0), noise=0.003)) == []


def test_the_threshold_says_how_loud():
    data = pcm((0.5, 0), (0.5, 0.02), (1, 0))
    assert len(edges(data, threshold=0.5)) == 2 and edges(data, threshold=1.0) == []
