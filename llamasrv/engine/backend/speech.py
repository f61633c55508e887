"""Speech: a text model whose frames a projector turns into sound.

    decode     rows of many utterances in one llama_decode, each in its own lane
    generator  a hidden row becomes a frame, and the next row (backend/speech_projector.py)
    vocoder    frames become samples: the generator's context, or one of its own on another thread

The library's own loop for speech is not used: it decodes one utterance at a time, holds the token table as floats, and
its seeds depend on who else speaks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from llamasrv.domain.speech import LANE_CELLS, MAX_LANES, SAMPLE_RATE, WINDOWED, UtteranceSpec
from llamasrv.engine.backend.bound_batch import BoundBatch
from llamasrv.engine.backend.context_params import FLASH_ATTN
from llamasrv.engine.backend.cores import CORES, CoreShare
from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.library import C, reason
from llamasrv.engine.backend.media_rows import decode_rows
from llamasrv.engine.backend.placement import closed, open_context, place_context
from llamasrv.engine.backend.speech_projector import SpeechProjector
from llamasrv.engine.backend.utterance import LlamaUtterance, PocketUtterance, QwenUtterance
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.batch import Batch, MediaRows
from llamasrv.engine.base.interface import DecodeFailed, LoadFailed
from llamasrv.engine.base.machine import available_cpus
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.sound_track import SoundTrack

ROWS = 32  # rows per call: each has a row of logits, wanted or not


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
        """The projector of the options belongs to the model. Raises LoadFailed."""
        assert options.mmproj is not None
        self._model, self.vocab, self._options, self._path = model, vocab, options, path
        self._context: Any = None
        self._memory: Any = None
        self._projectors: list[SpeechProjector] = []
        self._batch = Batch(ROWS)
        self._bound = BoundBatch(self._batch)
        self.kind, self.width = speech_kind(options.mmproj), int(C.llama_model_n_embd(model))
        with opened(Path(path)) as file:
            table = None if file is None else file.table("token_embd.weight", self.width)
        if table is None:
            raise LoadFailed(f"{path}: a speech model without a token table")
        self.table = table
        self.needs_voice, self.max_rows = self.kind == "pockettts", ROWS
        self.has_own_vocoder, self.is_deterministic = self.kind in WINDOWED, options.deterministic
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
            self._open_context()
            self._open_projectors(options.mmproj)
        except BaseException:
            self.close()
            raise

    def _open_projectors(self, path: Path) -> None:
        # Beside the vocoder the generator takes half of the threads; the vocoder, for which listeners wait, takes all.
        threads = max(1, self.threads // 2) if self.has_own_vocoder else self.threads
        load = partial(SpeechProjector, path, self.kind, self.width, self._options)
        # As the context for text: what computes beside it, chats too, leaves it its share of the threads all the time.
        self.generator = load(model=self._model, compute=self._cores.compute, threads=threads)
        self._projectors.append(self.generator)
        self.variant, self.vocoder = self.generator.variant, self.generator
        if self.has_own_vocoder:
            self.vocoder = load(model=None, compute=self._join, threads=self.threads)
            self._projectors.append(self.vocoder)

    def _open_context(self) -> None:
        p = C.llama_context_default_params()
        p.n_ctx, p.n_seq_max = LANE_CELLS * self.num_lanes, self.num_lanes
        p.n_batch = p.n_ubatch = p.n_outputs_max = ROWS
        p.n_threads = p.n_threads_batch = self.threads
        p.embeddings = True
        p.kv_unified = not self.is_deterministic  # in one pool it matters to the rounding where a lane's cells lie
        p.flash_attn_type = FLASH_ATTN[self._options.flash_attention]
        self._cores.reset()
        place_context(p, self._options)
        self._context = open_context(self._model, p, f"{self._path}: cannot create a context of {p.n_ctx} rows")
        self._memory = C.llama_get_memory(self._context)

    def _join(self, call: Callable[[], int]) -> int:
        """Run a long call of the vocoder beside those of the context."""
        CORES.join(self)
        try:
            return call()
        finally:
            CORES.end(self)

    @property
    def context_handle(self) -> Any:
        return self._context

    # any thread

    def utterance(self, spec: UtteranceSpec) -> LlamaUtterance:
        """Raises InvalidRequest."""
        return (QwenUtterance if self.kind == "qwen3tts" else PocketUtterance)(self, spec)

    def encode_voice(self, samples: Floats) -> Floats:
        """The rows of a voice, float32 [rows, n_embd], from mono sound at SAMPLE_RATE. Slow. Raises InvalidRequest."""
        return self.generator.encode_voice(samples)

    # one thread

    def decode(self, parts: Sequence[tuple[int, int, Floats]]) -> list[int]:
        """Compute (lane, first position, rows) of several utterances together. Returns the place of each part's last
        row, for `hidden` and `logits`. Raises DecodeFailed."""
        for lane, position, part in parts:
            assert 0 <= lane < self.num_lanes and position + len(part) <= LANE_CELLS
        lengths, b = [len(part) for _, _, part in parts], self._batch
        ends, count = np.cumsum(lengths) - 1, sum(lengths)
        assert 0 < count <= ROWS
        b.lane[:count], b.wants_logits[:count] = np.repeat([lane for lane, _, _ in parts], lengths), 0
        b.wants_logits[ends] = 1
        places = np.concatenate([np.arange(at, at + len(part), dtype=np.int32) for _, at, part in parts])
        rows = MediaRows(np.concatenate([part for _, _, part in parts]), np.tile(places, (self.dimensions, 1)), False)
        batch, width = self._bound.native, self.width
        code = self._cores.compute(
            partial(decode_rows, self._context, batch, rows, width=width, dimensions=self.dimensions, ubatch_size=ROWS)
        )
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

    def release(self, lane: int, start: int = 0) -> None:
        """Forget the lane's rows from `start` on."""
        C.llama_memory_seq_rm(self._memory, lane, start, -1)

    def reset(self) -> None:
        self._context = closed(self._context)
        self._open_context()

    def close(self) -> None:
        self._cores.close()
        CORES.drop(self)
        self._context = closed(self._context)
        for projector in self._projectors:
            projector.close()


def try_speech(speech: LlamaSpeech) -> None:
    """Encode one second of sound as a voice, and speak two frames with it. A damaged file ends the process here."""
    clip = np.sin(np.arange(SAMPLE_RATE, dtype=np.float32) / 20)
    utterance = speech.utterance(UtteranceSpec("One.", 1, voice=speech.encode_voice(clip), most_frames=2))
    track = SoundTrack()
    while not utterance.is_done:
        rows = utterance.pending[:ROWS]
        (place,) = speech.decode([(0, utterance.position, rows)])
        utterance.mark_computed(len(rows))
        if not len(utterance.pending):
            utterance.advance(place)
        for piece in utterance.take_pieces():
            track.sound(speech.vocoder, piece)
    speech.release(0)
