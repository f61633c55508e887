"""Speech as audio files, piece by piece while it is made; and its pace.

    wav, pcm                  need nothing
    mp3, opus, aac, flac      PyAV, the extra `media`; as is a speed other than 1

Only FLAC comes whole, at the end: its header holds the length, and libsndfile rejects files without it.

Knows samples (16 bits, little-endian, mono) and bytes, no model and no protocol.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, Protocol

from llamasrv.domain.speech import wav_head

TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
PLAIN = ("wav", "pcm")
SLOWEST, FASTEST = 0.25, 4.0
_LONGER = 0.049  # seconds by which a file may be longer than its input
_BEHIND = 0.2  # seconds of silence appended where the speed changes
_CODECS: dict[str, tuple[str, str, dict[str, str]]] = {
    # container, codec, options of the container. A header with the length would be written last.
    "mp3": ("mp3", "libmp3lame", {"write_xing": "0", "id3v2_version": "0"}),
    "opus": ("ogg", "libopus", {"page_duration": "200000"}),
    "aac": ("adts", "aac", {}),
    "flac": ("flac", "flac", {}),
}


def has_codecs() -> bool:
    """Whether the extra is installed."""
    return find_spec("av") is not None


def as_pcm(samples: bytes) -> bytes:
    """16-bit samples from 32-bit floats in native byte order."""
    import numpy as np

    floats = np.nan_to_num(np.frombuffer(samples, np.float32), nan=0.0)
    pcm: bytes = (np.clip(floats, -1, 1) * 32767).astype("<i2").tobytes()
    return pcm


class AudioWriter(Protocol):
    """`feed` samples, then `end`; both return bytes of the file. The calls may come from different threads."""

    def feed(self, pcm: bytes) -> bytes: ...

    def end(self) -> bytes: ...


def writer(kind: str, rate: int, speed: float = 1.0) -> AudioWriter:
    """For one of TYPES. All but PLAIN at speed 1 need the extra."""
    plain = PlainWriter(rate, has_head=kind == "wav") if kind in PLAIN else CodecWriter(kind, rate)
    return plain if speed == 1 else PacedWriter(plain, rate, speed)


class PlainWriter:
    """PCM; for WAV with a header that leaves the length open."""

    def __init__(self, rate: int, *, has_head: bool) -> None:
        self._head = wav_head(rate) if has_head else b""

    def feed(self, pcm: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + pcm

    def end(self) -> bytes:
        return self.feed(b"")


class _WriteOnly:
    """A write-only stream, from which the written bytes are taken."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class CodecWriter:
    """MP3 and ADTS have whole packets and no field for the silence that the encoder puts before and after the sound. So
    they end with the last packet that keeps them to the length of the sound: at most 40 ms of its end are missing."""

    def __init__(self, kind: str, rate: int) -> None:
        import av

        container, codec, options = _CODECS[kind]
        self._out: _WriteOnly | io.BytesIO = io.BytesIO() if kind == "flac" else _WriteOnly()
        self._rate, self._time = rate, 0
        self._has_length, self._num_packets = kind in ("opus", "flac"), 0
        self._container: Any = av.open(self._out, "w", format=container, options=options)
        stream: Any = self._container.add_stream(codec, rate=rate)
        stream.codec_context.layout = "mono"
        self._stream = stream

    def feed(self, pcm: bytes) -> bytes:
        if pcm:
            frame = _frame(pcm, self._rate, self._time)
            self._time += len(pcm) // 2
            self._encode(frame)
        return b"" if isinstance(self._out, io.BytesIO) else self._out.take()

    def end(self) -> bytes:
        if self._time:
            self._encode(None)
        self._container.close()
        return self._out.getvalue() if isinstance(self._out, io.BytesIO) else self._out.take()

    def _encode(self, frame: Any) -> None:
        most = self._time + int(_LONGER * self._rate)
        for packet in self._stream.encode(frame):
            self._num_packets += 1
            if self._has_length or self._num_packets * self._stream.codec_context.frame_size <= most:
                self._container.mux(packet)


class PacedWriter:
    """Changes the speed of speech, not its pitch. The filter keeps the last moment of what it was fed (71 ms of the
    result at a quarter of the speed): so silence is fed after it, and the result is cut to length."""

    def __init__(self, inner: AudioWriter, rate: int, speed: float) -> None:
        import av.filter

        self._inner, self._rate, self._time, self._speed = inner, rate, 0, speed
        self._num_made = 0  # samples
        graph: Any = av.filter.Graph()
        self._source: Any = graph.add_abuffer(
            sample_rate=rate, format="s16", layout="mono", time_base=Fraction(1, rate)
        )
        last = self._source
        for factor in _factors(speed):
            tempo = graph.add("atempo", f"{factor:.6f}")
            last.link_to(tempo)
            last = tempo
        self._sink: Any = graph.add("abuffersink")
        last.link_to(self._sink)
        graph.configure()
        self._graph = graph

    def feed(self, pcm: bytes) -> bytes:
        if pcm:
            self._source.push(_frame(pcm, self._rate, self._time))
            self._time += len(pcm) // 2
        return self._inner.feed(self._pulled())

    def end(self) -> bytes:
        rest = b""
        if self._time:
            missing = round(self._time / self._speed) - self._num_made
            self._source.push(_frame(bytes(2 * int(_BEHIND * self._rate)), self._rate, self._time))
            self._source.push(None)
            rest = self._inner.feed(self._pulled()[: 2 * max(0, missing)])
        return rest + self._inner.end()

    def _pulled(self) -> bytes:
        import av

        pieces: list[bytes] = []
        while True:
            try:
                pieces.append(self._sink.pull().to_ndarray().tobytes())
            except (av.BlockingIOError, av.EOFError):
                pcm = b"".join(pieces)
                self._num_made += len(pcm) // 2
                return pcm


def _factors(speed: float) -> Iterator[float]:
    """Factors that the filter accepts, whose product is `speed`: none is below one half."""
    while speed < 0.5:
        yield 0.5
        speed *= 2
    yield speed


def _frame(pcm: bytes, rate: int, time: int) -> Any:
    import av
    import numpy as np

    frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, "<i2").reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = rate, time, Fraction(1, rate)
    return frame
