"""The sound of telephones: G.711 (mu-law or A-law) at 8 kHz, to and from samples at 24 kHz.

    TelephoneDecoder    octets to samples, three for each
    TelephoneEncoder    samples to octets, one for three of them

Both go on from call to call, so pieces may have any size. Their filter passes what is below 3.4 kHz, lets less
than a hundredth through from 4 kHz on, and delays by 2.5 ms. Samples have 16 bits, little-endian, mono. Knows no
protocol.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

Law = Literal["mu", "a"]

FACTOR = 3  # 24 kHz / 8 kHz
DELAY = 60  # samples at 24 kHz
_TAPS = 2 * DELAY + FACTOR  # the last two are zero, so that all phases have the same number
_CUTOFF = 3650 / 12_000  # where half of the amplitude passes, relative to half the rate
_BETA = 6.5  # of Kaiser's window
_BLOCK = 1 << 16  # octets decoded at a time


def levels(law: Law) -> Any:
    """The samples of the 256 octets, int32 [256]: ITU-T G.711."""
    import numpy as np

    octets = np.arange(256, dtype=np.int32)
    code = octets ^ (0xFF if law == "mu" else 0x55)
    mantissa, segment = code & 0xF, code >> 4 & 7
    if law == "mu":
        size = (((mantissa << 3) + 0x84) << segment) - 0x84
        return np.where(code & 0x80, -size, size)
    size = np.where(segment, ((mantissa << 4) + 0x108) << np.maximum(segment - 1, 0), (mantissa << 4) + 8)
    return np.where(code & 0x80, size, -size)


@cache
def _filter() -> Any:
    """Float32 [taps]; its sum is 1."""
    import numpy as np

    at = np.arange(2 * DELAY + 1) - DELAY
    taps = np.sinc(at * _CUTOFF) * np.kaiser(len(at), _BETA)
    return np.pad(taps / taps.sum(), (0, FACTOR - 1)).astype(np.float32)


@cache
def _steps(law: Law) -> Any:
    """The octets in the order of their samples, and the numbers halfway between those."""
    import numpy as np

    samples = levels(law)
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    return order.astype(np.uint8), (ordered[1:] + ordered[:-1]) / 2


def _as_pcm(samples: Any) -> bytes:
    import numpy as np

    pcm: bytes = np.clip(np.rint(samples), -32768, 32767).astype("<i2").tobytes()
    return pcm


class TelephoneDecoder:
    def __init__(self, law: Law) -> None:
        import numpy as np

        self._levels = levels(law).astype(np.float32)
        self._before = np.zeros(_TAPS // FACTOR - 1, np.float32)

    def decode(self, octets: bytes) -> bytes:
        return b"".join(self._decode(octets[at : at + _BLOCK]) for at in range(0, len(octets), _BLOCK))

    def _decode(self, octets: bytes) -> bytes:
        import numpy as np

        samples = np.concatenate([self._before, self._levels[np.frombuffer(octets, np.uint8)]])
        self._before = samples[len(samples) - len(self._before) :]
        phases = [np.convolve(samples, _filter()[phase::FACTOR], "valid") for phase in range(FACTOR)]
        return _as_pcm(FACTOR * np.stack(phases, axis=1).reshape(-1))


class TelephoneEncoder:
    def __init__(self, law: Law) -> None:
        import numpy as np

        self._order, self._halfway = _steps(law)
        self._rest = np.zeros(_TAPS - 1, np.float32)  # earlier samples, and leftovers of fewer than three
        self._num_fed = 0

    def encode(self, pcm: bytes) -> bytes:
        import numpy as np

        fed = np.frombuffer(pcm, "<i2").astype(np.float32)
        self._num_fed += len(fed)
        samples = np.concatenate([self._rest, fed])
        count = (len(samples) - (_TAPS - 1)) // FACTOR
        self._rest = samples[count * FACTOR :]
        if not count:
            return b""
        out = np.zeros(count, np.float32)
        for phase in range(FACTOR):
            taps = _filter()[phase::FACTOR]
            met = samples[FACTOR - 1 - phase :: FACTOR][: count + len(taps) - 1]  # the samples under these taps
            out += np.convolve(met, taps, "valid")
        octets: bytes = self._order[np.searchsorted(self._halfway, out)].tobytes()
        return octets

    def end(self) -> bytes:
        """What the filter still holds."""
        left = DELAY + -(self._num_fed + DELAY) % FACTOR
        return self.encode(bytes(2 * left)) if self._num_fed else b""
