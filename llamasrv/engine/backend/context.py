"""llama.cpp's context through its C API.

Checks everything that would abort the process before the call: rows past the batch, bad lanes, partial copies across KV
streams, empty candidate sets, NULL results. Knows no scheduling.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence_spec import Adapters
from llamasrv.domain.speech import LANE_CELLS
from llamasrv.engine.backend.bound_batch import BoundBatch
from llamasrv.engine.backend.breakdown import host_bytes
from llamasrv.engine.backend.context_params import context_params, state_facts
from llamasrv.engine.backend.control_vector import steer
from llamasrv.engine.backend.cores import CORES, spare_one
from llamasrv.engine.backend.draft_model import LlamaDraftModel
from llamasrv.engine.backend.embed import LlamaEmbeddings, is_bidirectional, only_embeds
from llamasrv.engine.backend.lane_memory import LaneMemory
from llamasrv.engine.backend.library import C, function, reason
from llamasrv.engine.backend.limits import check_generates, rows_and_ubatch, together
from llamasrv.engine.backend.lora import load_adapters, use_adapters
from llamasrv.engine.backend.media_rows import decode_rows
from llamasrv.engine.backend.memory_kind import kind_of
from llamasrv.engine.backend.model_handle import ModelHandle
from llamasrv.engine.backend.model_info import info_of
from llamasrv.engine.backend.mtp import LlamaMtp
from llamasrv.engine.backend.placement import closed, load_model, on_gpu, open_context
from llamasrv.engine.backend.projector import LlamaProjector
from llamasrv.engine.backend.sampler_chain import LlamaChain, SamplerMaker, sample_lane, sampled_token
from llamasrv.engine.backend.speech import LlamaSpeech, speech_kind
from llamasrv.engine.backend.thread_count import ThreadCount
from llamasrv.engine.backend.threads import settle
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.backend.warm_up import warm_up
from llamasrv.engine.base.allocator import drop_zeros
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.batch import Batch
from llamasrv.engine.base.interface import Chain, DecodeFailed, LoadFailed, OutOfCells, Progress
from llamasrv.engine.base.machine import available_cpus
from llamasrv.engine.base.options import Adapter, EngineOptions, stretched

MAX_LANES = 256  # LLAMA_MAX_SEQ
TILE_ROWS = (
    64  # GGML_FA_TILE_Q: from here on flash attention on a CPU sums in F32 (ggml_compute_forward_flash_attn_ext)
)

_get_logits = function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p, quick=True)


class LlamaBackend(LaneMemory):
    """One model, one context. All but `info` and `vocab` belong to the engine thread."""

    host_bytes: int | None = None
    max_rollback = exact_rows = 0
    front_end_load = 0.0
    _thread_count: ThreadCount | None = None  # with a number of threads from the operator, that stays

    def __init__(self, path: str, options: EngineOptions, progress: Progress, *, weights: bool = True) -> None:
        """Without `weights` it takes no memory and can only be measured, not computed. Raises LoadFailed."""
        self._options = options
        self._context: Any = None
        self._samplers: SamplerMaker | None = None
        self.embeddings: LlamaEmbeddings | None = None
        self.draft_model: LlamaDraftModel | LlamaMtp | None = None
        self.projector: LlamaProjector | None = None
        self.speech: LlamaSpeech | None = None
        settle(options, path)
        self._model = load_model(path, options, progress, weights=weights)
        self._handle = ModelHandle(self._model, C.llama_model_free)
        try:
            self._open(path, options)
        except BaseException:
            self.close()  # the weights would stay in memory
            raise

    def _open(self, path: str, options: EngineOptions) -> None:
        self.vocab = LlamaVocabulary(self._model, self._handle)
        if not self.vocab.size:
            raise LoadFailed(f"{path}: the model has no vocabulary")
        self.info = info_of(path, self._model, self.vocab)
        self.adapters = options.adapters
        self._adapters = load_adapters(self._model, options.adapters)
        model = self._model
        kind = kind_of(model, self.info.architecture, swa_full=options.swa_full)
        self._stateful, self._n_swa, self.traits = kind
        if options.deterministic:
            self.traits = self.traits._replace(can_share=False, split=True)
        self.state_facts = state_facts(options)
        # Lanes for resident prefixes, few where each costs a whole state or window.
        spare = 4 if not self.traits.can_cut else 0 if self.traits.split else max(16, options.places)
        self._lanes_wanted = min(MAX_LANES, options.places + spare)
        self.together = together(self.info.architecture)
        if self.info.architecture and self.info.architecture == speech_kind(options.mmproj):
            self._open_to_speak(path, options)
            return
        self.generates = not only_embeds(model, self.info.metadata)
        if self.generates:
            check_generates(path, model, self.info.architecture, self.info.metadata)
        if options.mmproj is not None and (self.generates or not is_bidirectional(model, self.info.metadata)):
            self.projector = LlamaProjector(model, options)
        # A chunk with non-causal attention must fit one ubatch, whatever the option says.
        self._whole = -(-self.projector.most_whole // 32) * 32 if self.projector is not None else 0
        dimensions = self.projector.dimensions if self.projector is not None else 1
        rows, self._ubatch_wanted = rows_and_ubatch(
            options, least=self._lanes_wanted, whole=self._whole, has_window=bool(self._n_swa)
        )
        self.batch = Batch(rows, dimensions=dimensions)
        if options.embeddings or not self.generates:
            self.embeddings = LlamaEmbeddings(
                model,
                options,
                self.info.metadata,
                path=path,
                vocab_size=self.vocab.size,
                context_train=self.info.context_train,
                threads=options.threads_batch or available_cpus(),
                projector=self.projector,
                most_whole=self._whole,
            )
        if not self.generates and self.embeddings is not None:
            self._generate_nothing(self.embeddings.context)
            return
        self._open_to_generate(options)

    def _open_to_speak(self, path: str, options: EngineOptions) -> None:
        self.generates = False
        self.batch = Batch(1)
        self.speech = LlamaSpeech(self._model, self.vocab, options, path=path)
        self._generate_nothing(LANE_CELLS)

    def _generate_nothing(self, context: int) -> None:
        """No context to generate with: the numbers admit no sequence."""
        self.context, self.num_lanes, self.num_cells = context, 1, 1
        self.ubatch_size, self.idle_cells, self.max_outputs = 1, 0, 1

    def _open_to_generate(self, options: EngineOptions) -> None:
        """Open the context for generating, and the draft model."""
        self._slides = bool(self._n_swa) and not self.traits.can_cut
        self._open_context()
        model = self._model
        if options.draft_model is not None and self.max_rollback and not self.traits.split:
            self.draft_model = LlamaDraftModel(
                str(options.draft_model), options, model, self.vocab, num_lanes=self._lanes_wanted
            )
        self._stateful_only = bool(C.llama_model_is_recurrent(model))
        self.num_lanes = C.llama_n_seq_max(self._context)
        per_lane: int = C.llama_n_ctx_seq(self._context)
        train = stretched(self.info.context_train, options.rope_freq_scale) or per_lane
        self.context = options.longest_sequence(min(per_lane, train))
        self._samplers = SamplerMaker(self.vocab, self.info.context_train or self.context)
        # Recurrent states do not grow and split lanes have their own cells: there the pool never runs out.
        own_cells = self.traits.split or self._stateful_only
        self.num_cells = self.num_lanes * self.context if own_cells else C.llama_n_ctx(self._context)
        # On a CPU attention reads every used cell: a thousand idle ones slow a decode by 2 % (0.5B) to 20 % (tiny).
        # GPUs skip masked tiles.
        self._on_gpu = on_gpu(options)
        self.idle_cells = options.idle_cells or (self.num_cells if self._on_gpu else 0)
        self.ubatch_size = C.llama_n_ubatch(self._context)
        if self._sums_in_f16(options) and self.ubatch_size >= TILE_ROWS:
            self.exact_rows = TILE_ROWS
        if not self._on_gpu and (address := _get_logits(self._context)):
            # The library touches a row of logits for every lane, even for those that only ever hold prefixes.
            drop_zeros(address, C.llama_n_seq_max(self._context) * self.vocab.size * 4)
        self._bound = BoundBatch(self.batch)
        self._llama_batch = self._bound.native

    def _sums_in_f16(self, options: EngineOptions) -> bool:
        """Whether attention of few rows is summed in the format of the values. Beside states the library chooses the
        rows of a ubatch itself, the same number of each sequence."""
        in_f16 = options.cache_type_k == options.cache_type_v == "f16" and options.flash_attention != "off"
        return in_f16 and not (self._on_gpu or self._stateful or self.traits.split)

    def _open_context(self) -> None:
        o = self._options
        p = context_params(
            o,
            context_train=self.info.context_train,
            lanes=self._lanes_wanted,
            rows=self.batch.capacity,
            ubatch=self._ubatch_wanted,
            stateful=self._stateful,
        )
        self.max_outputs = p.n_outputs_max
        self._most_threads = p.n_threads, p.n_threads_batch
        self._threads = self._most_threads  # as last set
        self._num_cores = available_cpus()
        if o.yields_threads and not o.deterministic:
            self._thread_count = ThreadCount(max(self._threads), weights=C.llama_model_size(self._model))
        what = f"{self.info.path}: cannot create a context of {p.n_ctx} tokens"
        self._context = context = open_context(self._model, p, what)
        steer(context, self._model, o, self.info.path)
        self._used: Adapters = ()
        self._memory = C.llama_get_memory(context)
        self._taken_back = set()
        self.max_rollback = C.llama_n_rs_seq(context) if self._stateful else p.n_batch
        self._logits_at: tuple[int, Floats] = 0, np.empty((0, 0), np.float32)
        if o.spec == "mtp" and not o.mtp:
            raise LoadFailed(f"{self.info.path}: its MTP layer was not loaded")
        if o.mtp and self.max_rollback and not self.traits.split:
            self.draft_model = self._mtp = LlamaMtp(
                self._model, context, p, vocab_size=self.vocab.size, num_lanes=self._lanes_wanted
            )
        elif o.spec == "mtp" and not self.traits.split:
            raise LoadFailed(
                f"{self.info.path}: the library cannot take drafts back in a memory of this kind; leave "
                "--spec at auto, or allow states with --spec-rollback"
            )

    @property
    def contexts(self) -> list[Any]:
        """All open contexts, as the library's handles."""
        embedding = self.embeddings.context_handle if self.embeddings is not None else None
        speech = self.speech.context_handle if self.speech is not None else None
        mtp = self._mtp.context if self._mtp is not None else None
        return [context for context in (self._context, embedding, speech, mtp) if context]

    @property
    def model(self) -> Any:
        """The library's handle."""
        return self._model

    def add_adapter(self, adapter: Adapter) -> None:
        self._adapters += load_adapters(self._model, (adapter,))
        self.adapters += (adapter,)

    def use(self, adapters: Adapters) -> None:
        if adapters != self._used:  # a change rebuilds the graph
            use_adapters(self._context, self._adapters, adapters)
            self._used = adapters

    def decode(self) -> None:
        batch = self.batch
        n = batch.num_rows
        assert 0 < n <= batch.capacity and batch.num_outputs <= self.max_outputs
        # Viewed as unsigned, a negative lane is too large.
        assert max(batch.lane[:n].view(np.uint32).tolist()) < self.num_lanes
        media = batch.media
        self._llama_batch.n_tokens = n
        self._share_threads()
        if media is None:
            if (count := self._thread_count) is None:
                code = C.llama_decode(self._context, self._llama_batch)
            else:
                started, cpu = time.perf_counter(), time.process_time()
                code = C.llama_decode(self._context, self._llama_batch)
                used = None if self._on_gpu else time.process_time() - cpu
                count.note(n, time.perf_counter() - started, used)
        else:
            p = self.projector
            assert p is not None
            code = decode_rows(
                self._context,
                self._llama_batch,
                media,
                width=p.width,
                dimensions=p.dimensions,
                ubatch_size=self.ubatch_size,
            )
        CORES.end(self)
        if code == 0:
            if self._taken_back:
                self._taken_back.difference_update(batch.lane[:n].tolist())
            if self._mtp is not None and media is None:
                self._mtp.note(batch)
            if self._on_gpu:
                C.llama_synchronize(self._context)  # decode is asynchronous: wait here, without the GIL
        elif code == 1:
            raise OutOfCells
        else:
            raise DecodeFailed(f"llama_decode returned {code} ({reason()})", fatal=code == -3)

    def _share_threads(self) -> None:
        sharing, threads = CORES.begin(self), self._most_threads
        load = 0.0 if self._options.deterministic else self.front_end_load
        if self._thread_count is not None or sharing > 1 or load:
            most = max(threads) if self._thread_count is None else self._thread_count.now
            one, many = (spare_one(max(1, min(n, most) // sharing), self._num_cores, load) for n in threads)
            threads = one, many
        if threads != self._threads:
            self._threads = threads
            C.llama_set_n_threads(self._context, *threads)

    def logits(self, num_rows: int) -> Floats:
        assert num_rows == self.batch.num_outputs, "more or fewer rows than the batch has logits for"
        address = _get_logits(self._context)
        assert address, "logits of a batch without outputs"
        if self._logits_at[0] != address:
            size = self.max_outputs * self.vocab.size
            view = np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))
            self._logits_at = address, view.reshape(self.max_outputs, self.vocab.size)
        rows: Floats = self._logits_at[1][:num_rows]
        return rows

    def sample_lane(self, lane: int, chain: Chain | None) -> bool:
        assert 0 <= lane < self.num_lanes
        return sample_lane(self._context, lane, chain)

    def sampled(self, row: int) -> int | None:
        return sampled_token(self._context, self.batch, row)

    def chain(self, params: SamplingParams) -> LlamaChain:
        assert self._samplers is not None
        return self._samplers.chain(params)

    def reset(self) -> None:
        if not self.generates:
            return
        if self._mtp is not None:
            self._mtp.close()  # before the context that it refers to
        self._context = closed(self._context)
        self._open_context()
        if isinstance(self.draft_model, LlamaDraftModel):
            self.draft_model.reset()

    def close(self) -> None:
        for part in (self.embeddings, self.speech, self.draft_model, self.projector, self._samplers):
            if part is not None:
                part.close()
        self.embeddings = self.speech = self.draft_model = self.projector = self._samplers = None
        CORES.drop(self)
        self._context = closed(self._context)
        if self._model:
            self._model = None
            self._handle.release()


def open_model(path: str, options: EngineOptions, progress: Progress) -> LlamaBackend:
    """Load a GGUF, create its context and run the warm-up step, unless the options turn it off. Raises LoadFailed."""
    backend = LlamaBackend(path, options, progress)
    try:
        if options.warmup:
            warm_up(backend)
        backend.host_bytes = host_bytes(backend.contexts, backend.vocab.size, backend.max_outputs)
        if backend.host_bytes is not None and isinstance(backend.draft_model, LlamaDraftModel):
            backend.host_bytes += host_bytes(*backend.draft_model.sizes) or 0
        progress(1.0)
    except BaseException:
        backend.close()
        raise
    return backend
