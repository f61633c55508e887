"""Converts a model's options to llama.cpp's context parameters."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from llamasrv.engine.backend.library import VERSION, C
from llamasrv.engine.backend.memory_kind import rollback_wanted
from llamasrv.engine.backend.placement import place_context
from llamasrv.engine.base.machine import available_cpus
from llamasrv.engine.base.options import CACHE_TYPES, EngineOptions

FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}


def context_params(o: EngineOptions, *, context_train: int, lanes: int, rows: int, ubatch: int, stateful: bool) -> Any:
    """`rows`: max rows of a batch. `ubatch`: how many of them are computed together. `stateful`: a lane has a state of
    fixed size, whatever its length."""
    p = C.llama_context_default_params()
    cells = o.context_cells or min(max(context_train, 4096), 32768)
    split = bool(o.deterministic)
    p.n_ctx = cells * lanes if split else cells
    p.n_batch, p.n_ubatch, p.n_seq_max = rows, ubatch, lanes
    p.n_rs_seq = rollback_wanted(o, p.n_ubatch) if stateful else 0  # the library may reduce it
    p.n_outputs_max = max(64, lanes)
    p.n_threads = o.threads or available_cpus()
    p.n_threads_batch = o.threads_batch or p.n_threads
    p.kv_unified, p.swa_full = not split, o.swa_full
    p.flash_attn_type = FLASH_ATTN[o.flash_attention]
    p.type_k, p.type_v = CACHE_TYPES[o.cache_type_k], CACHE_TYPES[o.cache_type_v]
    place_context(p, o)
    return p


# Options that do not affect the bytes of a state: threads, devices, scheduling, other memory. Projectors and adapters
# are part of a prefix's tokens and key, the model's digest is part of its file's key.
BESIDE_STATES = frozenset({
    "sequence_tokens", "parallel", "threads", "threads_batch", "yields_threads", "batch_size", "ubatch_size",
    "load_mode", "lazy_mode", "repack", "check_tensors", "warmup", "numa", "cpu_range", "prio", "poll",
    "devices", "split_mode", "main_gpu",
    "tensor_split", "override_tensor", "kv_offload", "op_offload", "backend_sampling", "fit", "fit_target",
    "fit_context", "rpc", "context_shift", "keep", "spec", "draft_model", "draft_gpu_layers", "draft_most", "mtp",
    "draft_rollback", "queue_limit", "step_target", "swap_bytes", "cache_bytes", "pin_share", "session_seconds",
    "checkpoint_bytes",
    "disk_bytes", "disk_folder", "digest", "coalesce", "unread_tokens", "idle_cells", "adapters", "mmproj",
    "mmproj_digest", "mmproj_offload", "image_min_tokens", "image_max_tokens", "media_bytes", "embeddings", "pooling",
    "embedding_ctx",
})  # fmt: skip


def state_facts(o: EngineOptions) -> dict[str, object]:
    """What a saved state is valid for, besides the model: it can be restored only if these are equal. Contains all
    options except those known not to matter: forgetting to list one costs a cached prefix, not a correct answer."""
    facts = {field.name: getattr(o, field.name) for field in fields(o) if field.name not in BESIDE_STATES}
    facts["control_vectors"] = [[one.digest or one.path, one.scale] for one in o.control_vectors]
    return {"library": VERSION, **facts}
