"""A projector through libmtmd: the tokens an image or audio clip takes, and its rows of embeddings.

Checks everything that would abort the process before the library sees an input: sizes that overflow, a single sample of
sound, a short buffer, a chunk that was only measured. The library tokenises the marks around an input; no text of a
client passes through it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from llamasrv.domain.media import Measured, MediaChunk, MediaInput, chunk_key
from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.cores import CORES
from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.library import C, drop_errors, mtmd, reason
from llamasrv.engine.base.arrays import Floats, Int32s
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.machine import available_cpus
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.placement_rules import NO_DEVICE
from llamasrv.errors import EngineFailure, InvalidRequest

MOST_PIXELS = 1 << 28
MOST_ASPECT = 200  # longer side over shorter one: thinner images would exceed the limit of rows
LEAST_SECONDS = 0.1  # min seconds of sound; shorter clips are padded with silence
MOST_SECONDS = 3600
MOST_SHAPES = 512  # max number of remembered shapes
TRIED = ((32, 32), (640, 480), (1024, 1024), (4096, 4096), (4096, 256), (256, 4096))  # pixels, to find the most rows
NODES_BETWEEN_LOOKS = 32  # nodes of the encoder's graph between two checks of `stop`
# Types whose rows depend on the preceding prompt, so that an image cannot be encoded by itself.
UNSUPPORTED = ("deepseek4v", "hunyuanvl")
_MOVES = np.array([[1], [1], [1], [0]], np.int32)  # of (time, y, x, z): whether it shifts with the preceding prompt


class MediaShape(NamedTuple):
    """The shape of a chunk, independent of its content."""

    num_tokens: int
    num_positions: int
    whole: bool
    positions: bytes | None


def params_of(lib: Any, options: EngineOptions, threads: int) -> Any:
    """The library's parameters of a projector."""
    params = lib.mtmd_context_params_default()
    has_gpu = options.devices != (NO_DEVICE,) and bool(rpc.local_devices())
    params.use_gpu = options.mmproj_offload and has_gpu
    params.n_threads = threads
    params.print_timings = params.warmup = False
    return params


@contextmanager
def chunks_of(lib: Any, context: Any, bitmap: Any) -> Iterator[list[Any] | None]:
    """The library's chunks of one input, which is freed; None if it refuses the input."""
    part = lib.mtmd_input_part(None, bitmap)
    parts = (ctypes.POINTER(lib.mtmd_input_part) * 1)(ctypes.pointer(part))
    chunks = lib.mtmd_input_chunks_init()
    try:
        code = lib.mtmd_tokenize_from_parts(context, chunks, parts, 1, False)
        lib.mtmd_bitmap_free(bitmap)  # the chunks have copies
        found = [lib.mtmd_input_chunks_get(chunks, i) for i in range(lib.mtmd_input_chunks_size(chunks))]
        yield None if code else found
    finally:
        lib.mtmd_input_chunks_free(chunks)


def rows_of(lib: Any, context: Any, chunk: Any, width: int) -> Floats | None:
    """The rows of a chunk, float32 [num_tokens, width]; None if encoding failed."""
    drop_errors()
    if lib.mtmd_encode_chunk(context, chunk):
        return None
    count = lib.mtmd_input_chunk_get_n_tokens(chunk)
    view = np.ctypeslib.as_array(lib.mtmd_get_output_embd(context), (count, width))
    return np.array(view, np.float32)  # a copy: the next call overwrites it


class LlamaProjector:
    """One context of libmtmd. `encode` is called by one thread at a time."""

    def __init__(self, model: Any, options: EngineOptions) -> None:
        """Raises LoadFailed."""
        assert options.mmproj is not None
        self._lib, self._path = mtmd(), options.mmproj
        self._context: Any = None
        self._stop: Callable[[], bool] = lambda: False
        self._break: Floats | None = None
        self._check_file(options)
        params, self._alive = self._params(options)
        drop_errors()
        self._context = self._lib.mtmd_init_from_file(os.fsencode(self._path), model, params)
        if not self._context:
            raise LoadFailed(f"{self._path}: cannot be loaded as the projector of this model ({reason()})")
        self.vision = bool(self._lib.mtmd_support_vision(self._context))
        self.audio = bool(self._lib.mtmd_support_audio(self._context))
        rate = self._lib.mtmd_get_audio_sample_rate(self._context) if self.audio else 0
        self.sample_rate: int | None = rate if rate > 0 else None
        self.audio = self.audio and self.sample_rate is not None
        self.width = int(C.llama_model_n_embd_inp(model))
        self.dimensions = 4 if self._lib.mtmd_decode_use_mrope(self._context) else 1
        stat = os.stat(self._path)
        named = options.mmproj_digest or f"{self._path} {stat.st_size} {stat.st_mtime_ns}"
        self._name = f"{named} {options.image_min_tokens} {options.image_max_tokens}"
        self._shapes: dict[tuple[str, int, int], tuple[tuple[int, ...] | MediaShape, ...]] = {}
        try:
            self.most_whole = self._try_sizes()
        except BaseException:
            self.close()
            raise

    def _check_file(self, options: EngineOptions) -> None:
        """Raises LoadFailed."""
        low, high = options.image_min_tokens, options.image_max_tokens
        if low is not None and high is not None and low > high:
            raise LoadFailed(f"--image-min-tokens {low} is more than --image-max-tokens {high}")
        with opened(self._path) as file:
            if file is None:
                raise LoadFailed(f"{self._path}: not a GGUF file")
            kinds = [file.text(f"clip.{part}projector_type") for part in ("", "vision.", "audio.")]
            speaks = file.text("clip.gen.audio.projector_type")
            self._break = file.numbers("v.token_embd.img_break")
        if speaks:
            models = speaks.removesuffix("_gen")
            raise LoadFailed(f"{self._path}: it generates speech for {models} models and takes no images or audio")
        for kind in kinds:
            if kind in UNSUPPORTED:
                raise LoadFailed(f"{self._path}: projectors of type {kind!r} are not supported")

    def _params(self, options: EngineOptions) -> tuple[Any, Any]:
        """The library's parameters, and an object that must be kept alive with them."""
        params = params_of(self._lib, options, max(1, available_cpus() // 2))
        if options.image_min_tokens is not None:
            params.image_min_tokens = options.image_min_tokens
        if options.image_max_tokens is not None:
            params.image_max_tokens = options.image_max_tokens
        nodes = 0

        def look(tensor: Any, ask: bool, _: Any) -> bool:
            nonlocal nodes
            if not ask:
                return not self._stop()
            nodes += 1
            return nodes % NODES_BETWEEN_LOOKS == 0

        params.cb_eval = callback = C.ggml_backend_sched_eval_callback(look)
        return params, callback

    # any thread

    def measure(self, media: MediaInput) -> Measured:
        self._check(media)
        is_image = media.kind == "image"
        size = (media.kind, media.width, media.height) if is_image else (media.kind, self._samples(media), 0)
        shapes = self._shapes.get(size)
        if shapes is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            shapes = self._shapes[size] = self._shapes_of(media)
        parts: list[tuple[int, ...] | MediaChunk] = []
        number = 0
        for shape in shapes:
            if isinstance(shape, MediaShape):
                parts.append(MediaChunk(number, chunk_key(media, self._name, number), *shape))
                number += 1
            else:
                parts.append(shape)
        return Measured(media, tuple(parts))

    # encoder's thread

    def encode(self, media: MediaInput, chunks: Sequence[MediaChunk], stop: Callable[[], bool]) -> list[Floats]:
        self._check(media)
        assert media.data is not None, "nothing to encode"
        wanted = 3 * media.width * media.height if media.kind == "image" else 4 * media.num_samples
        assert len(media.data) == wanted, f"{len(media.data)} bytes in place of {wanted}"
        self._stop = stop
        CORES.join(self)
        rows: list[Floats] = []
        try:
            with self._tokenized(media, media.data) as found:
                real = [p for p in found if self._lib.mtmd_input_chunk_get_type(p) != 0]
                for chunk in chunks:
                    one = None if stop() else self._encode(real[chunk.number], chunk)
                    if one is None or stop():  # an interrupted call returns garbage
                        break
                    rows.append(self._finite(one))
            return rows
        finally:
            CORES.end(self)
            self._stop = lambda: False

    def close(self) -> None:
        CORES.drop(self)
        context, self._context = self._context, None
        if context:
            self._lib.mtmd_free(context)

    def _encode(self, pointer: Any, chunk: MediaChunk) -> Floats:
        lib = self._lib
        if lib.mtmd_input_chunk_get_n_tokens(pointer) != chunk.num_tokens:
            raise EngineFailure("An image or audio clip has a different number of tokens than was counted.")
        rows = rows_of(lib, self._context, pointer, self.width)
        if rows is None:
            raise EngineFailure(f"Encoding the image or audio failed ({reason()}).")
        return rows

    def _finite(self, rows: Floats) -> Floats:
        wrong = ~np.isfinite(rows).all(axis=1)
        if wrong.any():
            # The library adds uninitialised memory times 0 to line-break rows, which may give NaN.
            if self._break is None or len(self._break) != self.width:
                raise EngineFailure("NaN or Inf in the embeddings of an image or audio.")
            rows[wrong] = self._break
        return rows

    def _check(self, media: MediaInput) -> None:
        if self._context is None:
            raise EngineFailure("The model has been unloaded.")
        if media.kind == "image":
            if not self.vision:
                raise InvalidRequest("This model takes no images; its projector is made for audio.")
            small, large = sorted((media.width, media.height))
            if small < 1 or small * large > MOST_PIXELS or large > MOST_ASPECT * small:
                raise InvalidRequest(
                    f"An image of {media.width} x {media.height} pixels is too large or too narrow: at most "
                    f"{MOST_PIXELS} pixels and an aspect ratio of {MOST_ASPECT}:1 are allowed."
                )
        else:
            if not self.audio or self.sample_rate is None:
                raise InvalidRequest("This model takes no audio; its projector is made for images.")
            if not 0 < media.num_samples <= MOST_SECONDS * self.sample_rate:
                raise InvalidRequest(f"Audio must be longer than 0 seconds and at most {MOST_SECONDS} seconds.")

    def _samples(self, media: MediaInput) -> int:
        return max(media.num_samples, int(LEAST_SECONDS * (self.sample_rate or 0)))

    def _shapes_of(self, media: MediaInput) -> tuple[tuple[int, ...] | MediaShape, ...]:
        lib = self._lib
        shapes: list[tuple[int, ...] | MediaShape] = []
        with self._tokenized(media, None) as pointers:
            for pointer in pointers:
                if lib.mtmd_input_chunk_get_type(pointer) == 0:
                    count = ctypes.c_size_t()
                    tokens = lib.mtmd_input_chunk_get_tokens_text(pointer, ctypes.byref(count))
                    shapes.append(tuple(tokens[: count.value]))
                    continue
                places = self._places(pointer, 0)
                later = self._places(pointer, 1000)
                if places is not None and later is not None and not np.array_equal(later, places + _MOVES * 1000):
                    raise InvalidRequest(
                        "The positions of this image depend on the text before it, which is not supported."
                    )
                shapes.append(
                    MediaShape(
                        lib.mtmd_input_chunk_get_n_tokens(pointer),
                        lib.mtmd_input_chunk_get_n_pos(pointer),
                        bool(lib.mtmd_decode_use_non_causal(self._context, pointer)),
                        places.tobytes() if places is not None else None,
                    )
                )
        return tuple(shapes)

    def _places(self, pointer: Any, start: int) -> Int32s | None:
        """Int32 [4, num_tokens]: time, y, x, z of each row; None if the rows' positions are consecutive."""
        lib = self._lib
        if self.dimensions == 1 or lib.mtmd_input_chunk_get_type(pointer) == 2:
            return None
        count = lib.mtmd_input_chunk_get_n_tokens(pointer)
        out = (lib.mtmd_decoder_pos * count)()
        lib.mtmd_helper_image_get_decoder_pos(lib.mtmd_input_chunk_get_tokens_image(pointer), start, out)
        places: Int32s = np.frombuffer(out, np.int32).reshape(count, 4)[:, [0, 2, 1, 3]].T.copy()
        return places

    @contextmanager
    def _tokenized(self, media: MediaInput, data: bytes | None) -> Iterator[list[Any]]:
        """The library's chunks of an input; without `data` they have only sizes."""
        lib = self._lib
        if media.kind == "image":
            kind = ctypes.POINTER(ctypes.c_uint8)
            pixels = None if data is None else ctypes.cast(ctypes.c_char_p(data), kind)
            bitmap = lib.mtmd_bitmap_init(media.width, media.height, pixels)
        else:
            samples = np.zeros(self._samples(media), np.float32)
            if data is not None:
                samples[: media.num_samples] = np.frombuffer(data, np.float32)
            bitmap = lib.mtmd_bitmap_init_from_audio(
                len(samples), samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            )
        with chunks_of(lib, self._context, bitmap) as chunks:
            if chunks is None:
                raise InvalidRequest(f"The model's projector cannot use this {media.kind}.")
            yield chunks

    def _try_sizes(self) -> int:
        """Max rows of a chunk that must be computed in one step; 0 if there is none. Raises LoadFailed if model and
        projector do not match."""
        inputs = [MediaInput("image", b"", None, width, height) for width, height in TRIED] if self.vision else []
        if self.sample_rate is not None:
            inputs.append(MediaInput("audio", b"", None, num_samples=self.sample_rate))
        most = 0
        for media in inputs:
            try:
                parts = self.measure(media).parts
            except InvalidRequest:
                continue  # this type does not take the size
            for part in parts:
                if isinstance(part, MediaChunk):
                    most = max(most, part.num_tokens if part.whole else 0)
                elif min(part, default=0) < 0:
                    raise LoadFailed(f"{self._path}: this model's vocabulary lacks the tokens around its {media.kind}s")
        return most


def try_projector(projector: LlamaProjector) -> None:
    """Encode one small image and one second of sound. A damaged file ends the process here."""
    inputs = []
    if projector.vision:
        inputs.append(MediaInput("image", b"", bytes(range(192)) * 64, 64, 64))
    if projector.sample_rate is not None:
        count = projector.sample_rate
        inputs.append(MediaInput("audio", b"", np.zeros(count, np.float32).tobytes(), num_samples=count))
    for media in inputs:
        chunks = [part for part in projector.measure(media).parts if isinstance(part, MediaChunk)]
        projector.encode(media, chunks, lambda: False)
