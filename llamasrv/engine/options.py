"""How a model runs, and what has become of it."""

from __future__ import annotations

from dataclasses import dataclass

from llamasrv.engine.interface import Adapter


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model runs. Zero means: choose from the model and the machine."""

    context_cells: int = 0
    parallel: int = 16
    threads: int = 0
    threads_batch: int = 0
    batch_size: int = 2048
    ubatch_size: int = 512
    gpu_layers: int = -1
    rpc: tuple[str, ...] = ()  # HOST:PORT of machines that compute layers
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    deterministic: bool = False
    queue_limit: int = 1024  # sequences that may wait
    step_target: float = 0.2  # seconds a step may take while anybody decodes
    swap_bytes: int = 1 << 30  # host memory for preempted sequences
    cache_bytes: int = 1 << 30  # host memory for evicted prefixes
    disk_bytes: int = 0  # disk for prefixes that several prompts had
    disk_folder: str = ""
    digest: str = ""  # of the model; without it nothing is kept on disk
    coalesce: float = 0.002  # seconds within which the tokens of short steps may share a wake-up
    unread_tokens: int = 10_000  # tokens of a choice that may wait for their reader; beyond, it counts as gone
    idle_cells: int = 0  # cells that idle prefixes may keep in the pool; 0: chosen by the back end
    adapters: tuple[Adapter, ...] = ()  # LoRA adapters to load beside the model
    embeddings: bool = False  # a model that generates makes embeddings, too
    pooling: str | None = None  # none, mean, cls, last or rank; None: as the model says, else the mean
    embedding_ctx: int = 0  # most tokens of one embedding


@dataclass(frozen=True, slots=True)
class Status:
    """`state` is loading, ready, draining, failed or stopped; `progress` of loading from 0 to 1."""

    state: str
    progress: float = 0.0
    reason: str = ""
