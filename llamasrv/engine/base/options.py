"""The options a model runs with, and its status."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llamasrv.domain.option import option_field

DEFAULT_PLACES = 16  # sequences computed at once
POOLINGS = ("none", "mean", "cls", "last", "rank")
"""How vectors of tokens become one, by llama.cpp's number."""
CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
FLOAT_CACHE_TYPES = ("f32", "f16", "bf16")
"""Data types of the KV cache, with ggml's numbers."""

_model = partial(option_field, "model")
_engine = partial(option_field, "engine")
_limits = partial(option_field, "limits")
_cache = partial(option_field, "cache")


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
    """How a model runs. None means: choose from the model and the machine. Sizes are in bytes, times in seconds.

    Most fields are options of the operator, each declared here: with its key, flags, range and meaning.
    """

    # A table: declarations that are read as rows.
    # fmt: off
    adapters: tuple[Adapter, ...] = _model(
        "adapters", (), "--lora",
        help="LoRA adapters that requests may select, separated by commas: NAME=FILE.gguf, with @SCALE if the scale "
        "is not 1. In the configuration file also a table.",
    )
    context_cells: int | None = _engine(
        "int", None, "-c", "--ctx-size", "-ctx", key="ctx_size", low=0, high=16_777_216, unset=("0",),
        help="KV cells, shared by all sequences. Four are reserved for padding batches: with 1024, a sequence has "
        "1020 tokens. 0: chosen from the model and the available memory.",
    )
    sequence_tokens: int | None = _engine(  # 0: its share of the cells, None: all cells
        "int", None, "--ctx-per-sequence", "--kv-unified-per-slot", key="ctx_per_sequence", low=0, high=16_777_216,
        words={"share": 0, "all": 16_777_216},
        help="Maximum tokens per sequence, prompt and answer together. share: --ctx-size divided by --parallel, like "
        "llama-server with --no-kv-unified; all: the whole --ctx-size.",
    )
    parallel: int | None = _engine(
        "int", None, "-np", "--parallel", low=1, high=256, unset=("-1", "0"),
        help="Maximum number of sequences computed at once, plus a quarter for API keys that would otherwise get "
        "none; the others wait. -1: chosen from the model and the memory, at most 16 on a CPU and 32 on devices.",
    )
    threads: int | None = _engine(
        "int", None, "-t", "--threads", low=-1, high=1024, unset=("-1", "0"),
        help="Threads for steps with a single row; -1: one per core, fewer while other programs take the cores.",
    )
    threads_batch: int | None = _engine(
        "int", None, "-tb", "--threads-batch", low=-1, high=1024, unset=("-1", "0"),
        help="Threads for steps with several rows; -1: same as --threads.",
    )
    batch_size: int = _engine(
        "int", 2048, "-b", "--batch-size", low=1, high=65_536,
        help="Maximum rows per step; with a sliding window no more than --ubatch-size.",
    )
    ubatch_size: int = _engine(
        "int", 512, "-ub", "--ubatch-size", low=1, high=65_536,
        help="Maximum rows the back end computes together.",
    )
    gpu_layers: int | None = _engine(
        "int", None, "-ngl", "--n-gpu-layers", "--gpu-layers", key="n_gpu_layers", low=-1, high=100_000,
        unset=("-1", "all", "auto"),
        help="Layers to offload to the GPU, if llama.cpp was built for one. -1, all or auto: all of them.",
    )
    devices: tuple[str, ...] = _engine(  # (): all, ("none",): none
        "list", (), "-dev", "--device", key="device",
        help="Devices to use, by name, separated by commas; none: CPU only.",
    )
    split_mode: str = _engine(
        "choice", "layer", "-sm", "--split-mode", choices=("none", "layer", "row", "tensor"),
        help="How to split a model across several devices: by layer, by rows of its weights, or not at all.",
    )
    tensor_split: tuple[float, ...] = _engine(  # (): by their memory
        "ratios", (), "-ts", "--tensor-split",
        help="Share of the model for each device, as proportions separated by commas (3,1).",
    )
    main_gpu: int = _engine(
        "int", 0, "-mg", "--main-gpu", low=0, high=255,
        help="Device that holds the model with --split-mode none, or the intermediate results with row.",
    )
    override_tensor: tuple[str, ...] = _engine(
        "list", (), "-ot", "--override-tensor",
        help="Placement of individual tensors: PATTERN=BUFFER, separated by commas (exps=CPU keeps a model's experts "
        "off the GPU).",
    )
    rope_scaling: str | None = _engine(
        "choice", None, "--rope-scaling", choices=("none", "linear", "yarn"),
        help="RoPE scaling for contexts longer than the model was trained on. Unset: as the model says; the same goes"
        " for the rope and yarn options below.",
    )
    rope_freq_base: float | None = _engine(
        "float", None, "--rope-freq-base", low=0.0, high=1e12, unset=("0",),
        help="RoPE: base frequency.",
    )
    rope_freq_scale: float | None = _engine(
        "float", None, "--rope-freq-scale", low=1e-6, high=1000.0, unset=("0",),
        help="RoPE: frequency scale; 1/N (--rope-scale N) extends the trained context N times.",
    )
    yarn_orig_ctx: int | None = _engine(
        "int", None, "--yarn-orig-ctx", low=0, high=16_777_216, unset=("0",),
        help="YaRN: the model's original context size.",
    )
    yarn_ext_factor: float | None = _engine(
        "float", None, "--yarn-ext-factor", low=-1.0, high=100.0, unset=("-1",),
        help="YaRN: extrapolation mix; 0 is interpolation only.",
    )
    yarn_attn_factor: float | None = _engine(
        "float", None, "--yarn-attn-factor", low=-1.0, high=100.0, unset=("-1",),
        help="YaRN: attention magnitude scale.",
    )
    yarn_beta_slow: float | None = _engine(
        "float", None, "--yarn-beta-slow", low=-1.0, high=10_000.0, unset=("-1",),
        help="YaRN: low correction dimension.",
    )
    yarn_beta_fast: float | None = _engine(
        "float", None, "--yarn-beta-fast", low=-1.0, high=10_000.0, unset=("-1",),
        help="YaRN: high correction dimension.",
    )
    kv_offload: bool = _engine(
        "bool", True, "-kvo", "--kv-offload", off=("-nkvo",),
        help="Keep the KV cache on the devices of its layers.",
    )
    backend_sampling: bool = _engine(
        "bool", False, "-bs", "--backend-sampling",
        help="Choose tokens where the logits are computed, for requests without grammar, log-probabilities, bias and "
        "penalties: on a GPU less is copied. Experimental in llama.cpp; the same seed gives other text, and drafts are "
        "off.",
    )
    op_offload: bool = _engine(
        "bool", True, "--op-offload",
        help="Offload operations on tensors in host memory to a device.",
    )
    load_mode: str = _engine(
        "choice", "auto", "-lm", "--load-mode", choices=("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
        help="How to read a model's file: memory-mapped, memory-mapped and locked (mlock), or with direct I/O (dio).",
    )
    lazy_mode: str = _engine(
        "choice", "auto", "-lzm", "--lazy-mode", choices=("auto", "on", "off"),
        help="Whether large tensors that are looked up by row stay on disk.",
    )
    repack: bool = _engine(
        "bool", True, "--repack", off=("-nr",),
        help="Rearrange weights into the layout the CPU reads fastest.",
    )
    check_tensors: bool = _engine(
        "bool", False, "--check-tensors",
        help="Check the weights for invalid values.",
    )
    warmup: bool = _engine(
        "bool", True, "--warmup",
        help="Run one step after loading; without it the first request pays for reading the weights.",
    )
    override_kv: tuple[str, ...] = _engine(
        "list", (), "--override-kv",
        help="Model metadata to override, separated by commas: KEY=TYPE:VALUE, where TYPE is int, float, bool or str.",
    )
    control_vectors: tuple[Adapter, ...] = _model(
        "adapters", (), "--control-vector",
        help="Control vectors to apply to the model, separated by commas: FILE.gguf, with @SCALE if the scale is not "
        "1.",
    )
    control_vector_layers: tuple[int, int] | None = _model(
        "layers", None, "--control-vector-layers",
        help="Layers the control vectors apply to, as FIRST-LAST, inclusive. Unset: all.",
    )
    mmproj: Path | None = _model(
        "path", None, "-mm", "--mmproj",
        help="Multimodal projector (a GGUF file) that lets the model take images and audio. Unset: the one next to "
        "the model, if any.",
    )
    mmproj_offload: bool = _engine(
        "bool", True, "--mmproj-offload",
        help="Run the projector on the GPU, if there is one.",
    )
    image_min_tokens: int | None = _model(
        "int", None, "--image-min-tokens", low=1, high=65_536,
        help="Minimum number of tokens per image, for projectors with a dynamic resolution. Unset: as the file says.",
    )
    image_max_tokens: int | None = _model(
        "int", None, "--image-max-tokens", low=1, high=65_536,
        help="Maximum number of tokens per image, for projectors with a dynamic resolution. Unset: as the file says.",
    )
    cpu_range: tuple[int, ...] = _engine(
        "cpus", (), "-Cr", "--cpu-range",
        help="CPUs for the model's threads, as 0-3 or 0,2,4-7. Unset: all CPUs the server may use.",
    )
    prio: int = _engine(
        "int", 0, "--prio", low=-1, high=3,
        help="Scheduling priority of the model's threads: -1 yields to other programs; 1 to 3 go before them and need"
        " CAP_SYS_NICE.",
    )
    poll: int | None = _engine(
        "int", None, "--poll", low=0, high=100,
        help="How long a thread spins before it sleeps, 0 to 100; set by the first model that is loaded. Unset: 50.",
    )
    numa: str | None = _engine(
        "choice", None, "--numa", choices=("distribute", "isolate", "numactl"),
        help="NUMA strategy for threads and memory.",
    )
    fit: str = _engine(
        "choice", "on", "-fit", "--fit", choices=("on", "off"), bare="on",
        help="Choose unset options so that the model fits the devices: the context, and how many experts and layers "
        "stay on the CPU.",
    )
    fit_target: tuple[int, ...] = _engine(
        "sizes", (), "-fitt", "--fit-target", low=0, high=2**50, unit=2**20,
        help="Memory to leave free on each device, separated by commas. A plain number is in MiB; the last one "
        "applies to all further devices. Unset: 1GiB, less on a small device.",
    )
    fit_context: int = _engine(
        "int", 4096, "-fitc", "--fit-ctx", key="fit_ctx", low=256, high=16_777_216,
        help="Minimum context; it is not reduced further to fit more layers on a device.",
    )
    rpc: tuple[str, ...] = _engine(
        "endpoints", (), "--rpc",
        help="Other machines that compute layers of the model, HOST:PORT each, separated by commas; run `llamasrv "
        "rpc` there. Only within a network you trust.",
    )
    flash_attn: str = _engine(
        "choice", "auto", "-fa", "--flash-attn", choices=("auto", "on", "off"), bare="on",
        help="Flash attention. `auto`: where the device has it, but not with --deterministic.",
    )
    cache_type_k: str = _engine(
        "choice", "f16", "-ctk", "--cache-type-k", choices=tuple(CACHE_TYPES),
        help="Data type of the keys in the KV cache.",
    )
    cache_type_v: str = _engine(
        "choice", "f16", "-ctv", "--cache-type-v", choices=tuple(CACHE_TYPES),
        help="Data type of the values in the KV cache. Quantised types need flash attention.",
    )
    context_shift: bool = _engine(
        "bool", False, "--context-shift",
        help="When a sequence's context is full, drop half of what need not be kept and go on; replies say so "
        "(`truncated`, `timings.forgotten_n`). Off: the answer ends there.",
    )
    keep: int = _engine(
        "int", 0, "--keep", low=-1, high=16_777_216,
        help="With --context-shift: number of tokens at the start that are never dropped; -1: the whole prompt.",
    )
    deterministic: bool = _engine(
        "bool", False, "--deterministic",
        help="The same request always gets exactly the same answer, whatever else is running. Slower; no prefix is "
        "reused, and flash attention is off unless asked for.",
    )
    spec: str = _engine(
        "choice", "auto", "--spec", choices=("auto", "off", "ngram", "draft", "mtp"),
        help="Where drafts of several tokens come from: the text so far (ngram), a smaller model "
        "(draft), the model's own layer for it (mtp), or everything available (auto). Drafts change when tokens come, "
        "not which; only what pays is drafted.",
    )
    draft_model: Path | None = _model(
        "path", None, "-md", "--model-draft", "--spec-draft-model", key="draft",
        help="A smaller model with the same vocabulary that proposes drafts, used where measured times show a gain. "
        "It is loaded and unloaded with the model.",
    )
    draft_gpu_layers: int | None = _engine(
        "int", None, "-ngld", "--n-gpu-layers-draft", "--gpu-layers-draft", "--spec-draft-ngl",
        key="draft_n_gpu_layers", low=-1, high=100_000, unset=("-1", "all", "auto"),
        help="Layers of the draft model to offload to the GPU; -1, all or auto: all of them.",
    )
    draft_most: int = _engine(
        "int", 16, "--spec-draft-n-max", key="draft_max", low=1, high=1024,
        help="Maximum tokens per draft of the draft model; more than 31 are never tried.",
    )
    draft_rollback: int | None = _engine(
        "int", None, "--spec-rollback", low=0, high=31,
        help="Maximum tokens per draft for recurrent and hybrid models: each takes one more state per sequence. Unset: "
        "3, or fewer where those states would take more than 256 MiB. 0: no drafts for such models.",
    )
    queue_limit: int = _engine(
        "int", 1024, "--queue-limit", low=0, high=100_000,
        help="Maximum number of waiting sequences; further requests get 429.",
    )
    embeddings: bool = _engine(
        "bool", False, "--embeddings", "--embedding",
        help="Let generative models compute embeddings too. Embedding models always do.",
    )
    pooling: str | None = _engine(
        "choice", None, "--pooling", choices=POOLINGS,
        help="How token vectors are pooled into one. Unset: as the model says, else mean.",
    )
    embedding_ctx: int | None = _engine(
        "int", None, "--embedding-ctx-size", low=0, high=1_048_576, unset=("0",),
        help="Maximum tokens per embedding input; 0: the model's trained context, at most 2048.",
    )
    step_target: float = _engine(
        "ms", 0.2, "--step-target-ms", key="step_target_ms", low=1.0, high=60_000.0,
        help="Target duration of a step, in milliseconds, while streams are decoding: long prompts are split and "
        "drafts limited to fit. Prompts may take a quarter more while every stream is ahead of its reader.",
    )
    coalesce: float = _engine(
        "ms", 0.005, "--coalesce-ms", key="coalesce_ms", low=0.0, high=1000.0,
        help="Tokens of very short steps within this many milliseconds may be sent together.",
    )
    unread_tokens: int = _limits(
        "int", 10_000, "--max-unread-tokens", low=16, high=16_777_216,
        help="Maximum tokens of a choice buffered for a client that does not read them; beyond that it counts as gone.",
    )
    cache_bytes: int = _cache(
        "size", 1 << 30, "-cram", "--cache-ram", key="ram", low=0, high=2**50, unit=2**20, words={"-1": 2**50},
        help="Memory outside the KV cache for prefixes evicted from it. A plain number is in MiB; 0 drops them.",
    )
    pin_share: float = _cache(
        "float", 0.25, "--cache-pin-share", low=0.0, high=0.9,
        help="Share of --cache-ram that clients may pin for a time they name (Anthropic's `cache_control`, "
        "OpenAI's `prompt_cache_retention`), so that nothing evicts it. API keys share it equally. "
        "0: pins are ignored.",
    )
    session_seconds: float = _cache(
        "float", 300.0, "--cache-session-seconds", low=0.0, high=86_400.0,
        help="How long the prefix of a session (`prompt_cache_key`, `x-session-id` and others) is kept while its "
        "client runs a tool, within --cache-pin-share. 0: no longer than other prefixes.",
    )
    checkpoint_bytes: int = _cache(
        "size", 1 << 29, "--cache-checkpoints", key="checkpoints", low=0, high=2**50, unit=2**20,
        help="Memory outside the KV cache for checkpoints of models whose state cannot be cut at any position "
        "(recurrent, hybrid, sliding window). A plain number is in MiB; 0 keeps none.",
    )
    swa_full: bool = _engine(
        "bool", False, "--swa-full",
        help="Keep everything in layers with a sliding window, not only the window: more KV, no checkpoints needed.",
    )
    disk_bytes: int = _cache(
        "size", 0, "--cache-disk", key="disk", low=0, high=2**50, unit=2**20,
        help="Disk space for prefixes, so that they survive a restart. A plain number is in MiB; 0 keeps none.",
    )
    disk_folder: Path | None = _cache(
        "path", None, "--cache-disk-dir", key="disk_dir",
        help="Folder for prefixes on disk (~/.cache/llamasrv/prefixes).",
    )
    media_bytes: int = _cache(
        "size", 256 << 20, "--cache-media", key="media", low=0, high=2**50, unit=2**20,
        help="Memory for encoded images and audio, so that they are not encoded again. A plain number is in MiB.",
    )
    swap_bytes: int = _cache(
        "size", 1 << 30, "--cache-swap", key="swap", low=0, high=2**50, unit=2**20,
        help="Memory outside the KV cache for preempted sequences. A plain number is in MiB; 0 computes them again.",
    )
    idle_cells: int | None = _cache(
        "int", None, "--cache-idle-cells", low=0, high=16_777_216, unset=("0",),
        help="KV cells that idle prefixes may keep while other sequences run; 0: chosen by the back end.",
    )
    # fmt: on
    # Found out when the model is loaded.
    digest: str = ""  # of the model; without it the disk is not used
    mmproj_digest: str = ""  # digest of the projector's file
    mtp: bool = False  # draft with the MTP layer of the model's file
    yields_threads: bool = False  # computes with fewer while other programs take the cores

    @property
    def flash_attention(self) -> str:
        """`flash_attn` as it is in force. Deterministic mode does without it: its kernels for few and for many rows
        round differently (log-probabilities 0.2 apart on a small Q8_0 model, measured), so that a scored text would
        differ from the same text read in other parts."""
        if self.flash_attn == "auto" and self.deterministic and self.cache_type_v in FLOAT_CACHE_TYPES:
            return "off"
        return self.flash_attn

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
