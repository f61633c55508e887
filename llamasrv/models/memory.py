"""Estimates how much memory a model needs, and how large a context fits this machine.

Estimated from the header: weights, KV per cell, states of recurrent layers, work buffers. Knows nothing of llama.cpp;
reads only /proc and /sys.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamasrv.domain.speech import WINDOWED
from llamasrv.engine.base.machine import groups, lines, words
from llamasrv.engine.base.options import stretched
from llamasrv.errors import ConfigError
from llamasrv.models.details import speech_kind
from llamasrv.models.gguf import Header

# What engine/backend/context.py requests from llama.cpp in addition to the options.
SPARE_STATES = 4  # lanes for resident prefixes, if a lane needs a state or a window of its own
LEAST_OUTPUTS = 64  # min rows of logits per step
ROLLBACK_BYTES, MOST_ROLLBACK = 256 << 20, 3  # rollback states for drafts: max bytes for all lanes, max states per lane

LONGEST_EMBEDDING = 2048  # tokens, if the model allows more and the operator sets no limit
EMBEDDING_ROWS = 512
EMBEDDING_LOGITS = 64 << 20  # numbers
WORD_BYTES = 260  # per token in memory, in the library and this server; measured

LARGE_IMAGE = 896  # pixels per side, for projectors that take images of any size
SOUND_ROWS = 3000  # rows for 30 seconds
LEAST_PROJECTOR_WORK = 16 << 20
WINDOW_WORK = 1 << 30  # vocoder over a window of frames: 870 MiB measured, the generator beside it
FRAMES_WORK = 48 << 20  # vocoder over 8 frames: 35 MiB measured

REMOTE_CELLS = 16_384  # max cells if other machines hold the KV: their free memory is unknown
MOST_CELLS = 32_768  # max cells of an automatic context, unless the model is trained on more
LEAST_CELLS = 512
PAD = 256  # llama.cpp rounds contexts up to a multiple of this

# Sliding-window layers, for files that do not list them: all but every n-th; and whether the first is without.
_WINDOW_PERIODS = {
    "afmoe": (4, False), "cohere2": (4, False), "cohere2moe": (4, True), "exaone-moe": (4, False), "gemma2": (2, False),
    "gemma3": (6, False), "gemma3n": (5, False), "gpt-oss": (2, False), "laguna": (4, True), "llama4": (4, False),
    "mellum": (4, False), "muse-glimmer": (4, False), "olmo2": (4, False), "plamo3": (8, False),
    "smallthinker": (4, True),
}  # fmt: skip

# Architectures whose states the library can roll back; for others it keeps one per lane.
_ROLLS_BACK = (
    "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
    "qwen35moe", "qwen4exp",
)  # fmt: skip

# Bytes per number in KV: bytes of a block / numbers in it.
_CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
    "iq4_nl": 18 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
}


@dataclass(frozen=True)
class Need:
    """Bytes by purpose, for a context of `cells`."""

    cells: int
    context: int  # max tokens of one sequence
    weights: int
    cell: int  # KV bytes per cell
    states: int  # recurrent states, all lanes
    buffers: int
    windows: int = 0  # KV of sliding-window layers, if less than a share of the cells
    windows_save: int = 0  # what these layers would take in addition if they kept everything
    checkpoints: int = 0  # max bytes of checkpoints

    @property
    def kv(self) -> int:
        return self.cells * self.cell + self.windows

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.states + self.buffers + self.checkpoints


@dataclass(frozen=True)
class MemoryShape:
    """The options that affect memory."""

    parallel: int = 16
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: bool = True
    split: bool = False  # each lane has its own cells
    embeddings: bool = False  # a generating model also embeds
    embedding_context: int | None = None  # max tokens of one embedding; None: chosen automatically
    remote: bool = False  # other machines hold the layers that would be on a GPU
    gpu_layers: int | None = None  # None: all
    rope_freq_scale: float | None = None
    swa_full: bool = False  # sliding-window layers keep everything
    checkpoint_bytes: int = 0
    rollback: int | None = None  # rollback states per lane; None: chosen automatically


def estimate(header: Header, cells: int, shape: MemoryShape) -> Need:
    """The memory needed to serve this model with a context of `cells`."""
    train = stretched(header.number("context_length"), shape.rope_freq_scale)
    if header.only_embeds:
        context, need = _embedding(header, shape)
        return Need(cells=0, context=context, weights=header.size, cell=0, states=0, buffers=need)
    cells = _padded(cells, shape)
    own = cells // shape.parallel if shape.split else cells
    here = _share_here(header, shape)
    windowed = _windowed(header, shape)
    in_window = _window_cells(header, cells, shape)
    whole = math.ceil(_cell_bytes(header, shape, windowed) * here) if windowed else 0
    states = _state_bytes(header)
    return Need(
        cells=cells,
        context=min(own, train) if train else own,
        weights=math.ceil(header.size * here),
        cell=math.ceil(_cell_bytes(header, shape, [not slides for slides in windowed] if windowed else None) * here),
        states=math.ceil(states * _states_of_lane(header, shape) * (shape.parallel + SPARE_STATES) * here),
        windows=whole * in_window,
        windows_save=whole * (cells - in_window),
        checkpoints=shape.checkpoint_bytes if (windowed or _has_states(header)) and not shape.split else 0,
        buffers=_buffer_bytes(header, cells, shape) + (_embedding(header, shape)[1] if shape.embeddings else 0),
    )


def rollback(header: Header, shape: MemoryShape) -> int:
    """The number of rollback states per lane, for taking drafts back: as configured, or as many as take little
    memory."""
    if shape.rollback is not None:
        return shape.rollback
    each = _state_bytes(header) * (shape.parallel + SPARE_STATES)
    return min(MOST_ROLLBACK, ROLLBACK_BYTES // each) if each else MOST_ROLLBACK


def _states_of_lane(header: Header, shape: MemoryShape) -> int:
    return 1 + (rollback(header, shape) if header.architecture in _ROLLS_BACK else 0)


def _share_here(header: Header, shape: MemoryShape) -> float:
    """The share of layers that stays on this machine."""
    if not shape.remote:
        return 1.0
    layers = header.number("block_count") + 1  # counts the output as one
    return 0.0 if shape.gpu_layers is None else max(0.0, 1 - shape.gpu_layers / layers)


def _embedding(header: Header, shape: MemoryShape) -> tuple[int, int]:
    """The max tokens of one embedding, and the bytes of its context: the library reserves logits for each row, and a
    model that could generate computes them."""
    n_vocab = _n_vocab(header)
    longest = header.number("context_length") or LONGEST_EMBEDDING
    context = min(longest, shape.embedding_context or LONGEST_EMBEDDING)
    group = max(context, min(EMBEDDING_ROWS, EMBEDDING_LOGITS // max(1, n_vocab)))
    rows = group if header.is_bidirectional else min(group, EMBEDDING_ROWS)
    width = header.number("embedding_length")
    outputs = rows * (n_vocab + width) * 4
    work = rows * (4 * width + _largest(header.get("feed_forward_length"), 0)) * 4 + rows * group * 4
    if not header.is_bidirectional:
        work += group * _cell_bytes(header, shape) + rows * n_vocab * 4
    return context, outputs + work + (n_vocab * WORD_BYTES if header.only_embeds else 0)


def wanted_cells(header: Header, shape: MemoryShape) -> int:
    """The context that suits this model if memory were unlimited: several times its trained context."""
    train = stretched(header.number("context_length"), shape.rope_freq_scale) or 4096
    most = max(train, MOST_CELLS)
    return min(shape.parallel * train, most) if shape.split else min(4 * train, most)


def choose(header: Header, shape: MemoryShape, available: int) -> Need:
    """The context that suits this model, within half of the memory left by its weights. Raises ConfigError if not even
    a small one fits."""
    wanted = wanted_cells(header, shape)
    if shape.remote:
        wanted = min(wanted, REMOTE_CELLS)
    bare = estimate(header, LEAST_CELLS, shape)
    free = available - bare.weights - bare.states - bare.checkpoints
    cells = wanted
    # Buffers grow with the context, too: shrink until both fit.
    while cells > LEAST_CELLS and _grown(header, cells, shape) > free // 2:
        cells = max(LEAST_CELLS, cells // 2)
    need = estimate(header, cells, shape)
    if need.total > available:
        raise ConfigError(
            f"{header.path}: needs about {as_gib(need.total)} of memory even with a context of {need.cells} tokens, "
            f"but only {as_gib(available)} is free"
        )
    return need


def _grown(header: Header, cells: int, shape: MemoryShape) -> int:
    need = estimate(header, cells, shape)
    return need.kv + need.buffers


def _padded(cells: int, shape: MemoryShape) -> int:
    lanes = shape.parallel if shape.split else 1
    return math.ceil(cells / lanes / PAD) * PAD * lanes


def _windowed(header: Header, shape: MemoryShape) -> list[bool]:
    """Which layers have a sliding window that the library uses; [] if none."""
    if shape.swa_full or not header.number("attention.sliding_window"):
        return []
    layers = header.number("block_count")
    pattern = header.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return [bool(slides) for slides in pattern[:layers]]
    period, dense_first = _WINDOW_PERIODS.get(header.architecture, (0, False))
    period = pattern if isinstance(pattern, int) and period else period
    if period < 1:
        return []
    return [n % period != 0 if dense_first else n % period < period - 1 for n in range(layers)]


def _window_cells(header: Header, cells: int, shape: MemoryShape) -> int:
    """Cells of a sliding-window layer: one window per lane, plus a ubatch."""
    if shape.split:
        return min(cells, _padded(header.number("attention.sliding_window") + shape.ubatch_size, shape))
    lanes = shape.parallel + SPARE_STATES + 1
    wanted = header.number("attention.sliding_window") * lanes + min(shape.ubatch_size, shape.batch_size)
    return min(cells, math.ceil(wanted / PAD) * PAD)


def _cell_bytes(header: Header, shape: MemoryShape, counted: list[bool] | None = None) -> int:
    """Bytes of one cell in the counted layers."""
    width_k, width_v = _CACHE_BYTES[shape.cache_type_k], _CACHE_BYTES[shape.cache_type_v]
    rank = header.number("attention.kv_lora_rank")
    layers = header.number("block_count")
    if rank:  # latent attention keeps one compressed row for all heads
        layers = layers if counted is None else sum(counted)
        return math.ceil(layers * (rank + header.number("rope.dimension_count")) * width_k)
    heads = max(1, _largest(header.get("attention.head_count"), 1))
    head = header.number("embedding_length") // heads
    key, value = header.number("attention.key_length", head), header.number("attention.value_length", head)
    rows_of = _kv_heads(header)
    rows = sum(rows_of) if counted is None else sum(n for n, counts in zip(rows_of, counted) if counts)
    return math.ceil(rows * (key * width_k + value * width_v))


def _kv_heads(header: Header) -> list[int]:
    """KV heads per layer; 0 for layers with a state instead."""
    layers = header.number("block_count")
    heads = _each_layer(header.get("attention.head_count_kv", header.get("attention.head_count")), layers)
    every = header.number("full_attention_interval")
    if every > 1 and header.number("ssm.state_size"):
        heads = [count if n % every == every - 1 else 0 for n, count in enumerate(heads)]
    return heads


def _has_states(header: Header) -> bool:
    return any(map(header.number, ("ssm.state_size", "shortconv.l_cache", "kda.head_dim", "wkv.head_size")))


def _n_vocab(header: Header) -> int:
    return max(header.n_vocab, header.number("vocab_size"))


def _each_layer(value: Any, layers: int) -> list[int]:
    """A number per layer; the file has one for all layers, or a list."""
    if isinstance(value, list):
        return [n if isinstance(n, int) else 0 for n in value[:layers]]
    return [value if isinstance(value, int) else 0] * layers


def _largest(value: Any, default: int) -> int:
    numbers = [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, int)]
    return max(numbers, default=default)


def _state_bytes(header: Header) -> int:
    """State of one sequence in the recurrent layers (Mamba, short convolutions, delta attention), 32-bit floats."""
    layers = _kv_heads(header).count(0)
    inner, state = header.number("ssm.inner_size"), header.number("ssm.state_size")
    window = max(0, header.number("ssm.conv_kernel") - 1)
    groups = header.number("ssm.group_count")
    mamba = inner * state + window * (inner + 2 * groups * state)
    convolution = max(0, header.number("shortconv.l_cache") - 1) * header.number("embedding_length")
    heads, head = _largest(header.get("attention.head_count"), 0), header.number("kda.head_dim")
    delta = heads * head * (head + 3 * window)
    return layers * (mamba + convolution + delta) * 4


def _buffer_bytes(header: Header, cells: int, shape: MemoryShape) -> int:
    """Work buffers of one ubatch: logits, activations, attention mask; plus the output logits and the vocabulary."""
    rows = min(shape.ubatch_size, shape.batch_size)
    outputs = max(LEAST_OUTPUTS, 2 * shape.parallel)
    width = 4 * header.number("embedding_length") + _largest(header.get("feed_forward_length"), 0)
    n_vocab = _n_vocab(header)
    logits = outputs * n_vocab * 4
    # Without flash attention a layer's scores are materialised; they share memory with the logits.
    scores = 0 if shape.flash_attn else cells * rows * 4 * _largest(header.get("attention.head_count"), 1)
    mask = cells * rows * (2 if shape.flash_attn else 4)
    return max(logits, scores) + rows * width * 4 + mask + logits + n_vocab * WORD_BYTES


def projector_bytes(header: Header) -> int:
    """A projector's memory: its file, and work buffers for its largest input. For 3,136 patches of 768 numbers this
    gives 77 MiB of buffers; measured were 83 MiB."""
    if kind := speech_kind(header):
        if kind not in WINDOWED:
            return header.size + FRAMES_WORK
        # The vocoder's context has all weights once more.
        return 2 * header.size + min(WINDOW_WORK, 2 * header.size)
    work = LEAST_PROJECTOR_WORK
    for part in ("clip.vision", "clip.audio"):
        size, patch, width, inner = (
            number if isinstance(number := header.metadata.get(f"{part}.{key}"), int) else 0
            for key in ("image_size", "patch_size", "embedding_length", "feed_forward_length")
        )
        patches = (max(size, LARGE_IMAGE) // max(1, patch)) ** 2 if patch else SOUND_ROWS
        work = max(work, patches * (4 * width + inner) * 4)
    return header.size + work


# The machine


def need_of_file(size: int) -> int:
    """Memory for a model file of this size, in bytes, by a rule of thumb: a quarter more than the file, and 1 GiB for
    context and buffers. What it takes in fact is known when its header is there: then the server fits the context."""
    return size * 5 // 4 + (1 << 30)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still allocate: the system's free memory, limited by its cgroup."""
    free = [_meminfo(root)]
    for group in groups(root):
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            free.append(max(0, limit - used + _cached(group)))
    return min(free)


def resident_memory(root: Path = Path("/")) -> int:
    """Bytes of physical memory held by this process, including mapped files."""
    found = words(root / "proc/self/statm")
    return int(found[1]) * int(os.sysconf("SC_PAGE_SIZE")) if len(found) > 1 else 0


def _cached(group: Path) -> int:
    """Page cache in bytes: counted as used by the cgroup, but reclaimable."""
    words = [line.split() for line in lines(group / "memory.stat")]
    kinds = ("active_file", "inactive_file")
    return sum(int(pair[1]) for pair in words if len(pair) == 2 and pair[0] in kinds and pair[1].isdigit())


def _meminfo(root: Path) -> int:
    for line in lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


def _number(path: Path) -> int | None:
    found = words(path)
    return int(found[0]) if found and found[0].isdigit() else None


def as_gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
