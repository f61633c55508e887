"""Turns in a recording, by its energy."""

from __future__ import annotations

import numpy as np
import pytest

from llamasrv.media.voice_activity import FRAME_MS, NoiseFloor, VoiceActivity, VoiceLevel

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


def decibels(level):
    return 10 ** (level / 20)


def spoken(*turns, lead=1.0, noise=-90.0, louder=(), seed=1):
    """Syllables of noise, four a second with gaps between words, at a level in dBFS: (seconds, pause after, level);
    `louder`: (second, dB) where the noise becomes louder. Returns the sound and its turns in ms."""
    random = np.random.default_rng(seed)
    pieces, edges = [np.zeros(int(lead * RATE))], []
    for seconds, pause, level in turns:
        at = np.arange(int(seconds * RATE)) / RATE
        word = np.where(at % 0.9 < 0.75, np.abs(np.sin(np.pi * 4 * at)) ** 0.7, 0.0)
        sound = random.standard_normal(len(at)) * word
        start = sum(map(len, pieces)) * 1000 // RATE
        edges.append((start, start + int(seconds * 1000)))
        pieces += [sound / sound.std() * decibels(level), np.zeros(int(pause * RATE))]
    samples = np.concatenate(pieces)
    levels = np.full(len(samples), decibels(noise))
    for second, more in louder:
        levels[int(second * RATE) :] *= decibels(more)
    samples = samples + random.standard_normal(len(samples)) * levels
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes(), edges


@pytest.mark.parametrize(
    ("level", "noise"),
    [(-12, -90), (-20, -60), (-20, -50), (-20, -40), (-20, -35), (-14, -30), (-26, -45), (-32, -70), (-38, -80)],
)
def test_turns_of_speech_are_found_in_the_noise_of_rooms(level, noise):
    """At -40 dBFS of noise and above a turn began with the session and never ended."""
    data, turns = spoken((2.2, 1.2, level), (3.1, 1.5, level), (1.1, 1.2, level), noise=noise)
    found = edges(data)
    assert [start for start, _ in found] == [True, False] * 3
    for (start, end), (_, began), (_, ended) in zip(turns, found[::2], found[1::2]):
        assert abs(began - start) <= 120 and abs(ended - 500 - end) <= 250


@pytest.mark.parametrize("noise", [-50, -40, -30, -20])
def test_noise_alone_is_no_turn(noise):
    assert edges(spoken(lead=5.0, noise=noise)[0]) == []


def test_noise_that_becomes_louder_ends_what_it_began():
    data, turns = spoken((2.0, 1.2, -20), lead=8.0, noise=-60, louder=[(2.0, 22)])
    found = edges(data)
    starts, ends = [ms for is_start, ms in found if is_start], [ms for is_start, ms in found if not is_start]
    assert len(starts) == len(ends) == 2  # the first is the noise, for as long as it is new
    assert abs(starts[0] - 2000) <= 60 and ends[0] - starts[0] < 3500
    assert abs(starts[1] - turns[0][0]) <= 120 and abs(ends[1] - 500 - turns[0][1]) <= 250


def test_noise_far_below_who_spoke_begins_nothing_when_it_becomes_louder():
    data, _ = spoken((2.0, 6.0, -20), (2.0, 1.2, -20), noise=-60, louder=[(5.0, 22)])
    assert [start for start, _ in edges(data)] == [True, False] * 2


def test_speech_without_a_pause_before_it_is_found_at_its_first_gap():
    (began, ended) = edges(spoken((3.0, 1.0, -20), lead=0.0, noise=-45)[0])
    assert began[0] and began[1] <= 400 and abs(ended[1] - 3500) <= 250


def test_the_lowest_threshold_hears_no_rounding():
    assert edges(spoken(lead=2.0, noise=-95)[0], threshold=0.0) == []
    assert len(edges(spoken((1.0, 1.0, -55), noise=-95)[0], threshold=0.0)) == 2


def test_frames_that_were_lost_are_not_the_level_of_the_noise():
    data, _ = spoken(lead=4.0, noise=-35)
    samples = np.frombuffer(data, "<i2").copy()
    samples[RATE : RATE + 480] = 0
    assert edges(samples.tobytes()) == []


def test_the_noise_before_is_known_where_listening_begins_in_the_middle_of_speech():
    """A client that clears the buffer while somebody speaks."""
    data, _ = spoken((3.0, 1.0, -20), lead=1.0, noise=-45)
    floor = NoiseFloor()
    VoiceActivity(RATE, floor=floor).feed(data[: 2 * int(1.12 * RATE)])
    (began, *_) = VoiceActivity(RATE, floor=floor).feed(data[2 * int(1.12 * RATE) :])
    (late, *_) = VoiceActivity(RATE).feed(data[2 * int(1.12 * RATE) :])
    assert began.is_start and began.ms <= 20 < late.ms


def test_talk_far_below_who_spoke_is_no_turn_and_ends_none():
    """Others who talk in the background: it used to be a turn, and what kept one from ending."""
    data, _ = spoken((2.0, 0.0, -20), (4.0, 1.0, -46))
    (_, began), (is_start, ended) = edges(data)
    assert abs(began - 1000) <= 120 and not is_start and abs(ended - 500 - 3000) <= 250
    assert len(edges(spoken((4.0, 1.0, -46))[0])) == 2  # when nobody spoke before, it is one


def test_who_spoke_is_known_where_listening_begins_anew():
    voice = VoiceLevel()
    VoiceActivity(RATE, voice=voice).feed(spoken((2.0, 1.0, -20))[0])
    assert VoiceActivity(RATE, voice=voice).feed(spoken((2.0, 1.0, -46))[0]) == []


@pytest.mark.parametrize("softer", [-26, -32, -36])
def test_who_goes_on_softer_is_still_heard(softer):
    found = edges(spoken((2.0, 1.2, -20), (2.0, 1.2, softer))[0])
    assert [start for start, _ in found] == [True, False] * 2
