"""From the options of a model to the parameters of its context."""

from __future__ import annotations

from typing import Any

from llamasrv.engine.backend.library import VERSION, C
from llamasrv.engine.backend.memory_kind import rollback_wanted
from llamasrv.engine.backend.placement import place_context
from llamasrv.engine.machine import available_cpus
from llamasrv.engine.options import EngineOptions
from llamasrv.engine.prompt_work import TILE

CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}


def context_params(
    o: EngineOptions, *, context_train: int, lanes: int, rows: int, whole: int, stateful: bool
) -> Any:
    """`rows`: the most rows of a batch; `whole`: the most rows of an image that is computed in one step; `stateful`: a
    lane has a state of fixed size, however long it is."""
    p = C.llama_context_default_params()
    cells = o.context_cells or min(max(context_train, 4096), 32768)
    split = bool(o.deterministic)
    p.n_ctx = cells * lanes if split else cells
    p.n_batch, p.n_ubatch, p.n_seq_max = rows, min(max(o.ubatch_size, whole), rows), lanes
    p.n_rs_seq = rollback_wanted(o, p.n_ubatch) if stateful else 0  # the library clamps it to what it can
    p.n_outputs_max = max(64, lanes)
    p.n_threads = o.threads or available_cpus()
    p.n_threads_batch = o.threads_batch or p.n_threads
    p.kv_unified, p.swa_full = not split, o.swa_full
    p.flash_attn_type = FLASH_ATTN[o.flash_attn]
    p.type_k, p.type_v = CACHE_TYPES[o.cache_type_k], CACHE_TYPES[o.cache_type_v]
    p.no_perf = True
    place_context(p, o)
    return p


def tiles(o: EngineOptions, ubatch_size: int) -> bool:
    """Whether attention on a CPU takes a tile of rows at once (ggml-cpu/ops.cpp, flash attention)."""
    plain = {"f32", "f16"} >= {o.cache_type_k, o.cache_type_v} and o.cache_type_k == o.cache_type_v
    return o.flash_attn != "off" and plain and ubatch_size >= TILE


def state_facts(o: EngineOptions) -> dict[str, object]:
    """What a saved state depends on, besides the model: it can only be restored where these are equal."""
    return {
        "library": VERSION, "keys": o.cache_type_k, "values": o.cache_type_v, "flash_attn": o.flash_attn,
        "gpu_layers": o.gpu_layers, "overrides": list(o.override_kv),
        "steered": [[one.digest or one.path, one.scale, o.control_vector_layers] for one in o.control_vectors],
    }  # fmt: skip
