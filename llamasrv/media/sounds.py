"""Decodes audio with miniaudio: mono, 32-bit floats, at the model's sample rate. Only the child imports this."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import numpy as np

from llamasrv.media.limits import MediaLimits
from llamasrv.media.pictures import DecodeError
from llamasrv.media.sniff import CONTAINERS, SOUNDS

_FRAMES = 1 << 16  # frames per read


def samples(data: bytes, kind: str, rate: int, limits: MediaLimits) -> np.ndarray:
    """(samples,), float32, `rate` samples per second. Raises DecodeError."""
    assert kind in (*SOUNDS, *CONTAINERS)
    pieces = _native(data, rate) if kind in SOUNDS else _container(data, rate)
    most = int(limits.audio_seconds * rate)
    out, count = [], 0
    for piece in _guarded(pieces):
        out.append(piece)
        count += len(piece)
        if count > most:
            raise DecodeError(f"the audio is longer than {limits.audio_seconds:.0f} s")
    if count < 2:  # the library's audio preprocessor aborts on a single sample
        raise DecodeError("the audio is empty")
    return np.concatenate(out)


def cuts(samples: np.ndarray, rate: int, longest: float) -> list[int]:
    """Offsets that cut a long sound into windows of at most `longest` seconds, each at the quietest moment of the
    window's last fifth, to avoid cutting words."""
    out, start, most = [], 0, int(longest * rate)
    frame = max(1, rate // 50)
    while len(samples) - start > most:
        tail = samples[start + most - most // 5 : start + most]
        frames = tail[: len(tail) // frame * frame].reshape(-1, frame)
        quiet = int(np.argmin(np.square(frames).mean(axis=1)))
        start += most - most // 5 + quiet * frame + frame // 2
        out.append(start)
    return out


def _guarded(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    try:
        yield from pieces
    except DecodeError:
        raise
    except Exception:
        raise DecodeError("the audio is damaged or in an unknown format") from None


def _native(data: bytes, rate: int) -> Iterator[np.ndarray]:
    import miniaudio

    stream = miniaudio.stream_memory(
        data, output_format=miniaudio.SampleFormat.FLOAT32, nchannels=1, sample_rate=rate, frames_to_read=_FRAMES
    )
    for piece in stream:
        yield np.frombuffer(piece, np.float32).copy()


def _container(data: bytes, rate: int) -> Iterator[np.ndarray]:
    try:
        import av
    except ImportError:
        raise DecodeError("WebM and M4A need an extra package: pip install 'llamasrv[media]'") from None
    with av.open(io.BytesIO(data)) as container:
        if not container.streams.audio:
            raise DecodeError("the file contains no audio")
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        for frame in container.decode(container.streams.audio[0]):
            for ready in resampler.resample(frame):
                yield ready.to_ndarray().reshape(-1).astype(np.float32)
        for ready in resampler.resample(None):
            yield ready.to_ndarray().reshape(-1).astype(np.float32)
