"""Native sampler chains: llama.cpp's samplers over candidates that are passed in."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from llamasrv.concurrency import native_lock
from llamasrv.domain.params import SAMPLERS, SamplingParams, samplers_of
from llamasrv.engine.backend.library import C, fast
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.base.arrays import Floats, Ids, Reals
from llamasrv.engine.base.batch import Batch

_apply = fast.llama_sampler_apply
_apply.argtypes, _apply.restype = [ctypes.c_void_p, ctypes.c_void_p], None
_accept = fast.llama_sampler_accept
_accept.argtypes, _accept.restype = [ctypes.c_void_p, ctypes.c_int32], None
_apply_freely = ctypes.CDLL(C._lib._name).llama_sampler_apply  # releases the GIL: a whole vocabulary takes 1 ms
_apply_freely.argtypes, _apply_freely.restype = [ctypes.c_void_p, ctypes.c_void_p], None
_sampled = fast.llama_get_sampled_token_ith
_sampled.argtypes, _sampled.restype = [ctypes.c_void_p, ctypes.c_int32], ctypes.c_int32
_FEW = 4096
_MOST_DRY = 8  # max number of cached DRY samplers
_MOST_INFILL = 64
_INFILL_ROOM = 512  # bytes

_TOKEN_DATA = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


class LlamaChain:
    """A native sampler chain over candidates. It owns its samplers; `close` frees them."""

    __slots__ = ("_pointer", "_data", "_array", "_address", "_ids", "_logits", "_room", "_start")

    def __init__(self, samplers: list[Any], chain: Any = None) -> None:
        """`chain`: an existing chain of the library to add to."""
        chain = chain or C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
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

    def choose(self, ids: Ids, logits: Floats) -> int:
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
        return int(a.data[at].id)  # of `data` as it is now: samplers may answer in a buffer of their own

    def left(self) -> tuple[Ids, Reals]:
        a = self._array
        size = a.size * _TOKEN_DATA.itemsize
        data = np.frombuffer(ctypes.string_at(a.data, size), _TOKEN_DATA)
        return data["id"].astype(np.int64), data["logit"]

    def accept(self, token: int) -> None:
        _accept(self._pointer, token)

    def clone(self) -> LlamaChain:
        return LlamaChain([], C.llama_sampler_clone(self.pointer))

    @property
    def pointer(self) -> Any:
        """The library's handle."""
        assert self._pointer, "closed"
        return ctypes.cast(self._pointer, C.llama_sampler_p_ctypes)

    def close(self) -> None:
        if self._pointer:
            C.llama_sampler_free(ctypes.cast(self._pointer, C.llama_sampler_p_ctypes))
            self._pointer = None


def sample_lane(context: Any, lane: int, chain: Any) -> bool:
    """Apply a chain to a lane's rows in the library's graph; None turns it off. False if the library refuses."""
    return bool(C.llama_set_sampler(context, lane, None if chain is None else chain.pointer))


def sampled_token(context: Any, batch: Batch, row: int) -> int | None:
    """The token that the library sampled for this row of logits; None if there is none."""
    place = int(batch.wants_logits[: batch.num_rows].nonzero()[0][row])
    token = _sampled(context, place)
    return token if token >= 0 else None


class DrySamplers:
    """Cached DRY samplers. The library searches the whole vocabulary for each breaker (15 ms for one character and
    150,000 tokens), so the last _MOST_DRY are kept and cloned. Thread-safe."""

    def __init__(self, vocab: LlamaVocabulary) -> None:
        self._vocab = vocab
        self._lock = native_lock()
        self._kept: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    def get(self, p: SamplingParams, last_n: int) -> Any:
        """A fresh sampler, owned by the caller."""
        key = p.dry_sequence_breakers, p.dry_multiplier, p.dry_base, p.dry_allowed_length, last_n
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            else:
                self._kept[key] = self._make(p, last_n)
                if len(self._kept) > _MOST_DRY:
                    C.llama_sampler_free(self._kept.popitem(last=False)[1])
            return C.llama_sampler_clone(self._kept[key])

    def _make(self, p: SamplingParams, last_n: int) -> Any:
        breakers = [b.encode("utf-8") for b in p.dry_sequence_breakers]
        return C.llama_sampler_init_dry(
            self._vocab.pointer,
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            last_n,
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )

    def close(self) -> None:
        with self._lock:
            while self._kept:
                C.llama_sampler_free(self._kept.popitem()[1])


class _Given(NamedTuple):
    """What a sampler is built from."""

    params: SamplingParams
    vocab: LlamaVocabulary
    context_train: int
    dry: DrySamplers

    def window(self, last_n: int) -> int:
        return self.context_train if last_n < 0 else last_n


def _penalties(g: _Given) -> list[Any]:
    p = g.params
    last_n = g.window(p.repeat_last_n)
    init = C.llama_sampler_init_penalties
    return [init(g.vocab.size, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)]


def _xtc(g: _Given) -> list[Any]:
    p = g.params
    return [C.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed)]


def _temperature(g: _Given) -> list[Any]:
    p = g.params
    return [C.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent)]


def _adaptive_p(g: _Given) -> list[Any]:
    p = g.params
    return [C.llama_sampler_init_adaptive_p(p.adaptive_target, p.adaptive_decay, p.seed)]


def _infill(g: _Given) -> list[Any]:
    """The sampler that ends an infill in time. It compares all pairs of candidates, so there must be few. A vocabulary
    without an end token, or with pieces too long for its buffer, would abort the process: then none."""
    if g.vocab.eos is None or g.vocab.longest_piece >= _INFILL_ROOM:
        return []
    return [C.llama_sampler_init_top_k(_MOST_INFILL), C.llama_sampler_init_infill(g.vocab.pointer)]


BUILDERS: Mapping[str, Callable[[_Given], list[Any]]] = {
    "penalties": _penalties,
    "dry": lambda g: [g.dry.get(g.params, g.window(g.params.dry_penalty_last_n))],
    "top_n_sigma": lambda g: [C.llama_sampler_init_top_n_sigma(g.params.top_n_sigma)],
    "top_k": lambda g: [C.llama_sampler_init_top_k(g.params.top_k)],
    "typ_p": lambda g: [C.llama_sampler_init_typical(g.params.typical_p, g.params.min_keep)],
    "top_p": lambda g: [C.llama_sampler_init_top_p(g.params.top_p, g.params.min_keep)],
    "min_p": lambda g: [C.llama_sampler_init_min_p(g.params.min_p, g.params.min_keep)],
    "xtc": _xtc,
    "temperature": _temperature,
    "adaptive_p": _adaptive_p,
    "infill": _infill,
}
"""How the library's samplers are made, for each of SAMPLERS."""
assert BUILDERS.keys() == SAMPLERS.keys()


def chain_of(params: SamplingParams, vocab: LlamaVocabulary, context_train: int, dry: DrySamplers) -> LlamaChain:
    """A chain as llama.cpp builds it (common/sampling.cpp): the listed samplers, then the choice. Logit bias is not
    part of it: it is applied to the logits before."""
    p, given = params, _Given(params, vocab, context_train, dry)
    if p.mirostat:
        pick = (
            C.llama_sampler_init_mirostat(vocab.size, p.seed, p.mirostat_tau, p.mirostat_eta, 100)
            if p.mirostat == 1
            else C.llama_sampler_init_mirostat_v2(p.seed, p.mirostat_tau, p.mirostat_eta)
        )
        return LlamaChain([*_penalties(given), C.llama_sampler_init_temp(p.temperature), pick])
    samplers: list[Any] = []
    choice: list[Any] = []
    for kind in samplers_of(p):
        if kind.chooses:
            choice = BUILDERS[kind.name](given)
        else:
            samplers += BUILDERS[kind.name](given)
    if not choice:
        choice = [C.llama_sampler_init_greedy() if p.is_greedy else C.llama_sampler_init_dist(p.seed)]
    return LlamaChain(samplers + choice)
