"""The engine's options: each sets a field of the dataclass that the engine takes, and shares its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from llamasrv.config.option import Option
from llamasrv.engine.options import EngineOptions

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOLINGS = ("none", "mean", "cls", "last", "rank")

_defaults: Mapping[str, Any] = {f.name: f.default for f in dataclasses.fields(EngineOptions)}


def _option(
    section: str,
    key: str,
    kind: str,
    *flags: str,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    unit: int = 1,
    unset: tuple[str, ...] = (),
    words: Mapping[str, Any] | None = None,
    bare: str | None = None,
    off: tuple[str, ...] = (),
) -> Option:
    return Option(
        f"{section}.{key}", flags, kind, help, None, low, high, choices, False, unit, unset, words or {}, bare, off
    )


_model = partial(_option, "model")
_engine = partial(_option, "engine")
_limits = partial(_option, "limits")
_cache = partial(_option, "cache")

# By the name of the field.
_DECLARED: Mapping[str, Option] = {
    "adapters": _model(
        "adapters", "adapters", "--lora",
        help="LoRA adapters that requests may select, separated by commas: NAME=FILE.gguf, with @SCALE if the scale "
        "is not 1. In the configuration file also a table.",
    ),
    "context_cells": _engine(
        "ctx_size", "int", "-c", "--ctx-size", "-ctx", low=0, high=16_777_216, unset=("0",),
        help="KV cells, shared by all sequences. Four are kept for rows that fill up batches: of 1024 a sequence has "
        "1020 tokens. 0: chosen from the model and the available memory.",
    ),
    "sequence_tokens": _engine(
        "ctx_per_sequence", "int", "--ctx-per-sequence", "--kv-unified-per-slot", low=0, high=16_777_216,
        words={"share": 0, "all": 16_777_216},
        help="Maximum tokens per sequence, prompt and answer together. share: --ctx-size divided by --parallel, like "
        "llama-server with --no-kv-unified; all: the whole --ctx-size.",
    ),
    "parallel": _engine(
        "parallel", "int", "-np", "--parallel", low=1, high=256, unset=("-1", "0"),
        help="Maximum number of sequences computed at once, plus a quarter for API keys that would otherwise get "
        "none; the others wait. -1: chosen from the model and the memory, at most 16 on a CPU and 32 on devices.",
    ),
    "threads": _engine(
        "threads", "int", "-t", "--threads", low=-1, high=1024, unset=("-1", "0"),
        help="Threads for steps with a single row; -1: one per core.",
    ),
    "threads_batch": _engine(
        "threads_batch", "int", "-tb", "--threads-batch", low=-1, high=1024, unset=("-1", "0"),
        help="Threads for steps with several rows; -1: same as --threads.",
    ),
    "batch_size": _engine(
        "batch_size", "int", "-b", "--batch-size", low=1, high=65_536, help="Maximum rows per step."
    ),
    "ubatch_size": _engine(
        "ubatch_size", "int", "-ub", "--ubatch-size", low=1, high=65_536,
        help="Maximum rows the back end computes together.",
    ),
    "gpu_layers": _engine(
        "n_gpu_layers", "int", "-ngl", "--n-gpu-layers", "--gpu-layers", low=-1, high=100_000,
        unset=("-1", "all", "auto"),
        help="Layers to offload to the GPU, if llama.cpp was built for one. -1, all or auto: all of them.",
    ),
    "devices": _engine(
        "device", "list", "-dev", "--device",
        help="Devices to use, by name, separated by commas; none: CPU only.",
    ),
    "split_mode": _engine(
        "split_mode", "choice", "-sm", "--split-mode", choices=("none", "layer", "row", "tensor"),
        help="How to split a model across several devices: by layer, by rows of its weights, or not at all.",
    ),
    "tensor_split": _engine(
        "tensor_split", "ratios", "-ts", "--tensor-split",
        help="Share of the model for each device, as proportions separated by commas (3,1).",
    ),
    "main_gpu": _engine(
        "main_gpu", "int", "-mg", "--main-gpu", low=0, high=255,
        help="Device that holds the model with --split-mode none, or the intermediate results with row.",
    ),
    "override_tensor": _engine(
        "override_tensor", "list", "-ot", "--override-tensor",
        help="Placement of individual tensors: PATTERN=BUFFER, separated by commas (exps=CPU keeps a model's experts "
        "off the GPU).",
    ),
    "rope_scaling": _engine(
        "rope_scaling", "choice", "--rope-scaling", choices=("none", "linear", "yarn"),
        help="RoPE scaling for contexts longer than the model was trained on. Unset: as the model says; the same goes"
        " for the rope and yarn options below.",
    ),
    "rope_freq_base": _engine(
        "rope_freq_base", "float", "--rope-freq-base", low=0.0, high=1e12, unset=("0",), help="RoPE: base frequency."
    ),
    "rope_freq_scale": _engine(
        "rope_freq_scale", "float", "--rope-freq-scale", low=1e-6, high=1000.0, unset=("0",),
        help="RoPE: frequency scale; 1/N (--rope-scale N) extends the trained context N times.",
    ),
    "yarn_orig_ctx": _engine(
        "yarn_orig_ctx", "int", "--yarn-orig-ctx", low=0, high=16_777_216, unset=("0",),
        help="YaRN: the model's original context size.",
    ),
    "yarn_ext_factor": _engine(
        "yarn_ext_factor", "float", "--yarn-ext-factor", low=-1.0, high=100.0, unset=("-1",),
        help="YaRN: extrapolation mix; 0 is interpolation only.",
    ),
    "yarn_attn_factor": _engine(
        "yarn_attn_factor", "float", "--yarn-attn-factor", low=-1.0, high=100.0, unset=("-1",),
        help="YaRN: attention magnitude scale.",
    ),
    "yarn_beta_slow": _engine(
        "yarn_beta_slow", "float", "--yarn-beta-slow", low=-1.0, high=10_000.0, unset=("-1",),
        help="YaRN: low correction dimension.",
    ),
    "yarn_beta_fast": _engine(
        "yarn_beta_fast", "float", "--yarn-beta-fast", low=-1.0, high=10_000.0, unset=("-1",),
        help="YaRN: high correction dimension.",
    ),
    "kv_offload": _engine(
        "kv_offload", "bool", "-kvo", "--kv-offload", off=("-nkvo",),
        help="Keep the KV cache on the devices of its layers."
    ),
    "backend_sampling": _engine(
        "backend_sampling", "bool", "-bs", "--backend-sampling",
        help="Choose tokens where the logits are computed, for requests without grammar, log-probabilities, bias and "
        "penalties: on a GPU less is copied. Experimental in llama.cpp; a seed gives another text, and drafts are off.",
    ),
    "op_offload": _engine(
        "op_offload", "bool", "--op-offload",
        help="Offload operations on tensors in host memory to a device.",
    ),
    "load_mode": _engine(
        "load_mode", "choice", "-lm", "--load-mode",
        choices=("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
        help="How to read a model's file: memory-mapped, memory-mapped and locked (mlock), or with direct I/O (dio).",
    ),
    "lazy_mode": _engine(
        "lazy_mode", "choice", "-lzm", "--lazy-mode", choices=("auto", "on", "off"),
        help="Whether large tensors that are looked up by row stay on disk.",
    ),
    "repack": _engine(
        "repack", "bool", "--repack", off=("-nr",), help="Rearrange weights into the layout the CPU reads fastest."
    ),
    "check_tensors": _engine(
        "check_tensors", "bool", "--check-tensors", help="Check the weights for invalid values."
    ),
    "warmup": _engine(
        "warmup", "bool", "--warmup",
        help="Compute a step while the model loads; without it the first request pays for reading the weights.",
    ),
    "override_kv": _engine(
        "override_kv", "list", "--override-kv",
        help="Model metadata to override, separated by commas: KEY=TYPE:VALUE, where TYPE is int, float, bool or str.",
    ),
    "control_vectors": _model(
        "control_vectors", "adapters", "--control-vector",
        help="Control vectors to apply to the model, separated by commas: FILE.gguf, with @SCALE if the scale is not "
        "1.",
    ),
    "control_vector_layers": _model(
        "control_vector_layers", "layers", "--control-vector-layers",
        help="Layers the control vectors apply to, as FIRST-LAST, inclusive. Unset: all.",
    ),
    "mmproj": _model(
        "mmproj", "path", "-mm", "--mmproj",
        help="Multimodal projector (a GGUF file) that lets the model take images and audio. Unset: the one next to "
        "the model, if any.",
    ),
    "mmproj_offload": _engine(
        "mmproj_offload", "bool", "--mmproj-offload", help="Run the projector on the GPU, if there is one."
    ),
    "image_min_tokens": _model(
        "image_min_tokens", "int", "--image-min-tokens", low=1, high=65_536,
        help="Minimum number of tokens per image, for projectors with a dynamic resolution. Unset: as the file says.",
    ),
    "image_max_tokens": _model(
        "image_max_tokens", "int", "--image-max-tokens", low=1, high=65_536,
        help="Maximum number of tokens per image, for projectors with a dynamic resolution. Unset: as the file says.",
    ),
    "cpu_range": _engine(
        "cpu_range", "cpus", "-Cr", "--cpu-range",
        help="CPUs for the model's threads, as 0-3 or 0,2,4-7. Unset: all CPUs the server may use.",
    ),
    "prio": _engine(
        "prio", "int", "--prio", low=-1, high=3,
        help="Scheduling priority of the model's threads: -1 yields to other programs; 1 to 3 go before them and need"
        " CAP_SYS_NICE.",
    ),
    "poll": _engine(
        "poll", "int", "--poll", low=0, high=100,
        help="How long a thread spins before it sleeps, 0 to 100; set by the first model that is loaded. Unset: 50.",
    ),
    "numa": _engine(
        "numa", "choice", "--numa", choices=("distribute", "isolate", "numactl"),
        help="NUMA strategy for threads and memory.",
    ),
    "fit": _engine(
        "fit", "choice", "-fit", "--fit", choices=("on", "off"), bare="on",
        help="Choose unset options so that the model fits the devices: the context, and how many experts and layers "
        "stay on the CPU.",
    ),
    "fit_target": _engine(
        "fit_target", "sizes", "-fitt", "--fit-target", low=0, high=2**50, unit=2**20,
        help="Memory to leave free on each device, separated by commas. A plain number is in MiB; the last one "
        "applies to all further devices. Unset: 1GiB, less on a small device.",
    ),
    "fit_context": _engine(
        "fit_ctx", "int", "-fitc", "--fit-ctx", low=256, high=16_777_216,
        help="Minimum context; it is not reduced further to fit more layers on a device.",
    ),
    "rpc": _engine(
        "rpc", "endpoints", "--rpc",
        help="Other machines that compute layers of the model, HOST:PORT each, separated by commas; run `llamasrv "
        "rpc` there. Only within a network you trust.",
    ),
    "flash_attn": _engine(
        "flash_attn", "choice", "-fa", "--flash-attn", choices=("auto", "on", "off"), bare="on",
        help="Flash attention.",
    ),
    "cache_type_k": _engine(
        "cache_type_k", "choice", "-ctk", "--cache-type-k", choices=CACHE_TYPES,
        help="Data type of the keys in the KV cache."
    ),
    "cache_type_v": _engine(
        "cache_type_v", "choice", "-ctv", "--cache-type-v", choices=CACHE_TYPES,
        help="Data type of the values in the KV cache. Quantised types need flash attention.",
    ),
    "context_shift": _engine(
        "context_shift", "bool", "--context-shift",
        help="When a sequence's context is full, drop half of what need not be kept and go on; replies say so "
        "(`truncated`, `timings.forgotten_n`). Off: the answer ends there.",
    ),
    "keep": _engine(
        "keep", "int", "--keep", low=-1, high=16_777_216,
        help="With --context-shift: number of tokens at the start that are never dropped; -1: the whole prompt.",
    ),
    "deterministic": _engine(
        "deterministic", "bool", "--deterministic",
        help="The same request always gets exactly the same answer, whatever else is running. Slower; no prefix is "
        "reused.",
    ),
    "spec": _engine(
        "spec", "choice", "--spec", choices=("auto", "off", "ngram", "draft", "mtp"),
        help="Where drafts of several tokens come from: the text so far (ngram), a smaller model "
        "(draft), the model's own layer for it (mtp), or everything available (auto). Drafts change when tokens come, "
        "not which; only what pays is drafted.",
    ),
    "draft_model": _model(
        "draft", "path", "-md", "--model-draft", "--spec-draft-model",
        help="A smaller model of the same vocabulary whose words are tried as drafts, where measured times say that "
        "this pays. It is loaded and unloaded with the model.",
    ),
    "draft_gpu_layers": _engine(
        "draft_n_gpu_layers", "int", "-ngld", "--n-gpu-layers-draft", "--gpu-layers-draft", "--spec-draft-ngl", low=-1,
        high=100_000, unset=("-1", "all", "auto"),
        help="Layers of the draft model to offload to the GPU; -1, all or auto: all of them.",
    ),
    "draft_most": _engine(
        "draft_max", "int", "--spec-draft-n-max", low=1, high=1024,
        help="Maximum tokens per draft of the draft model; more than 31 are never tried.",
    ),
    "draft_rollback": _engine(
        "draft_rollback", "int", "--spec-rollback", low=0, high=31,
        help="Maximum tokens per draft for recurrent and hybrid models: each takes one more state per sequence. Unset: "
        "3, or fewer where those states would take more than 256 MiB. 0: no drafts for such models.",
    ),
    "queue_limit": _engine(
        "queue_limit", "int", "--queue-limit", low=0, high=100_000,
        help="Maximum number of waiting sequences; further requests get 429.",
    ),
    "embeddings": _engine(
        "embeddings", "bool", "--embeddings", "--embedding",
        help="Let generative models compute embeddings too. Embedding models always do.",
    ),
    "pooling": _engine(
        "pooling", "choice", "--pooling", choices=POOLINGS,
        help="How token vectors are pooled into one. Unset: as the model says, else mean.",
    ),
    "embedding_ctx": _engine(
        "embedding_ctx", "int", "--embedding-ctx-size", low=0, high=1_048_576, unset=("0",),
        help="Maximum tokens per embedding input; 0: the model's trained context, at most 2048.",
    ),
    "step_target": _engine(
        "step_target_ms", "ms", "--step-target-ms", low=1.0, high=60_000.0,
        help="Target duration of a step, in milliseconds, while streams are decoding: long prompts are split to fit. "
        "Half as much again while every stream is ahead of its reader, up to two and a half times while several long "
        "prompts wait or one gets on much faster in steps of 64 rows.",
    ),
    "coalesce": _engine(
        "coalesce_ms", "ms", "--coalesce-ms", low=0.0, high=1000.0,
        help="Tokens of very short steps within this many milliseconds may be sent together.",
    ),
    "unread_tokens": _limits(
        "unread_tokens", "int", "--max-unread-tokens", low=16, high=16_777_216,
        help="Maximum tokens of a choice buffered for a client that does not read them; beyond that it counts as gone.",
    ),
    "cache_bytes": _cache(
        "ram", "size", "-cram", "--cache-ram", low=0, high=2**50, unit=2**20, words={"-1": 2**50},
        help="Memory outside the KV cache for prefixes evicted from it. A plain number is in MiB; 0 drops them.",
    ),
    "pin_share": _cache(
        "pin_share", "float", "--cache-pin-share", low=0.0, high=0.9,
        help="Share of --cache-ram that clients may pin for a time they name (Anthropic's `cache_control`, "
        "OpenAI's `prompt_cache_retention`), so that nothing evicts it. API keys share it equally. "
        "0: pins are ignored.",
    ),
    "checkpoint_bytes": _cache(
        "checkpoints", "size", "--cache-checkpoints", low=0, high=2**50, unit=2**20,
        help="Memory outside the KV cache for checkpoints of models whose state cannot be cut at any position "
        "(recurrent, hybrid, sliding window). A plain number is in MiB; 0 keeps none.",
    ),
    "swa_full": _engine(
        "swa_full", "bool", "--swa-full",
        help="Keep everything in layers with a sliding window, not only the window: more KV, no checkpoints needed.",
    ),
    "disk_bytes": _cache(
        "disk", "size", "--cache-disk", low=0, high=2**50, unit=2**20,
        help="Disk space for prefixes, so that they survive a restart. A plain number is in MiB; 0 keeps none.",
    ),
    "disk_folder": _cache(
        "disk_dir", "path", "--cache-disk-dir", help="Folder for prefixes on disk (~/.cache/llamasrv/prefixes)."
    ),
    "media_bytes": _cache(
        "media", "size", "--cache-media", low=0, high=2**50, unit=2**20,
        help="Memory for encoded images and audio, so that they are not encoded again. A plain number is in MiB.",
    ),
    "swap_bytes": _cache(
        "swap", "size", "--cache-swap", low=0, high=2**50, unit=2**20,
        help="Memory outside the KV cache for preempted sequences. A plain number is in MiB; 0 computes them again.",
    ),
    "idle_cells": _cache(
        "idle_cells", "int", "--cache-idle-cells", low=0, high=16_777_216, unset=("0",),
        help="KV cells that idle prefixes may keep while other sequences run; 0: chosen by the back end.",
    ),
}  # fmt: skip

ENGINE: tuple[Option, ...] = tuple(
    dataclasses.replace(option, default=_defaults[field], place=("engine", field))
    for field, option in _DECLARED.items()
)
