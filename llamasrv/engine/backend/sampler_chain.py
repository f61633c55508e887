"""Native sampler chains: llama.cpp's samplers over candidates that are passed in."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from llamasrv.concurrency import native_lock
from llamasrv.domain.params import SAMPLERS, SamplerType, SamplingParams, samplers_of
from llamasrv.engine.backend.library import C, function
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.base.arrays import Floats, Ids, Reals
from llamasrv.engine.base.batch import Batch

_P = ctypes.c_void_p
_apply = function("llama_sampler_apply", None, _P, _P, quick=True)
_apply_freely = function("llama_sampler_apply", None, _P, _P)  # a whole vocabulary takes 1 ms
_accept = function("llama_sampler_accept", None, _P, ctypes.c_int32, quick=True)
_sampled = function("llama_get_sampled_token_ith", ctypes.c_int32, _P, ctypes.c_int32, quick=True)
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
        self._room = 0

    def _grow(self, room: int) -> None:
        self._room = room
        self._data = np.zeros(room, _TOKEN_DATA)
        self._ids, self._logits = self._data["id"], self._data["logit"]
        self._start = self._data.ctypes.data_as(C.llama_token_data_p)

    def choose(self, ids: Ids, logits: Floats) -> int:
        n = len(ids)
        assert n, "nothing to choose from would abort the process"
        if n > self._room:
            self._grow(max(256, 1 << n.bit_length()))
        self._ids[:n] = ids
        self._logits[:n] = logits
        a = self._array
        a.data, a.size, a.selected, a.sorted = self._start, n, -1, False
        (_apply if n <= _FEW else _apply_freely)(self._pointer, self._address)
        at = a.selected
        assert 0 <= at < a.size, "the chain selected nothing"
        return int(a.data[at].id)  # read `data` anew: samplers may return their own buffer

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


class SamplerMaker:
    """Makes the samplers of one model. Thread-safe.

    DRY samplers are kept: the library searches the whole vocabulary for each breaker (15 ms for one character and
    150,000 tokens), so the last _MOST_DRY are cloned."""

    def __init__(self, vocab: LlamaVocabulary, context_train: int) -> None:
        self._vocab, self._context_train = vocab, context_train
        self._lock = native_lock()
        self._dry: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    @property
    def vocab_size(self) -> int:
        return self._vocab.size

    def window(self, last_n: int) -> int:
        return self._context_train if last_n < 0 else last_n

    def chain(self, p: SamplingParams) -> LlamaChain:
        """A chain as llama.cpp builds it (common/sampling.cpp): the listed samplers, then the choice. Logit bias is not
        part of it: it is applied to the logits before."""
        if p.mirostat:
            pick = (
                C.llama_sampler_init_mirostat(self.vocab_size, p.seed, p.mirostat_tau, p.mirostat_eta, 100)
                if p.mirostat == 1
                else C.llama_sampler_init_mirostat_v2(p.seed, p.mirostat_tau, p.mirostat_eta)
            )
            return LlamaChain([*self._made("penalties", p), C.llama_sampler_init_temp(p.temperature), pick])
        samplers: list[Any] = []
        choice: list[Any] = []
        for kind in samplers_of(p):
            if kind.chooses:
                choice = self._made(kind.name, p)
            else:
                samplers += self._made(kind.name, p)
        if not choice:
            choice = [C.llama_sampler_init_greedy() if p.is_greedy else C.llama_sampler_init_dist(p.seed)]
        return LlamaChain(samplers + choice)

    def _made(self, name: str, p: SamplingParams) -> list[Any]:
        kind = SAMPLERS[name]
        arguments = kind.arguments(p, self)
        if name == "dry":
            return [self._dry_clone(arguments)]
        if name == "infill":
            return self._infill()
        return [library_function(kind)(*arguments)]

    def _infill(self) -> list[Any]:
        """The sampler that ends an infill in time. It compares all pairs of candidates, so there must be few. A
        vocabulary without an end token, or with pieces too long for its buffer, would abort the process: then none."""
        vocab = self._vocab
        if vocab.eos is None or vocab.longest_piece >= _INFILL_ROOM:
            return []
        return [C.llama_sampler_init_top_k(_MOST_INFILL), C.llama_sampler_init_infill(vocab.pointer)]

    def _dry_clone(self, key: tuple[Any, ...]) -> Any:
        with self._lock:
            if key in self._dry:
                self._dry.move_to_end(key)
            else:
                *numbers, breakers = key
                texts = [breaker.encode("utf-8") for breaker in breakers]
                array = (ctypes.c_char_p * len(texts))(*texts)
                self._dry[key] = C.llama_sampler_init_dry(self._vocab.pointer, *numbers, array, len(texts))
                if len(self._dry) > _MOST_DRY:
                    C.llama_sampler_free(self._dry.popitem(last=False)[1])
            return C.llama_sampler_clone(self._dry[key])

    def close(self) -> None:
        with self._lock:
            while self._dry:
                C.llama_sampler_free(self._dry.popitem()[1])


def library_function(kind: SamplerType) -> Callable[..., Any]:
    """The library's function that makes a sampler of this kind."""
    made: Callable[..., Any] = getattr(C, f"llama_sampler_init_{kind.init or kind.name}")
    return made
