"""The options a model runs with, and its status."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_PLACES = 16  # sequences computed at once


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of a model. `scale`: for requests that name it without a scale."""

    name: str
    path: str
    scale: float = 1.0
    digest: str = ""  # of its file


def stretched(context_train: int, rope_freq_scale: float | None) -> int:
    """The trained context, extended by RoPE scaling."""
    return int(context_train / rope_freq_scale) if rope_freq_scale and rope_freq_scale < 1 else context_train


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model runs. None means: choose from the model and the machine."""

    context_cells: int | None = None
    sequence_tokens: int | None = None  # max tokens of one sequence; 0: its share of the cells, None: all cells
    parallel: int | None = None  # sequences computed at once: `places`
    threads: int | None = None
    threads_batch: int | None = None
    batch_size: int = 2048
    ubatch_size: int = 512
    gpu_layers: int | None = None  # None: all
    load_mode: str = "auto"  # how the file is read, by llama.cpp's names; so are the following
    lazy_mode: str = "auto"
    repack: bool = True  # repack weights for the CPU
    check_tensors: bool = False
    warmup: bool = True  # run one dummy step after loading
    override_kv: tuple[str, ...] = ()  # KEY=TYPE:VALUE of the model's metadata
    control_vectors: tuple[Adapter, ...] = ()  # added to the layers' outputs
    control_vector_layers: tuple[int, int] | None = None  # first and last layer to steer; None: all
    numa: str | None = None
    cpu_range: tuple[int, ...] = ()  # CPUs for its threads; (): those of the process
    prio: int = 0  # thread priority: -1 low, 0 normal, 1 to 3 real time
    poll: int | None = None  # how long a thread polls for work before it sleeps: 0 not at all, 100 longest
    devices: tuple[str, ...] = ()  # by name; (): all, ("none",): none
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()  # shares of the devices; (): by their memory
    override_tensor: tuple[str, ...] = ()  # PATTERN=BUFFER
    rope_scaling: str | None = None  # None: as in the model; so are the following
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None
    kv_offload: bool = True
    op_offload: bool = True
    backend_sampling: bool = False  # sample on the device, for sequences that need no logits
    fit: str = "on"  # "on": choose layers, experts and context so that they fit the devices
    fit_target: tuple[int, ...] = ()  # bytes to leave free on each device; the last applies to all further ones
    fit_context: int = 4096  # min cells of a fitted context
    rpc: tuple[str, ...] = ()  # HOST:PORT of machines that compute layers
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    context_shift: bool = False  # a sequence whose context is full drops tokens and goes on
    keep: int = 0  # first tokens that a shift keeps, beside the start token; -1: the prompt
    deterministic: bool = False
    spec: str = "auto"  # what drafts come from: auto, off, ngram, draft, mtp
    draft_model: Path | None = None  # a smaller model that drafts
    draft_gpu_layers: int | None = None  # None: all
    draft_most: int = 16  # max tokens of the draft model's drafts
    mtp: bool = False  # draft with the MTP layer of the model's file
    draft_rollback: int | None = None  # max draft length where memory has states, one more state each; None: chosen
    queue_limit: int = 1024  # max waiting sequences
    step_target: float = 0.2  # target seconds of a step while sequences decode
    swap_bytes: int = 1 << 30  # host memory for preempted sequences
    cache_bytes: int = 1 << 30  # host memory for evicted prefixes
    pin_share: float = 0.25  # of `cache_bytes`, for prefixes that clients pin
    checkpoint_bytes: int = 1 << 29  # host memory for checkpoints, where lanes cannot be cut
    swa_full: bool = False  # layers with a sliding window keep all tokens
    disk_bytes: int = 0  # disk space for shared prefixes
    disk_folder: Path | None = None
    digest: str = ""  # of the model; without it the disk is not used
    coalesce: float = 0.005  # seconds within which tokens of short steps may share a wake-up
    unread_tokens: int = 10_000  # max unread tokens of a choice; beyond, its client counts as gone
    idle_cells: int | None = None  # max cells of idle prefixes; None: chosen by the back end
    adapters: tuple[Adapter, ...] = ()  # LoRA adapters to load beside the model
    mmproj: Path | None = None  # the projector: turns images and sounds into rows of embeddings
    mmproj_digest: str = ""  # of its file
    mmproj_offload: bool = True  # compute it on the GPU, if there is one
    image_min_tokens: int | None = None  # min rows of an image; None: as in its file
    image_max_tokens: int | None = None
    media_bytes: int = 256 << 20  # host memory for rows of images and sounds
    embeddings: bool = False  # a generating model also makes embeddings
    pooling: str | None = None  # none, mean, cls, last or rank; None: as in the model, else mean
    embedding_ctx: int | None = None  # max tokens of one embedding input; None: as trained

    @property
    def places(self) -> int:
        """How many sequences run at once."""
        return self.parallel or DEFAULT_PLACES

    def longest_sequence(self, context: int) -> int:
        """Max tokens of one sequence, prompt and answer, if cells and model allow `context`."""
        if self.sequence_tokens is None or (self.sequence_tokens == 0 and self.context_cells is None):
            return context
        return min(context, self.sequence_tokens or max(1, (self.context_cells or 0) // self.places))


@dataclass(frozen=True, slots=True)
class Status:
    """`state`: loading, ready, draining, failed or stopped. `progress` of loading: 0 to 1."""

    state: str
    progress: float = 0.0
    reason: str = ""
