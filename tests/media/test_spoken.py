"""Speech as audio files: what was fed in pieces is what a decoder reads."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest

from llamasrv.media import spoken

RATE = 24_000
TONE = (np.sin(np.arange(RATE) * (2 * np.pi * 440 / RATE)) * 20_000).astype("<i2")


def written(kind, speed=1.0, pcm=TONE, step=1920):
    writer = spoken.writer(kind, RATE, speed)
    return b"".join([writer.feed(pcm[at : at + step].tobytes()) for at in range(0, len(pcm), step)] + [writer.end()])


def decoded(data):
    av = pytest.importorskip("av")
    resampler, out = av.AudioResampler(format="s16", layout="mono", rate=RATE), []
    with av.open(io.BytesIO(data)) as file:
        for frame in file.decode(file.streams.audio[0]):
            out += [part.to_ndarray().reshape(-1) for part in resampler.resample(frame)]
    return np.concatenate(out)


def pitch(samples):
    middle = samples[len(samples) // 4 : -len(samples) // 4].astype(np.float64)
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    return float(spectrum.argmax() * RATE / len(middle))


def test_pcm_is_the_samples_and_wav_has_a_head_in_front():
    assert written("pcm") == TONE.tobytes()
    with wave.open(io.BytesIO(written("wav"))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        assert file.readframes(1 << 20) == TONE.tobytes()


@pytest.mark.parametrize("kind", ["mp3", "opus", "aac", "flac"])
def test_every_format_has_the_length_and_the_pitch(kind):
    pytest.importorskip("av")
    for length in (len(TONE), len(TONE) - 1000, len(TONE) - 500, len(TONE) - 77):
        samples = decoded(written(kind, pcm=TONE[:length]))
        assert abs(len(samples) - length) < 0.05 * RATE
        assert pitch(samples) == pytest.approx(440, abs=4)


def test_sound_comes_out_while_it_goes_in():
    pytest.importorskip("av")
    for kind in ("mp3", "opus", "aac"):
        writer = spoken.writer(kind, RATE)
        early = b"".join(writer.feed(TONE[at : at + 1920].tobytes()) for at in range(0, len(TONE), 1920))
        assert len(early) > len(writer.end())


@pytest.mark.parametrize("length", [1, 2304, 2305, 23_041])
def test_a_flac_file_has_its_length(length):
    """It left it open, and soundfile.read refused such a file."""
    av = pytest.importorskip("av")
    samples = np.random.default_rng(length).integers(-9000, 9000, length).astype("<i2")
    file = written("flac", pcm=samples, step=15_360)
    with av.open(io.BytesIO(file)) as container:
        assert container.streams.audio[0].duration == length
    assert decoded(file).tolist() == samples.tolist()


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.5, 2.0, 4.0])
def test_speed_changes_the_length_and_keeps_the_pitch(speed):
    pytest.importorskip("av")
    samples = np.frombuffer(written("pcm", speed), "<i2")
    assert len(samples) == pytest.approx(len(TONE) / speed, abs=1)
    assert pitch(samples) == pytest.approx(440, abs=10)


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.5, 4.0])
def test_the_last_moment_is_heard_at_any_speed(speed):
    """At a quarter of the speed the last 71 ms were missing."""
    pytest.importorskip("av")
    late = TONE.copy()
    late[: -RATE // 4] = 0
    samples = np.frombuffer(written("pcm", speed, late), "<i2").astype(np.float64)
    assert np.flatnonzero(np.abs(samples) > 2000)[-1] > len(samples) - 0.04 * RATE


@pytest.mark.parametrize("kind", list(spoken.TYPES))
def test_no_sound_at_all_is_a_file_too(kind):
    if kind not in spoken.PLAIN:
        pytest.importorskip("av")
    assert isinstance(written(kind, pcm=TONE[:0]), bytes)
    assert isinstance(written(kind, 2.0 if spoken.has_codecs() else 1.0, pcm=TONE[:0]), bytes)
