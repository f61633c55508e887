"""The options a model runs with, and its status."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_PLACES = 16  # sequences computed at once, where nobody has chosen


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of a model. `scale` applies where a request names it without a scale."""

    name: str
    path: str
    scale: float = 1.0
    digest: str = ""  # of its file


def stretched(context_train: int, rope_freq_scale: float | None) -> int:
    """The context of a model whose positions are scaled."""
    return int(context_train / rope_freq_scale) if rope_freq_scale and rope_freq_scale < 1 else context_train


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model runs. None means: choose from the model and the machine."""

    context_cells: int | None = None
    sequence_tokens: int | None = None  # most of one sequence; 0: its share of the cells, None: all that there are
    parallel: int | None = None  # sequences computed at once: `places`
    threads: int | None = None
    threads_batch: int | None = None
    batch_size: int = 2048
    ubatch_size: int = 512
    gpu_layers: int | None = None  # None: all
    load_mode: str = "auto"  # how its file is read, in llama.cpp's words, as all of these
    lazy_mode: str = "auto"
    repack: bool = True  # weights, for the CPU
    check_tensors: bool = False
    warmup: bool = True  # a step of nobody's, while it loads
    override_kv: tuple[str, ...] = ()  # KEY=TYPE:VALUE of the model's metadata
    control_vectors: tuple[Adapter, ...] = ()  # added to what the layers hand on
    control_vector_layers: tuple[int, int] | None = None  # the first and the last of them; None: all
    numa: str | None = None
    cpu_range: tuple[int, ...] = ()  # that its threads may run on; (): those of the process
    prio: int = 0  # of its threads: -1 low, 0 normal, 1 to 3 in real time
    poll: int | None = None  # how long a thread looks for work before it sleeps: 0 not at all, 100 longest
    devices: tuple[str, ...] = ()  # by name; (): all, ("none",): none
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()  # shares of the devices; (): by their memory
    override_tensor: tuple[str, ...] = ()  # PATTERN=BUFFER
    rope_scaling: str | None = None  # of positions; None: as the model says, as with all of these
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None
    kv_offload: bool = True
    op_offload: bool = True
    backend_sampling: bool = False  # tokens are chosen where logits are computed, where nothing needs the logits
    fit: str = "on"  # "on": layers, experts and context are chosen so that they fit the devices
    fit_target: tuple[int, ...] = ()  # bytes of each device that stay free; the last holds for those after it
    fit_context: int = 4096  # cells that a context is not made smaller than
    rpc: tuple[str, ...] = ()  # HOST:PORT of machines that compute layers
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    context_shift: bool = False  # a sequence whose context is full forgets tokens and goes on
    keep: int = 0  # first tokens that it does not forget, beside the start token; -1: its prompt
    deterministic: bool = False
    spec: str = "auto"  # what drafts come from: auto, off, ngram, draft, mtp
    draft_model: Path | None = None  # a smaller model that drafts
    draft_gpu_layers: int | None = None  # None: all
    draft_most: int = 16  # tokens of one of its drafts
    mtp: bool = False  # draft with the model's own layer for it, which its file has
    draft_rollback: int | None = None  # of a draft for a memory with states, each for one more state; None: chosen
    queue_limit: int = 1024  # sequences that may wait
    step_target: float = 0.2  # seconds a step may take while anybody decodes
    swap_bytes: int = 1 << 30  # host memory for preempted sequences
    cache_bytes: int = 1 << 30  # host memory for evicted prefixes
    pin_share: float = 0.25  # of `cache_bytes`, for prefixes that clients ask to be kept
    checkpoint_bytes: int = 1 << 29  # host memory for states of memories that cannot be cut anywhere
    swa_full: bool = False  # layers with a sliding window keep all that they have seen
    disk_bytes: int = 0  # disk for prefixes that several prompts had
    disk_folder: Path | None = None
    digest: str = ""  # of the model; without it nothing is kept on disk
    coalesce: float = 0.005  # seconds within which the tokens of short steps may share a wake-up
    unread_tokens: int = 10_000  # tokens of a choice that may wait for their reader; beyond, it counts as gone
    idle_cells: int | None = None  # cells that idle prefixes may keep in the pool; None: chosen by the back end
    adapters: tuple[Adapter, ...] = ()  # LoRA adapters to load beside the model
    mmproj: Path | None = None  # the projector: turns images and sounds into rows of embeddings
    mmproj_digest: str = ""  # of its file
    mmproj_offload: bool = True  # it computes on the GPU, where there is one
    image_min_tokens: int | None = None  # rows of an image; None: as its file says
    image_max_tokens: int | None = None
    media_bytes: int = 256 << 20  # host memory for rows of images and sounds
    embeddings: bool = False  # a model that generates makes embeddings, too
    pooling: str | None = None  # none, mean, cls, last or rank; None: as the model says, else the mean
    embedding_ctx: int | None = None  # most tokens of one embedding; None: as the model was trained

    @property
    def places(self) -> int:
        """How many sequences are computed at once."""
        return self.parallel or DEFAULT_PLACES

    def longest_sequence(self, context: int) -> int:
        """Most tokens of one sequence, prompt and answer together, where the cells and the model allow `context`."""
        if self.sequence_tokens is None or (self.sequence_tokens == 0 and self.context_cells is None):
            return context
        return min(context, self.sequence_tokens or max(1, (self.context_cells or 0) // self.places))


@dataclass(frozen=True, slots=True)
class Status:
    """`state` is loading, ready, draining, failed or stopped; `progress` of loading from 0 to 1."""

    state: str
    progress: float = 0.0
    reason: str = ""
