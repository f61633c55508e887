"""llama.cpp through its C API: the only caller of the library.

Everything that would abort the process is checked here before the call: rows past the batch, bad lanes, partial copies
across KV streams, empty candidate sets, NULL results. Knows no scheduling: it does what it is told or raises.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading
import time
from array import array
from collections import deque
from typing import Any

from llamasrv.engine.backend.cores import CORES, gnu_openmp, spare_one

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort must not start a debugger
# OpenMP's threads would spin for a millisecond after each step and keep a core from the HTTP side; this is some 30 µs,
# longer than any barrier inside a step.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
if gnu_openmp():
    # Once two contexts have computed in a process there are more OpenMP threads than cores, at work or not, and GNU's
    # would not spin at all: a step of 67 ms takes 80. This makes it a few µs. Others would then spin for ever.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")

import llama_cpp
import llama_cpp.llama_cpp as C
import numpy as np

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.embed import LlamaEmbeddings, only_embeds
from llamasrv.engine.backend.lora import load_adapters, use_adapters
from llamasrv.engine.batch import Batch
from llamasrv.engine.interface import DecodeFailed, LoadFailed, ModelInfo, OutOfCells, Progress, sampling_defaults
from llamasrv.engine.backend.padding import BLOCK, Padding

log = logging.getLogger("llamasrv.llama")

MAX_LANES = 256  # LLAMA_MAX_SEQ
CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}

# A second handle that keeps the GIL: for calls of a microsecond, where giving it up costs more than the call and
# may lose it to another thread for milliseconds.
_fast = ctypes.PyDLL(C._lib._name)
_apply = _fast.llama_sampler_apply
_apply.argtypes, _apply.restype = [ctypes.c_void_p, ctypes.c_void_p], None
_accept = _fast.llama_sampler_accept
_accept.argtypes, _accept.restype = [ctypes.c_void_p, ctypes.c_int32], None
_apply_freely = ctypes.CDLL(C._lib._name).llama_sampler_apply  # a whole vocabulary takes a millisecond
_apply_freely.argtypes, _apply_freely.restype = [ctypes.c_void_p, ctypes.c_void_p], None
_FEW = 4096
_get_logits = _fast.llama_get_logits
_get_logits.argtypes, _get_logits.restype = [ctypes.c_void_p], ctypes.c_void_p

_tokenize = _fast.llama_tokenize
_tokenize.argtypes, _tokenize.restype = C.llama_tokenize.argtypes, C.llama_tokenize.restype
_SHORT = 2048  # bytes


class _Heard(threading.local):
    """The last errors that the library logged on a thread: models are loaded side by side, each on its own."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=20)


_heard = _Heard()


@C.llama_log_callback
def _on_log(level: int, text: bytes, _: Any) -> None:
    """ggml.h: 1 debug, 2 info, 3 warning, 4 error, 5 continues the line before."""
    line = text.decode("utf-8", "replace").rstrip()
    if not line:
        return
    if level == 4:
        _heard.errors.append(line)
    log.debug("%s", line)


C.llama_log_set(_on_log, None)
C.llama_backend_init()


class LlamaVocabulary:
    """The model's tokenizer. Reads only the vocabulary, so any thread may use it."""

    def __init__(self, model: Any) -> None:
        vocab = self.pointer = C.llama_model_get_vocab(model)
        self.size: int = C.llama_vocab_n_tokens(vocab)
        self.pieces = _pieces(vocab, self.size)
        self.eog = frozenset(t for t in range(self.size) if C.llama_vocab_is_eog(vocab, t))
        self._control = frozenset(
            t for t in range(self.size) if not self.pieces[t] and C.llama_vocab_is_control(vocab, t)
        )
        self.controls = {self.text(t): t for t in sorted(self._control, reverse=True)}
        self.specials = tuple(self.controls)
        self.bos = _token(C.llama_vocab_bos(vocab))
        self.eos = _token(C.llama_vocab_eos(vocab))
        self.sep = _token(C.llama_vocab_sep(vocab))
        self.add_bos = bool(C.llama_vocab_get_add_bos(vocab))
        self.add_eos = bool(C.llama_vocab_get_add_eos(vocab))
        self.add_sep = bool(C.llama_vocab_get_add_sep(vocab))
        self.fim_pre = _token(C.llama_vocab_fim_pre(vocab))
        self.fim_suf = _token(C.llama_vocab_fim_suf(vocab))
        self.fim_mid = _token(C.llama_vocab_fim_mid(vocab))
        self.fim_rep = _token(C.llama_vocab_fim_rep(vocab))
        self.fim_sep = _token(C.llama_vocab_fim_sep(vocab))
        pointer = ctypes.cast(vocab, ctypes.c_void_p).value
        function = ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p).value
        self.native = (pointer, function) if pointer and function else None

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        data = text.encode("utf-8", "replace")
        tokenize = _tokenize if len(data) <= _SHORT else C.llama_tokenize
        room = len(data) + 8
        out = (ctypes.c_int32 * room)()
        count = tokenize(self.pointer, data, len(data), out, room, add_special, parse_special)
        if count < 0:
            room = -count
            out = (ctypes.c_int32 * room)()
            count = tokenize(self.pointer, data, len(data), out, room, add_special, parse_special)
        return out[:count]

    def is_control(self, token: int) -> bool:
        return token in self._control

    def text(self, token: int | None) -> str:
        """A token as its vocabulary entry is written, control tokens included; "" for none."""
        return C.llama_vocab_get_text(self.pointer, token).decode("utf-8", "replace") if token is not None else ""


def _token(token: int) -> int | None:
    return token if token >= 0 else None


def _pieces(vocab: Any, size: int) -> list[bytes]:
    """What each token writes; read once, so that generating never asks again."""
    to_piece = _fast.llama_token_to_piece
    to_piece.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_bool,
    ]
    to_piece.restype = ctypes.c_int32
    room = 256
    buffer = ctypes.create_string_buffer(room)
    pieces = []
    for token in range(size):
        n = to_piece(vocab, token, buffer, room, 0, False)
        if n < 0:
            room = -n
            buffer = ctypes.create_string_buffer(room)
            n = to_piece(vocab, token, buffer, room, 0, False)
        pieces.append(buffer.raw[:n] if n > 32 else ctypes.string_at(buffer, n))
    return pieces


_TOKEN_DATA = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


class LlamaChain:
    """A native sampler chain over candidates. It owns its samplers; `close` frees them all."""

    __slots__ = ("_pointer", "_data", "_array", "_address", "_ids", "_logits", "_room", "_start")

    def __init__(self, samplers: list[Any]) -> None:
        chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        for sampler in samplers:
            C.llama_sampler_chain_add(chain, sampler)
        self._pointer = ctypes.cast(chain, ctypes.c_void_p).value
        self._array: Any = C.llama_token_data_array()
        self._address = ctypes.addressof(self._array)
        self._grow(256)

    def _grow(self, room: int) -> None:
        self._room = room
        self._data = np.zeros(room, _TOKEN_DATA)
        self._ids, self._logits = self._data["id"], self._data["logit"]
        self._start = self._data.ctypes.data_as(C.llama_token_data_p)

    def choose(self, ids: np.ndarray, logits: np.ndarray) -> int:
        n = len(ids)
        assert n, "nothing to choose from would abort the process"
        if n > self._room:
            self._grow(1 << n.bit_length())
        self._ids[:n] = ids
        self._logits[:n] = logits
        a = self._array
        a.data, a.size, a.selected, a.sorted = self._start, n, -1, False
        (_apply if n <= _FEW else _apply_freely)(self._pointer, self._address)
        at = a.selected
        assert 0 <= at < a.size, "the chain selected nothing"
        return a.data[at].id  # of `data` as it is now: samplers may answer in a buffer of their own

    def left(self) -> tuple[np.ndarray, np.ndarray]:
        a = self._array
        size = a.size * _TOKEN_DATA.itemsize
        data = np.frombuffer(ctypes.string_at(a.data, size), _TOKEN_DATA)
        return data["id"].astype(np.int64), data["logit"]

    def accept(self, token: int) -> None:
        _accept(self._pointer, token)

    def close(self) -> None:
        if self._pointer:
            C.llama_sampler_free(ctypes.cast(self._pointer, C.llama_sampler_p_ctypes))
            self._pointer = None


def _chain(params: SamplingParams, vocab: LlamaVocabulary, context_train: int, *, greedy: bool) -> LlamaChain:
    """The chain in llama.cpp's order of construction (common/sampling.cpp): the listed samplers, then the choice.

    Bias is not in it: it is applied to the logits before.
    """
    p = params
    if p.mirostat:
        pick = (
            C.llama_sampler_init_mirostat(vocab.size, p.seed, p.mirostat_tau, p.mirostat_eta, 100)
            if p.mirostat == 1
            else C.llama_sampler_init_mirostat_v2(p.seed, p.mirostat_tau, p.mirostat_eta)
        )
        return LlamaChain([_penalties(p, vocab, context_train), C.llama_sampler_init_temp(p.temperature), pick])
    breakers = [b.encode("utf-8") for b in p.dry_sequence_breakers]
    make = {
        "penalties": lambda: _penalties(p, vocab, context_train),
        "dry": lambda: C.llama_sampler_init_dry(
            vocab.pointer, p.dry_multiplier, p.dry_base, p.dry_allowed_length,
            _window(p.dry_penalty_last_n, context_train),
            (ctypes.c_char_p * len(breakers))(*breakers), len(breakers),
        ),
        "top_n_sigma": lambda: C.llama_sampler_init_top_n_sigma(p.top_n_sigma),
        "top_k": lambda: C.llama_sampler_init_top_k(p.top_k),
        "typ_p": lambda: C.llama_sampler_init_typical(p.typical_p, p.min_keep),
        "top_p": lambda: C.llama_sampler_init_top_p(p.top_p, p.min_keep),
        "min_p": lambda: C.llama_sampler_init_min_p(p.min_p, p.min_keep),
        "xtc": lambda: C.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed),
        "temperature": lambda: C.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent),
    }  # fmt: skip
    wanted = {
        "penalties": p.repeat_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0,
        "dry": p.dry_multiplier > 0,
        "top_n_sigma": p.top_n_sigma > 0,
        "top_k": p.top_k > 0,
        "typ_p": p.typical_p < 1,
        "top_p": p.top_p < 1,
        "min_p": p.min_p > 0,
        "xtc": p.xtc_probability > 0,
        "temperature": True,
    }
    names = [n for n in p.samplers if n in ("penalties", "dry")] if greedy else list(p.samplers)
    samplers = [make[n]() for n in names if wanted[n]]
    return LlamaChain([*samplers, C.llama_sampler_init_greedy() if greedy else C.llama_sampler_init_dist(p.seed)])


def _window(last_n: int, context_train: int) -> int:
    return context_train if last_n < 0 else last_n


def _penalties(p: SamplingParams, vocab: LlamaVocabulary, context_train: int) -> Any:
    last_n = _window(p.repeat_last_n, context_train)
    return C.llama_sampler_init_penalties(vocab.size, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)


class LlamaBackend:
    """One model, one context. All but `info` and `vocab` belong to the engine thread."""

    front_end_load = 0.0

    def __init__(self, path: str, options: Any, progress: Progress) -> None:
        """`options`: engine.options.EngineOptions. Raises LoadFailed."""
        self._options = options
        self._context: Any = None
        self.embeddings: LlamaEmbeddings | None = None
        self._model = _load(path, options, progress)
        try:
            self._open(path, options)
        except BaseException:
            self.close()  # the weights would stay in memory
            raise

    def _open(self, path: str, options: Any) -> None:
        self.vocab = LlamaVocabulary(self._model)
        if not self.vocab.size:
            raise LoadFailed(f"{path}: the model has no vocabulary")
        self.info = _info(path, self._model, self.vocab)
        self.adapters = options.adapters
        self._adapters = load_adapters(self._model, options.adapters, _reason)
        model = self._model
        self._n_swa: int = C.llama_model_n_swa(model)
        stateful = bool(C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))
        self.split = bool(options.deterministic)
        self.state_facts = {
            "library": llama_cpp.__version__, "keys": options.cache_type_k, "values": options.cache_type_v,
            "flash_attn": options.flash_attn, "gpu_layers": options.gpu_layers,
        }  # fmt: skip
        self.can_cut = not stateful
        self.can_share = not stateful and not self.split
        self.can_cut_saved = self.can_cut and not self._n_swa  # saving leaves out what a sliding window has passed
        # Room for resident prefixes beside the running sequences; a recurrent lane costs a whole state.
        spare = 4 if stateful else 0 if self.split else max(16, options.parallel)
        # One more lane for rows that only fill a batch up; see `_pad`.
        self._spare_lane = 0 if stateful or self.split else 1
        self._lanes_wanted = min(MAX_LANES, options.parallel + spare + self._spare_lane)
        self.row_multiple = BLOCK
        self._padding = Padding()
        self.timings: list[tuple[int, int, float]] = []
        self.batch = Batch(max(options.batch_size, self._lanes_wanted))
        self.generates = not only_embeds(model, self.info.metadata)
        if options.embeddings or not self.generates:
            self.embeddings = LlamaEmbeddings(
                model, options, self.info.metadata, path=path, vocab_size=self.vocab.size,
                context_train=self.info.context_train, threads=options.threads_batch or _num_cores(), reason=_reason,
            )  # fmt: skip
        if not self.generates and self.embeddings is not None:
            # No context to generate with; the figures say that there is room for nothing.
            self.context, self.num_lanes, self.num_cells = self.embeddings.context, 1, 1
            self.ubatch_size, self.idle_cells, self.max_outputs = 1, 0, 1
            return
        self._open_context()
        self._stateful_only = bool(C.llama_model_is_recurrent(model))
        self.num_lanes = C.llama_n_seq_max(self._context) - self._spare_lane
        per_lane: int = C.llama_n_ctx_seq(self._context)
        train = self.info.context_train or per_lane
        self.context = min(per_lane - BLOCK, train) if self._spare_lane else min(per_lane, train)
        self.context = options.longest_sequence(self.context)
        # A recurrent state does not grow, split lanes have their own cells: there the pool is never the limit.
        own_cells = self.split or self._stateful_only
        self.num_cells = self.num_lanes * self.context if own_cells else C.llama_n_ctx(self._context) - BLOCK
        # On a CPU attention passes over every cell in use: a thousand idle ones cost a decode 2 % (0.5B) to 20 %
        # (tiny). GPUs skip masked tiles.
        on_gpu = self._on_gpu = options.gpu_layers != 0 and bool(options.rpc or rpc.local_devices())
        self.idle_cells = options.idle_cells or (self.num_cells if on_gpu else 0)
        self.ubatch_size = C.llama_n_ubatch(self._context)
        self._llama_batch = self._bind_batch()

    def _open_context(self) -> None:
        o = self._options
        p = C.llama_context_default_params()
        cells = o.context_cells or min(max(self.info.context_train, 4096), 32768)
        p.n_ctx = cells * self._lanes_wanted if self.split else cells
        p.n_batch = self.batch.capacity
        p.n_ubatch = min(o.ubatch_size, self.batch.capacity)
        p.n_seq_max = self._lanes_wanted
        self.max_outputs = p.n_outputs_max = max(64, self._lanes_wanted)
        p.n_threads = o.threads or _num_cores()
        p.n_threads_batch = o.threads_batch or p.n_threads
        p.kv_unified = not self.split
        p.flash_attn_type = FLASH_ATTN[o.flash_attn]
        p.type_k, p.type_v = CACHE_TYPES[o.cache_type_k], CACHE_TYPES[o.cache_type_v]
        p.no_perf = True
        _heard.errors.clear()
        self._cores = _num_cores()
        self._threads = self._threads_set = (p.n_threads, p.n_threads_batch)
        context = C.llama_init_from_model(self._model, p)
        if not context:
            raise LoadFailed(f"{self.info.path}: no context of {p.n_ctx} tokens can be made ({_reason()})")
        self._context = context
        self._used: Adapters = ()
        self._memory = C.llama_get_memory(context)
        self._logits_at: tuple[int, Any] = (0, None)

    def _bind_batch(self) -> Any:
        """A llama_batch that lies on the arrays of `self.batch`."""
        b = self.batch
        self._one_lane = np.ones(b.capacity, np.int32)
        self._lane_pointers = (b.lane.ctypes.data + 4 * np.arange(b.capacity)).astype(np.uint64)

        def at(a: np.ndarray, kind: Any) -> Any:
            return ctypes.cast(a.ctypes.data, ctypes.POINTER(kind))

        batch: Any = C.llama_batch()
        batch.token, batch.pos = at(b.token, C.llama_token), at(b.position, C.llama_pos)
        batch.n_seq_id = at(self._one_lane, ctypes.c_int32)
        batch.seq_id = ctypes.cast(self._lane_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(C.llama_seq_id)))
        batch.logits = at(b.wants_logits, ctypes.c_int8)
        return batch

    def use(self, adapters: Adapters) -> None:
        if adapters != self._used:  # a change costs a new graph
            use_adapters(self._context, self._adapters, adapters)
            self._used = adapters

    def decode(self) -> None:
        batch = self.batch
        n = batch.num_rows
        assert 0 < n <= batch.capacity and batch.num_outputs <= self.max_outputs
        assert batch.lane[:n].min() >= 0 and batch.lane[:n].max() < self.num_lanes
        padded = self._pad(n) if self._spare_lane and self._padding.choose(n, batch.num_outputs) else 0
        self._llama_batch.n_tokens = n + padded
        self._share_threads()
        start = time.perf_counter()
        code = C.llama_decode(self._context, self._llama_batch)
        CORES.end(self)
        if padded:
            C.llama_memory_seq_rm(self._memory, self.num_lanes, -1, -1)
        self._padding.learn(n, batch.num_outputs, padded > 0, time.perf_counter() - start)
        if code == 0:
            if self._on_gpu:
                C.llama_synchronize(self._context)  # it answers later: wait here, where the GIL is free
        elif code == 1:
            raise OutOfCells
        else:
            raise DecodeFailed(f"llama_decode returned {code} ({_reason()})", fatal=code == -3)

    def _share_threads(self) -> None:
        sharing = CORES.begin(self)
        load = self.front_end_load
        one, many = (spare_one(max(1, threads // sharing), self._cores, load) for threads in self._threads)
        if (one, many) != self._threads_set:
            self._threads_set = one, many
            C.llama_set_n_threads(self._context, one, many)

    def _pad(self, n: int) -> int:
        """Rows on the spare lane that fill the batch up to whole blocks; their number."""
        b = self.batch
        outputs = -b.num_outputs % BLOCK  # the output layer has its own blocks: of the rows with logits
        end = n + outputs + -(n + outputs) % BLOCK
        if end > b.capacity or b.num_outputs + outputs > self.max_outputs:
            return 0
        b.token[n:end], b.position[n:end], b.lane[n:end] = 0, range(end - n), self.num_lanes
        b.wants_logits[n : n + outputs], b.wants_logits[n + outputs : end] = 1, 0
        return end - n

    def logits(self, num_rows: int) -> np.ndarray:
        address = _get_logits(self._context)
        assert address, "logits of a batch without outputs"
        if self._logits_at[0] != address:
            size = self.max_outputs * self.vocab.size
            view = np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))
            self._logits_at = address, view.reshape(self.max_outputs, self.vocab.size)
        return self._logits_at[1][:num_rows]

    def usable(self, lane: int, length: int) -> bool:
        # With a sliding window, what lies before it may be gone: then only going on at the very end is right.
        return not self._n_swa or C.llama_memory_seq_pos_min(self._memory, lane) == 0 or length == self.length(lane)

    def copy(self, source: int, target: int, length: int) -> None:
        assert self.can_share and source != target and max(source, target) < self.num_lanes
        C.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def cut(self, lane: int, length: int) -> bool:
        return self.can_cut and bool(C.llama_memory_seq_rm(self._memory, lane, length, -1))

    def clear(self, lane: int) -> None:
        assert 0 <= lane < self.num_lanes
        C.llama_memory_seq_rm(self._memory, lane, -1, -1)

    def length(self, lane: int) -> int:
        return C.llama_memory_seq_pos_max(self._memory, lane) + 1

    def saved_size(self, lane: int) -> int:
        return int(C.llama_state_seq_get_size_ext(self._context, lane, 0))

    def save(self, lane: int) -> np.ndarray:
        size = self.saved_size(lane)
        data = np.empty(size, np.uint8)
        written = C.llama_state_seq_get_data_ext(self._context, _bytes_at(data), size, lane, 0)
        return data[:written]

    def restore(self, lane: int, saved: np.ndarray) -> bool:
        return C.llama_state_seq_set_data_ext(self._context, _bytes_at(saved), len(saved), lane, 0) == len(saved)

    def chain(self, params: SamplingParams, *, greedy: bool) -> LlamaChain:
        return _chain(params, self.vocab, self.info.context_train or self.context, greedy=greedy)

    def warm_up(self) -> None:
        """Touch the weights once, so that the first request does not pay for it; note what steps cost."""
        self.timings = []
        if self.embeddings is not None:
            self.embeddings.embed([array("i", [self.vocab.bos or 0] * min(8, self.embeddings.context))])
        if not self.generates:
            return
        whole = 2 * BLOCK
        for rows in (1, 1, *(min(n, self.num_lanes) for n in (whole, whole - 1, whole))):
            start = time.perf_counter()
            self._decode_row([self.vocab.bos or 0] * rows, position=0)
            self.timings.append((0, rows, time.perf_counter() - start))
            for lane in range(rows):
                self.clear(lane)
        del self.timings[0]  # it paid for reading the weights
        if self.num_lanes >= whole:
            (_, _, padded), (_, _, plain), (_, _, again) = self.timings[-3:]
            self._padding.begin(plain, min(padded, again))
        b, n = self.batch, min(32, self.batch.capacity)
        b.token[:n], b.position[:n], b.lane[:n], b.wants_logits[:n] = self.vocab.bos or 0, range(n), 0, 0
        b.num_rows, b.num_outputs = n, 0
        start = time.perf_counter()
        self.decode()
        self.timings.append((n, 0, time.perf_counter() - start))
        self.clear(0)

    def measure_decode(self, prompts: list[int], num_tokens: int) -> float:
        """Tokens/s of decodes of one token for each of so many lanes, decode after decode and nothing else.

        `prompts` are the lengths that the lanes begin with: attention passes over what is there.
        """
        n, b = len(prompts), self.batch
        for lane, length in enumerate(prompts):
            b.token[:length], b.position[:length], b.lane[:length] = 17 % self.vocab.size, range(length), lane
            b.wants_logits[:length] = 0
            b.num_rows, b.num_outputs = length, 0
            self.decode()
        positions = np.array(prompts, np.int32)
        tokens = [17 % self.vocab.size] * n
        start = 0.0
        for step in range(num_tokens):
            if step == 1:
                start = time.perf_counter()
            self._decode_row(tokens, positions + step)
        seconds = time.perf_counter() - start
        for lane in range(n):
            self.clear(lane)
        return n * (num_tokens - 1) / seconds

    def _decode_row(self, tokens: list[int], position: int | np.ndarray) -> None:
        """One token for each of the first lanes."""
        n = len(tokens)
        b = self.batch
        b.token[:n], b.position[:n], b.lane[:n], b.wants_logits[:n] = tokens, position, range(n), 1
        b.num_rows = b.num_outputs = n
        self.decode()

    def reset(self) -> None:
        C.llama_free(self._context)
        self._context = None
        self._open_context()

    def close(self) -> None:
        if self.embeddings is not None:
            self.embeddings.close()
            self.embeddings = None
        CORES.leave(self)
        if self._context:
            C.llama_free(self._context)
            self._context = None
        if self._model:
            C.llama_model_free(self._model)
            self._model = None


def _bytes_at(data: np.ndarray) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reason() -> str:
    """What the library said last on this thread, or why it could not load, if it said so; without function names."""
    errors = _heard.errors
    if not errors:
        return "the library gave no reason"
    cause = next((line for line in errors if "error loading model" in line), errors[-1])
    return re.sub(r"^\w+: (error loading model: )?", "", cause)


def _load(path: str, options: Any, progress: Progress) -> Any:
    params = C.llama_model_default_params()
    params.n_gpu_layers = -1 if options.gpu_layers is None else options.gpu_layers
    if options.rpc:
        devices = rpc.devices(options.rpc, path)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.progress_callback = callback = C.llama_progress_callback(lambda share, _: progress(share))
    _heard.errors.clear()
    model = C.llama_model_load_from_file(os.fsencode(path), params)
    del callback
    if not model:
        raise LoadFailed(f"{path}: cannot be loaded ({_reason()})")
    return model


def _info(path: str, model: Any, vocab: LlamaVocabulary) -> ModelInfo:
    metadata = _metadata(model)
    templates = {}
    for name in ("tool_use", "rerank"):
        if template := C.llama_model_chat_template(model, name.encode()):
            templates[name] = template.decode("utf-8", "replace")
    template = C.llama_model_chat_template(model, None)
    description = ctypes.create_string_buffer(256)
    C.llama_model_desc(model, description, 256)
    # Sizes that llama.cpp has no name for it writes as a question mark.
    text = description.value.decode("utf-8", "replace").replace("?B", f"{C.llama_model_n_params(model) / 1e6:.3g}M")
    return ModelInfo(
        name=metadata.get("general.name") or os.path.splitext(os.path.basename(path))[0],
        path=path,
        description=text,
        architecture=metadata.get("general.architecture", ""),
        num_params=C.llama_model_n_params(model),
        size_bytes=C.llama_model_size(model),
        context_train=C.llama_model_n_ctx_train(model),
        n_embd=C.llama_model_n_embd(model),
        n_layer=C.llama_model_n_layer(model),
        n_vocab=vocab.size,
        vocab_type=C.llama_vocab_type(vocab.pointer),
        file_type=text.rpartition(" ")[2],
        chat_template=template.decode("utf-8", "replace") if template else None,
        templates=templates,
        bos_token=vocab.text(vocab.bos),
        eos_token=vocab.text(vocab.eos),
        sampling_defaults=sampling_defaults(metadata),
        metadata=metadata,
    )


def _metadata(model: Any) -> dict[str, str]:
    out = {}
    buffer = ctypes.create_string_buffer(1 << 16)
    for i in range(C.llama_model_meta_count(model)):
        C.llama_model_meta_key_by_index(model, i, buffer, 512)
        key = buffer.value.decode("utf-8", "replace")
        if C.llama_model_meta_val_str_by_index(model, i, buffer, len(buffer)) >= 0 and key != "tokenizer.chat_template":
            out[key] = buffer.value.decode("utf-8", "replace")
    return out


def open_model(path: str, options: Any, progress: Progress) -> LlamaBackend:
    """Load a GGUF and make its context, warmed up. Raises LoadFailed with file and reason."""
    backend = LlamaBackend(path, options, progress)
    try:
        backend.warm_up()
        progress(1.0)
    except BaseException:
        backend.close()
        raise
    return backend


def offloads() -> bool:
    """Whether the library can compute on a GPU."""
    return bool(C.llama_supports_gpu_offload())
