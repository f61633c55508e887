"""G.711 and the way to and from 24 kHz."""

from __future__ import annotations

import numpy as np
import pytest

from llamasrv.media.telephony import DELAY, TelephoneDecoder, TelephoneEncoder, levels

RATE = 24_000


def tone(hertz, seconds=0.5, level=8000):
    samples = np.sin(np.arange(int(seconds * RATE)) * (2 * np.pi * hertz / RATE)) * level
    return samples.astype("<i2").tobytes()


def encoded(law, pcm, step=None):
    encoder, step = TelephoneEncoder(law), step or len(pcm)
    return b"".join(encoder.encode(pcm[at : at + step]) for at in range(0, len(pcm), step or 1)) + encoder.end()


def test_the_octets_have_the_samples_of_the_standard():
    mu, a = levels("mu"), levels("a")
    assert mu[[0x00, 0x01, 0x7F, 0x80, 0xFF, 0xA9]].tolist() == [-32124, -31100, 0, 32124, 0, 5628]
    assert a[[0x00, 0x2A, 0x55, 0xAA, 0xD5, 0x80]].tolist() == [-5504, -32256, -8, 32256, 8, 5504]
    assert len(set(mu.tolist())) == 255 and len(set(a.tolist())) == 256


@pytest.mark.parametrize("law", ["mu", "a"])
@pytest.mark.parametrize("hertz", [150, 1000, 3000])
def test_a_voice_comes_back_as_it_was(law, hertz):
    pcm = tone(hertz)
    back = np.frombuffer(TelephoneDecoder(law).decode(encoded(law, pcm)), "<i2").astype(float)[2 * DELAY :]
    sent = np.frombuffer(pcm, "<i2").astype(float)
    count = min(len(sent), len(back))
    assert count >= len(sent) - DELAY
    error = (back[:count] - sent[:count])[2 * DELAY : -2 * DELAY]
    assert np.sqrt(np.mean(error**2)) < 0.02 * np.sqrt(np.mean(sent**2))


@pytest.mark.parametrize("hertz", [4300, 6000, 11_000])
def test_what_a_telephone_cannot_carry_is_not_heard_as_something_else(hertz):
    back = np.frombuffer(TelephoneDecoder("mu").decode(encoded("mu", tone(hertz))), "<i2").astype(float)
    assert np.sqrt(np.mean(back[600:-600] ** 2)) < 60


@pytest.mark.parametrize("step", [2, 6, 2002, 3840])
def test_pieces_may_have_any_size(step):
    pcm = tone(440, 0.1)
    whole = encoded("a", pcm)
    assert encoded("a", pcm, step) == whole and len(whole) == len(pcm) // 6 + DELAY // 3
    decoder = TelephoneDecoder("a")
    pieces = b"".join(decoder.decode(whole[at : at + step]) for at in range(0, len(whole), step))
    assert pieces == TelephoneDecoder("a").decode(whole) and len(pieces) == 6 * len(whole)


def test_nothing_becomes_nothing():
    assert TelephoneDecoder("mu").decode(b"") == encoded("mu", b"") == b""
