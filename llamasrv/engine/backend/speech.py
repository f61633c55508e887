"""Speech through libmtmd: the calls of a speech pair, a text model whose frames a projector turns into sound.

    decode       rows of many utterances in one llama_decode, each in its own lane
    next_frame   GEN_CODE: the hidden row of a frame becomes its codes or numbers, and the next row
    sound        GEN_WAV: frames become samples; its state goes from call to call
    encode_voice a clip becomes the rows of a voice

The calls are in turn, each on all threads. A vocoder on a thread of its own needs a second context of the projector
(Pocket TTS 100M: 63 MB more), and could hide no more than the rest of a frame, 7 of 32 ms on one core. Not built, so
its gain is not measured.

Checks whatever would abort the process. The library's own loop for speech is not used: it decodes one utterance at a
time, holds the token table as floats, and its seeds depend on who else speaks.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llamasrv.concurrency import native_lock
from llamasrv.domain.speech import LANE_CELLS, MAX_LANES, SAMPLE_RATE, UtteranceSpec
from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.cores import CoreShare
from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.library import C, drop_errors, mtmd, reason
from llamasrv.engine.backend.placement import place_context
from llamasrv.engine.backend.utterance import LlamaUtterance, PocketUtterance, QwenUtterance
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.base.arrays import Floats, Int32s
from llamasrv.engine.base.interface import DecodeFailed, LoadFailed
from llamasrv.engine.base.machine import available_cpus
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.placement_rules import NO_DEVICE
from llamasrv.errors import EngineFailure, InvalidRequest, Unavailable

ROWS = 32  # of a call: each has a row of logits, wanted or not
GEN_CODE, GEN_WAV = 0, 1
KINDS = {1: "qwen3tts", 2: "pockettts"}
LEAST_CLIP, MOST_CLIP = 1.0, 30.0  # seconds of a voice; the library aborts at very short ones
CODES, FLOATS = 16, 32  # numbers of a frame


class Frame(NamedTuple):
    """`numbers`: int32 [16] codes, or float32 [32]. `row`: float32 [n_embd]."""

    numbers: Int32s | Floats
    row: Floats
    is_end: bool


def speech_kind(projector: Path | None) -> str:
    """The kind of speech a projector makes; "" if it makes none."""
    if projector is None:
        return ""
    with opened(projector) as file:
        return "" if file is None else file.text("clip.gen.audio.projector_type").removesuffix("_gen")


class LlamaSpeech:
    """The context of a speech pair. All methods belong to one thread, but `encode_voice` and `utterance` to any.

    A frame is a row of a lane: a lane has LANE_CELLS cells of its own, so they never run out.
    """

    def __init__(self, model: Any, vocab: LlamaVocabulary, options: EngineOptions, *, path: str) -> None:
        """Raises LoadFailed."""
        assert options.mmproj is not None
        self._model, self.vocab, self._options, self._path = model, vocab, options, path
        self._lib, self._projector = mtmd(), options.mmproj
        self._context: Any = None
        self._memory: Any = None
        self._mtmd: Any = None
        self._last_seed = -1  # of the generator
        self._voice_lock = native_lock()
        self.kind, self.width = speech_kind(options.mmproj), int(C.llama_model_n_embd(model))
        architecture = _architecture(model)
        if self.kind != architecture:
            raise LoadFailed(f"{options.mmproj} speaks for {self.kind} models; {path} is a {architecture} model")
        with opened(Path(path)) as file:
            self.table = None if file is None else file.table("token_embd.weight", self.width)
        if self.table is None:
            raise LoadFailed(f"{path}: a speech model without a token table")
        self.needs_voice, self.max_rows = self.kind == "pockettts", ROWS
        self.ids = vocab.controls
        self.num_tokens = vocab.size
        count = ctypes.c_int32()
        suppressed = C.llama_vocab_get_suppress_tokens(vocab.pointer, ctypes.byref(count))
        self.suppressed = np.array([suppressed[i] for i in range(count.value)], np.int64)
        self.dimensions = 4 if C.llama_model_rope_type(model) in (8, 40) else 1
        self.num_lanes = max(1, min(options.places, MAX_LANES))
        self.threads = options.threads or available_cpus()
        self._cores = CoreShare(self.threads, lambda n: C.llama_set_n_threads(self._context, n, n))
        self.languages = tuple(sorted(name[17:-2] for name in self.ids if name.startswith("<|codec_language_")))
        self.speakers = tuple(sorted(name[6:-2] for name in self.ids if name.startswith("<|spk_")))
        try:
            self._open_projector()
            self._open_context()
        except BaseException:
            self.close()
            raise

    def _open_projector(self) -> None:
        lib, options = self._lib, self._options
        params = lib.mtmd_context_params_default()
        has_gpu = options.devices != (NO_DEVICE,) and bool(rpc.local_devices())
        params.use_gpu = options.mmproj_offload and has_gpu
        params.n_threads = self.threads
        params.print_timings = params.warmup = False
        drop_errors()
        self._mtmd = lib.mtmd_init_from_file(os.fsencode(self._projector), self._model, params)
        if not self._mtmd:
            raise LoadFailed(
                f"{self._projector}: cannot be loaded as the projector of this speech model ({reason()}); it needs a "
                "voice encoder, a generator and a vocoder"
            )
        info = lib.mtmd_gen_audio_get_info(self._mtmd)
        if KINDS.get(info.type) != self.kind:
            raise LoadFailed(f"{self._projector}: it has no generator of speech")
        self.variant = (info.model_variant or b"").decode("utf-8", "replace")
        # The library's graph for GEN_WAV is right only after a first GEN_CODE (Pocket aborts otherwise).
        hidden = np.zeros(self.width, np.float32)
        self._process(GEN_CODE, embd=hidden, seed=1, **({"code0": 0} if self.kind == "qwen3tts" else {}))

    def _open_context(self) -> None:
        p = C.llama_context_default_params()
        p.n_ctx, p.n_seq_max = LANE_CELLS * self.num_lanes, self.num_lanes
        p.n_batch = p.n_ubatch = p.n_outputs_max = ROWS
        p.n_threads = p.n_threads_batch = self.threads
        p.embeddings = p.kv_unified = p.no_perf = True
        self._cores.reset()
        place_context(p, self._options)
        drop_errors()
        self._context = C.llama_init_from_model(self._model, p)
        if not self._context:
            raise LoadFailed(f"{self._path}: cannot create a context of {p.n_ctx} rows ({reason()})")
        self._memory = C.llama_get_memory(self._context)

    @property
    def context_handle(self) -> Any:
        return self._context

    # any thread

    def utterance(self, spec: UtteranceSpec) -> LlamaUtterance:
        """Raises InvalidRequest."""
        return (QwenUtterance if self.kind == "qwen3tts" else PocketUtterance)(self, spec)

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
            if not self._mtmd:
                raise Unavailable("The model is being unloaded.")
            bitmap = lib.mtmd_bitmap_init_from_audio(len(samples), _pointer(samples, ctypes.c_float))
            part = lib.mtmd_input_part(None, bitmap)
            parts = (ctypes.POINTER(lib.mtmd_input_part) * 1)(ctypes.pointer(part))
            chunks = lib.mtmd_input_chunks_init()
            try:
                if lib.mtmd_tokenize_from_parts(self._mtmd, chunks, parts, 1, False):
                    raise InvalidRequest("The voice's clip cannot be read.", param="voice")
                for i in range(lib.mtmd_input_chunks_size(chunks)):
                    chunk = lib.mtmd_input_chunks_get(chunks, i)
                    if lib.mtmd_input_chunk_get_type(chunk) != 2:
                        continue
                    if lib.mtmd_encode_chunk(self._mtmd, chunk):
                        raise EngineFailure("The voice's clip cannot be encoded.")
                    count = lib.mtmd_input_chunk_get_n_tokens(chunk)
                    rows = np.ctypeslib.as_array(lib.mtmd_get_output_embd(self._mtmd), (count, self.width))
                    voice: Floats = np.array(rows, np.float32)
                    if not np.isfinite(voice).all():
                        raise EngineFailure("The voice's rows contain NaN or Inf.")
                    return voice
                raise EngineFailure("The voice's clip has no sound.")
            finally:
                lib.mtmd_bitmap_free(bitmap)
                lib.mtmd_input_chunks_free(chunks)

    # one thread

    def decode(self, parts: Sequence[tuple[int, int, Floats]]) -> list[int]:
        """Compute (lane, first position, rows) of several utterances together. Returns the place of each part's last
        row, for `hidden` and `logits`. Raises DecodeFailed."""
        rows = np.ascontiguousarray(np.concatenate([part for _, _, part in parts]), np.float32)
        count, lengths = len(rows), [len(part) for _, _, part in parts]
        assert 0 < count <= ROWS and rows.shape[1] == self.width
        for lane, position, part in parts:
            assert 0 <= lane < self.num_lanes and position + len(part) <= LANE_CELLS
        lanes = np.repeat(np.array([lane for lane, _, _ in parts], np.int32), lengths)
        places = np.concatenate([np.arange(at, at + len(part), dtype=np.int32) for _, at, part in parts])
        positions = np.ascontiguousarray(np.tile(places, (self.dimensions, 1)))
        ends = np.cumsum(lengths) - 1
        ones, wanted = np.ones(count, np.int32), np.zeros(count, np.int8)
        wanted[ends] = 1
        pointers = (lanes.ctypes.data + 4 * np.arange(count)).astype(np.uint64)
        batch: Any = C.llama_batch()
        batch.n_tokens = count
        batch.embd, batch.pos = _pointer(rows, ctypes.c_float), _pointer(positions, C.llama_pos)
        batch.n_seq_id, batch.logits = _pointer(ones, ctypes.c_int32), _pointer(wanted, ctypes.c_int8)
        batch.seq_id = ctypes.cast(pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(C.llama_seq_id)))
        code = self._cores.compute(partial(C.llama_decode, self._context, batch))
        if code:
            raise DecodeFailed(f"llama_decode returned {code} ({reason()})", fatal=code == -3)
        return [int(end) for end in ends]

    def hidden(self, place: int) -> Floats:
        """Float32 [n_embd], a copy. Raises DecodeFailed for NaN, which would abort the process later."""
        row: Floats = np.ctypeslib.as_array(C.llama_get_embeddings_ith(self._context, place), (self.width,)).copy()
        if not np.isfinite(row).all():
            raise DecodeFailed("NaN or Inf in a hidden row")
        return row

    def logits(self, place: int) -> Floats:
        """Float32 [tokens], valid until the next `decode`."""
        view: Floats = np.ctypeslib.as_array(C.llama_get_logits_ith(self._context, place), (self.num_tokens,))
        return view

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

    def sound(self, frames: Sequence[Any], state: Any) -> tuple[Floats, Any]:
        """Float32 samples of these frames, and the state for the next ones. `state` None: silence before."""
        numbers = np.ascontiguousarray(np.concatenate(frames))
        params: dict[str, Any] = {"codes" if self.kind == "qwen3tts" else "feats": numbers}
        if state is not None:
            params["state_data"] = state
        out = self._process(GEN_WAV, seed=1, **params)
        self._last_seed = 1
        samples = _copy(out.audio, out.n_samples)
        raw = ctypes.string_at(out.state_data, out.state_size)
        return samples, np.frombuffer(raw, np.uint8)

    def release(self, lane: int, start: int = 0) -> None:
        """Forget the lane's rows from `start` on."""
        C.llama_memory_seq_rm(self._memory, lane, start, -1)

    def reset(self) -> None:
        C.llama_free(self._context)
        self._context = None
        self._open_context()

    def close(self) -> None:
        self._cores.close()
        if self._context:
            C.llama_free(self._context)
            self._context = None
        with self._voice_lock:
            if self._mtmd:
                self._lib.mtmd_free(self._mtmd)
                self._mtmd = None

    def _restart(self, seed: int, hidden: Floats) -> None:
        if self.kind == "qwen3tts":
            inputs = self._lib.mtmd_gen_inp_default(self._mtmd)
            inputs.type, inputs.code0, inputs.seed = GEN_CODE, -1, seed
            inputs.embd = _pointer(hidden, ctypes.c_float)
            self._lib.mtmd_gen_audio_process(self._mtmd, ctypes.byref(inputs), ctypes.byref(self._lib.mtmd_gen_out()))
        else:
            self._process(GEN_CODE, embd=hidden, seed=seed)

    def _process(self, what: int, **params: Any) -> Any:
        """One call of the generator. Its results are valid until the next one. Raises DecodeFailed."""
        lib = self._lib
        inputs, out = lib.mtmd_gen_inp_default(self._mtmd), lib.mtmd_gen_out()
        inputs.type = what
        for name, value in params.items():
            if not isinstance(value, np.ndarray):
                setattr(inputs, name, value)
                continue
            kind: Any = {"codes": ctypes.c_int32, "state_data": ctypes.c_char}.get(name, ctypes.c_float)
            setattr(inputs, name, _pointer(value, kind))
            size = {"codes": "n_codes", "feats": "n_feats", "state_data": "state_size"}.get(name)
            if size is not None:
                setattr(inputs, size, value.size)
        drop_errors()
        if lib.mtmd_gen_audio_process(self._mtmd, ctypes.byref(inputs), ctypes.byref(out)):
            raise DecodeFailed(f"the speech generator failed ({reason()})")
        return out


def try_speech(speech: LlamaSpeech) -> None:
    """Encode one second of sound as a voice, and speak two frames with it. A damaged file ends the process here."""
    clip = np.sin(np.arange(SAMPLE_RATE, dtype=np.float32) / 20)
    utterance = speech.utterance(UtteranceSpec("One.", 1, voice=speech.encode_voice(clip), most_frames=2))
    while not utterance.is_done:
        rows, utterance.pending = utterance.pending[:ROWS], utterance.pending[ROWS:]
        (place,) = speech.decode([(0, utterance.position, rows)])
        utterance.position += len(rows)
        if not len(utterance.pending):
            utterance.advance(place)
    speech.release(0)


def _architecture(model: Any) -> str:
    buffer = ctypes.create_string_buffer(64)
    C.llama_model_meta_val_str(model, b"general.architecture", buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _pointer(numbers: Any, kind: Any) -> Any:
    return ctypes.cast(numbers.ctypes.data, ctypes.POINTER(kind))


def _copy(pointer: Any, count: int) -> Any:
    return np.ctypeslib.as_array(pointer, (count,)).copy()
