"""The projector of a speech pair, through libmtmd: voice encoder, generator and vocoder.

    next_frame   GEN_CODE: the hidden row of a frame becomes its codes or numbers, and the next row
    sound        GEN_WAV: frames become samples; its state goes from call to call
    encode_voice a clip becomes the rows of a voice

One context makes one such call at a time, but may encode a voice beside it. Loaded without the text model it is a
vocoder. Checks whatever would abort the process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llamasrv.concurrency import native_lock
from llamasrv.domain.speech import SAMPLE_RATE
from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.library import drop_errors, mtmd, reason
from llamasrv.engine.backend.projector import chunks_of, params_of, rows_of
from llamasrv.engine.base.arrays import Floats, Int32s
from llamasrv.engine.base.interface import DecodeFailed, LoadFailed
from llamasrv.engine.base.options import EngineOptions
from llamasrv.errors import EngineFailure, InvalidRequest, Unavailable

GEN_CODE, GEN_WAV = 0, 1
KINDS = {1: "qwen3tts", 2: "pockettts"}
LEAST_CLIP, MOST_CLIP = 1.0, 30.0  # seconds of a voice; the library aborts at very short ones
CODES, FLOATS = 16, 32  # numbers of a frame
KV_HEADS = "clip.gen.audio.attention.head_count_kv"  # the library aborts without it, and returns NULL without others


class Frame(NamedTuple):
    """`numbers`: int32 [16] codes, or float32 [32]. `row`: float32 [n_embd]."""

    numbers: Int32s | Floats
    row: Floats
    is_end: bool


class SpeechProjector:
    def __init__(
        self,
        path: Path,
        kind: str,
        width: int,
        options: EngineOptions,
        *,
        model: Any,
        threads: int,
        compute: Callable[[Callable[[], int]], int],
    ) -> None:
        """`model`: the text model's handle; None for a vocoder. `compute` runs each call, as one who computes beside
        others. Raises LoadFailed."""
        self._lib, self.kind, self.width, self._compute = mtmd(), kind, width, compute
        self._last_seed = -1  # of the generator
        self._voice_lock = native_lock()
        with opened(path) as file:
            if kind == "qwen3tts" and file is not None and not file.has_key(KV_HEADS):
                raise LoadFailed(f"{path}: not a whole projector of a speech model: it has no {KV_HEADS}")
        params = params_of(self._lib, options, threads)
        drop_errors()
        self._context: Any = self._lib.mtmd_init_from_file(os.fsencode(path), model, params)
        if not self._context:
            raise LoadFailed(
                f"{path}: cannot be loaded as the projector of this speech model ({reason()}); it needs a "
                "voice encoder, a generator and a vocoder"
            )
        try:
            info = self._lib.mtmd_gen_audio_get_info(self._context)
            if KINDS.get(info.type) != kind:
                raise LoadFailed(f"{path}: it has no generator of speech")
            self.variant = (info.model_variant or b"").decode("utf-8", "replace")
            # The library's graph for GEN_WAV is right only after a first GEN_CODE (Pocket aborts otherwise).
            hidden = np.zeros(width, np.float32)
            self._process(GEN_CODE, embd=hidden, seed=1, **({"code0": 0} if kind == "qwen3tts" else {}))
        except BaseException:
            self.close()
            raise

    # any thread

    def encode_voice(self, samples: Floats) -> Floats:
        """The rows of a voice, float32 [rows, n_embd], from mono sound at SAMPLE_RATE. Slow: a second and
        more for 30 s. Raises InvalidRequest."""
        samples = np.ascontiguousarray(samples[: int(MOST_CLIP * SAMPLE_RATE)], np.float32)
        if len(samples) < LEAST_CLIP * SAMPLE_RATE:
            raise InvalidRequest(f"A voice needs a clip of at least {LEAST_CLIP:g} s.", param="voice")
        if not np.isfinite(samples).all():
            raise InvalidRequest("The voice's clip contains NaN or infinity.", param="voice")
        lib = self._lib
        with self._voice_lock:
            if not self._context:
                raise Unavailable("The model is being unloaded.")
            bitmap = lib.mtmd_bitmap_init_from_audio(len(samples), pointer(samples, ctypes.c_float))
            with chunks_of(lib, self._context, bitmap) as chunks:
                if chunks is None:
                    raise InvalidRequest("The voice's clip cannot be read.", param="voice")
                sound = next((chunk for chunk in chunks if lib.mtmd_input_chunk_get_type(chunk) == 2), None)
                voice = None if sound is None else rows_of(lib, self._context, sound, self.width)
        if voice is None:
            raise EngineFailure("The voice's clip cannot be encoded.")
        if not np.isfinite(voice).all():
            raise EngineFailure("The voice's rows contain NaN or Inf.")
        return voice

    # one thread

    def next_frame(self, hidden: Floats, seed: int, **params: Any) -> Frame:
        if seed == self._last_seed:
            # The generator starts anew only at another seed. This call does that, and nothing else.
            self._restart(seed ^ 1, hidden)
        self._last_seed = seed
        out = self._process(GEN_CODE, embd=hidden, seed=seed, **params)
        numbers = _copy(out.codes, CODES) if self.kind == "qwen3tts" else _copy(out.feats, FLOATS)
        row = _copy(out.embd, self.width)
        if not np.isfinite(row).all():
            raise DecodeFailed("NaN or Inf in a frame of speech")
        return Frame(numbers, row, bool(out.is_eos))

    def sound(self, numbers: Any, state: Any) -> tuple[Floats, Any]:
        """Float32 samples of these frames, and the state for the next ones. `state` None: silence before."""
        params: dict[str, Any] = {"codes" if self.kind == "qwen3tts" else "feats": np.ascontiguousarray(numbers)}
        if state is not None:
            params["state_data"] = state
        out = self._process(GEN_WAV, seed=1, **params)
        self._last_seed = 1
        samples = _copy(out.audio, out.n_samples)
        raw = ctypes.string_at(out.state_data, out.state_size)
        return samples, np.frombuffer(raw, np.uint8)

    def close(self) -> None:
        with self._voice_lock:
            if self._context:
                self._lib.mtmd_free(self._context)
                self._context = None

    def _restart(self, seed: int, hidden: Floats) -> None:
        if self.kind == "qwen3tts":
            inputs = self._lib.mtmd_gen_inp_default(self._context)
            inputs.type, inputs.code0, inputs.seed = GEN_CODE, -1, seed
            inputs.embd = pointer(hidden, ctypes.c_float)
            out = self._lib.mtmd_gen_out()
            self._lib.mtmd_gen_audio_process(self._context, ctypes.byref(inputs), ctypes.byref(out))
        else:
            self._process(GEN_CODE, embd=hidden, seed=seed)

    def _process(self, what: int, **params: Any) -> Any:
        """One call. Its results are valid until the next one. Raises DecodeFailed."""
        lib = self._lib
        inputs, out = lib.mtmd_gen_inp_default(self._context), lib.mtmd_gen_out()
        inputs.type = what
        for name, value in params.items():
            if not isinstance(value, np.ndarray):
                setattr(inputs, name, value)
                continue
            kind: Any = {"codes": ctypes.c_int32, "state_data": ctypes.c_char}.get(name, ctypes.c_float)
            setattr(inputs, name, pointer(value, kind))
            size = {"codes": "n_codes", "feats": "n_feats", "state_data": "state_size"}.get(name)
            if size is not None:
                setattr(inputs, size, value.size)
        drop_errors()
        call = partial(lib.mtmd_gen_audio_process, self._context, ctypes.byref(inputs), ctypes.byref(out))
        if self._compute(call):
            raise DecodeFailed(f"the speech generator failed ({reason()})")
        return out


def pointer(numbers: Any, kind: Any) -> Any:
    return ctypes.cast(numbers.ctypes.data, ctypes.POINTER(kind))


def _copy(start: Any, count: int) -> Any:
    return np.ctypeslib.as_array(start, (count,)).copy()
