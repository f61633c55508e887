"""The options of the engine: each a field of the dataclass that it takes, whose default is the option's."""

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
        help="LoRA adapters that requests may choose, separated by commas: NAME=FILE.gguf, with @SCALE where it is not "
        "1. In a file also a table.",
    ),
    "context_cells": _engine(
        "ctx_size", "int", "-c", "--ctx-size", "-ctx", low=0, high=16_777_216, unset=("0",),
        help="Cells of KV, shared by all sequences; 0 chooses from the model and the memory at hand.",
    ),
    "sequence_tokens": _engine(
        "ctx_per_sequence", "int", "--ctx-per-sequence", "--kv-unified-per-slot", low=0, high=16_777_216,
        words={"share": 0, "all": 16_777_216},
        help="Most tokens of one sequence, prompt and answer together; share: --ctx-size divided by --parallel, as "
        "llama-server has it with --no-kv-unified; all: as many as --ctx-size has.",
    ),
    "parallel": _engine(
        "parallel", "int", "-np", "--parallel", low=1, high=256, words={"-1": _defaults["parallel"]},
        help="Most sequences computed at once, and a quarter more for keys that would have none; others wait.",
    ),
    "threads": _engine(
        "threads", "int", "-t", "--threads", low=-1, high=1024, unset=("-1", "0"),
        help="Threads for steps of one row; -1: one for each core.",
    ),
    "threads_batch": _engine(
        "threads_batch", "int", "-tb", "--threads-batch", low=-1, high=1024, unset=("-1", "0"),
        help="Threads for steps of several rows; -1: as many as --threads.",
    ),
    "batch_size": _engine(
        "batch_size", "int", "-b", "--batch-size", low=1, high=65_536, help="Most rows in one step."
    ),
    "ubatch_size": _engine(
        "ubatch_size", "int", "-ub", "--ubatch-size", low=1, high=65_536,
        help="Most rows that the back end computes together.",
    ),
    "gpu_layers": _engine(
        "n_gpu_layers", "int", "-ngl", "--n-gpu-layers", "--gpu-layers", low=-1, high=100_000,
        unset=("-1", "all", "auto"),
        help="Layers to place on a GPU, where llama.cpp was built for one; -1, all or auto: as many as there are.",
    ),
    "devices": _engine(
        "device", "list", "-dev", "--device",
        help="The devices that compute the model, by name, separated by commas; none: the CPU alone.",
    ),
    "split_mode": _engine(
        "split_mode", "choice", "-sm", "--split-mode", choices=("none", "layer", "row", "tensor"),
        help="How a model is spread over several devices: by layers, by rows of its weights, or not at all.",
    ),
    "tensor_split": _engine(
        "tensor_split", "ratios", "-ts", "--tensor-split",
        help="How much of the model each device takes, as proportions separated by commas (3,1).",
    ),
    "main_gpu": _engine(
        "main_gpu", "int", "-mg", "--main-gpu", low=0, high=255,
        help="The device that a model takes with --split-mode none, or that sums up with row.",
    ),
    "override_tensor": _engine(
        "override_tensor", "list", "-ot", "--override-tensor",
        help="Where single tensors lie: PATTERN=BUFFER, separated by commas (exps=CPU keeps a model's experts off the "
        "GPU).",
    ),
    "rope_scaling": _engine(
        "rope_scaling", "choice", "--rope-scaling", choices=("none", "linear", "yarn"),
        help="How positions are scaled beyond the context that the model was trained on. Unset: as the model says, and "
        "so with the rope and yarn options below.",
    ),
    "rope_freq_base": _engine(
        "rope_freq_base", "float", "--rope-freq-base", low=0.0, high=1e12, unset=("0",), help="RoPE: base frequency."
    ),
    "rope_freq_scale": _engine(
        "rope_freq_scale", "float", "--rope-freq-scale", low=1e-6, high=1000.0, unset=("0",),
        help="RoPE: factor on the frequency; 1/N makes room for N times the trained context (--rope-scale N).",
    ),
    "yarn_orig_ctx": _engine(
        "yarn_orig_ctx", "int", "--yarn-orig-ctx", low=0, high=16_777_216, unset=("0",),
        help="YaRN: the context that the model was trained on.",
    ),
    "yarn_ext_factor": _engine(
        "yarn_ext_factor", "float", "--yarn-ext-factor", low=-1.0, high=100.0, unset=("-1",),
        help="YaRN: how much is extrapolated; 0 interpolates alone.",
    ),
    "yarn_attn_factor": _engine(
        "yarn_attn_factor", "float", "--yarn-attn-factor", low=-1.0, high=100.0, unset=("-1",),
        help="YaRN: factor on attention.",
    ),
    "yarn_beta_slow": _engine(
        "yarn_beta_slow", "float", "--yarn-beta-slow", low=-1.0, high=10_000.0, unset=("-1",),
        help="YaRN: where the low frequencies begin.",
    ),
    "yarn_beta_fast": _engine(
        "yarn_beta_fast", "float", "--yarn-beta-fast", low=-1.0, high=10_000.0, unset=("-1",),
        help="YaRN: where the high frequencies begin.",
    ),
    "kv_offload": _engine(
        "kv_offload", "bool", "-kvo", "--kv-offload", off=("-nkvo",), help="Keep KV on the devices of its layers."
    ),
    "op_offload": _engine("op_offload", "bool", "--op-offload", help="Compute on a device what lies in host memory."),
    "load_mode": _engine(
        "load_mode", "choice", "-lm", "--load-mode",
        choices=("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
        help="How a model's file is read: mapped into memory, kept there (mlock), or read around the cache (dio).",
    ),
    "lazy_mode": _engine(
        "lazy_mode", "choice", "-lzm", "--lazy-mode", choices=("auto", "on", "off"),
        help="Whether large tensors that are looked up by row stay on disk.",
    ),
    "repack": _engine(
        "repack", "bool", "--repack", off=("-nr",), help="Arrange weights as the CPU reads them fastest."
    ),
    "check_tensors": _engine(
        "check_tensors", "bool", "--check-tensors", help="Look for values in the weights that are no numbers."
    ),
    "override_kv": _engine(
        "override_kv", "list", "--override-kv",
        help="Values of the model's metadata to replace, separated by commas: KEY=TYPE:VALUE, with int, float, bool or "
        "str as the type.",
    ),
    "control_vectors": _model(
        "control_vectors", "adapters", "--control-vector",
        help="Control vectors that steer the model, separated by commas: FILE.gguf, with @SCALE where it is not 1.",
    ),
    "control_vector_layers": _model(
        "control_vector_layers", "layers", "--control-vector-layers",
        help="The layers that they steer, as FIRST-LAST, both included. Unset: all.",
    ),
    "mmproj": _model(
        "mmproj", "path", "-mm", "--mmproj",
        help="The projector that lets the model take images and sounds, a GGUF file. Unset: the one beside the model.",
    ),
    "mmproj_offload": _engine(
        "mmproj_offload", "bool", "--mmproj-offload", help="Compute the projector on a GPU, where there is one."
    ),
    "image_min_tokens": _model(
        "image_min_tokens", "int", "--image-min-tokens", low=1, high=65_536,
        help="Fewest tokens of an image, where the projector can choose. Unset: as its file says.",
    ),
    "image_max_tokens": _model(
        "image_max_tokens", "int", "--image-max-tokens", low=1, high=65_536,
        help="Most tokens of an image, where the projector can choose. Unset: as its file says.",
    ),
    "cpu_range": _engine(
        "cpu_range", "cpus", "-Cr", "--cpu-range",
        help="The CPUs that the model's threads run on, as 0-3 or 0,2,4-7. Unset: all that the server may use.",
    ),
    "prio": _engine(
        "prio", "int", "--prio", low=-1, high=3,
        help="Scheduling of the model's threads: -1 gives way to other programs, 1 to 3 go before them and need "
        "CAP_SYS_NICE.",
    ),
    "poll": _engine(
        "poll", "int", "--poll", low=0, high=100,
        help="How long a thread spins before it sleeps, 0 to 100; the first model that is loaded sets it. Unset: 50.",
    ),
    "numa": _engine(
        "numa", "choice", "--numa", choices=("distribute", "isolate", "numactl"),
        help="How threads and memory go over the nodes of a NUMA machine.",
    ),
    "fit": _engine(
        "fit", "choice", "-fit", "--fit", choices=("on", "off"), bare="on",
        help="Choose what the options leave open so that the model fits the devices: its context, how many experts and "
        "layers stay on the CPU.",
    ),
    "fit_target": _engine(
        "fit_target", "sizes", "-fitt", "--fit-target", low=0, high=2**50, unit=2**20,
        help="Memory of each device that stays free, separated by commas; a plain number counts MiB, the last one "
        "holds for the devices after it. Unset: 1GiB, less on a small device.",
    ),
    "fit_context": _engine(
        "fit_ctx", "int", "-fitc", "--fit-ctx", low=256, high=16_777_216,
        help="The context that is not made smaller so that more layers fit a device.",
    ),
    "rpc": _engine(
        "rpc", "endpoints", "--rpc",
        help="Other machines that compute layers of the model, HOST:PORT each, separated by commas: `llamasrv rpc` "
        "runs there. Only within a network that you trust.",
    ),
    "flash_attn": _engine(
        "flash_attn", "choice", "-fa", "--flash-attn", choices=("auto", "on", "off"), bare="on",
        help="Flash attention.",
    ),
    "cache_type_k": _engine(
        "cache_type_k", "choice", "-ctk", "--cache-type-k", choices=CACHE_TYPES, help="Number format of the keys in KV."
    ),
    "cache_type_v": _engine(
        "cache_type_v", "choice", "-ctv", "--cache-type-v", choices=CACHE_TYPES,
        help="Number format of the values in KV. Quantised formats need flash attention.",
    ),
    "context_shift": _engine(
        "context_shift", "bool", "--context-shift",
        help="A sequence whose context is full forgets half of what is not kept, and goes on; replies say so "
        "(`truncated`, `timings.forgotten_n`). Without it, and by default, the answer ends there.",
    ),
    "keep": _engine(
        "keep", "int", "--keep", low=-1, high=16_777_216,
        help="With --context-shift: the first tokens that are never forgotten; -1: the prompt.",
    ),
    "deterministic": _engine(
        "deterministic", "bool", "--deterministic",
        help="The same request gives exactly the same answer whatever runs beside it; slower, no prefix is reused.",
    ),
    "spec": _engine(
        "spec", "choice", "--spec", choices=("auto", "off", "ngram", "draft"),
        help="What several tokens of a step are drafted from: the text that is there already (ngram), a smaller model "
        "(draft), or all that is at hand (auto). Drafts change when tokens come, not which; only what pays is drafted.",
    ),
    "draft_model": _model(
        "draft", "path", "-md", "--model-draft", "--spec-draft-model",
        help="A smaller model of the same vocabulary whose words are tried as drafts, where measured times say that "
        "this pays. It is loaded and unloaded with the model.",
    ),
    "draft_gpu_layers": _engine(
        "draft_n_gpu_layers", "int", "-ngld", "--n-gpu-layers-draft", "--gpu-layers-draft", "--spec-draft-ngl", low=-1,
        high=100_000, unset=("-1", "all", "auto"),
        help="Layers of the draft model to place on a GPU; -1, all or auto: as many as there are.",
    ),
    "draft_most": _engine(
        "draft_max", "int", "--spec-draft-n-max", low=1, high=31, help="Most tokens of one draft of the draft model."
    ),
    "queue_limit": _engine(
        "queue_limit", "int", "--queue-limit", low=0, high=100_000,
        help="Most sequences that wait; further requests are refused with 429.",
    ),
    "embeddings": _engine(
        "embeddings", "bool", "--embeddings", "--embedding",
        help="A model that generates answers embeddings, too. Models made for embeddings always do.",
    ),
    "pooling": _engine(
        "pooling", "choice", "--pooling", choices=POOLINGS,
        help="How the tokens of an input become one vector. Unset: as the model says, else the mean.",
    ),
    "embedding_ctx": _engine(
        "embedding_ctx", "int", "--embedding-ctx-size", low=0, high=1_048_576, unset=("0",),
        help="Longest input of an embedding, in tokens; 0: what the model was trained on, at most 2048.",
    ),
    "step_target": _engine(
        "step_target_ms", "ms", "--step-target-ms", low=1.0, high=60_000.0,
        help="Milliseconds that a step may take while streams decode: long prompts are cut into parts that fit.",
    ),
    "coalesce": _engine(
        "coalesce_ms", "ms", "--coalesce-ms", low=0.0, high=1000.0,
        help="Milliseconds within which the tokens of very short steps may reach a client together.",
    ),
    "unread_tokens": _limits(
        "unread_tokens", "int", "--max-unread-tokens", low=16, high=16_777_216,
        help="Most tokens of a choice that wait for a client to read them; then it counts as gone.",
    ),
    "cache_bytes": _cache(
        "ram", "size", "-cram", "--cache-ram", low=0, high=2**50, unit=2**20, words={"-1": 2**50},
        help="Memory outside KV for prefixes that had to leave it; a plain number counts MiB, 0 forgets them.",
    ),
    "checkpoint_bytes": _cache(
        "checkpoints", "size", "--cache-checkpoints", low=0, high=2**50, unit=2**20,
        help="Memory outside KV for states of models that cannot be cut anywhere (recurrent, hybrid, sliding window), "
        "to go back to where prompts part; a plain number counts MiB, 0 keeps none.",
    ),
    "swa_full": _engine(
        "swa_full", "bool", "--swa-full",
        help="Layers with a sliding window keep everything, not only what the window shows: more KV, no checkpoints.",
    ),
    "disk_bytes": _cache(
        "disk", "size", "--cache-disk", low=0, high=2**50, unit=2**20,
        help="Disk for prefixes, so that a restart finds them; a plain number counts MiB, 0 keeps none.",
    ),
    "disk_folder": _cache(
        "disk_dir", "path", "--cache-disk-dir", help="The folder for them (~/.cache/llamasrv/prefixes)."
    ),
    "media_bytes": _cache(
        "media", "size", "--cache-media", low=0, high=2**50, unit=2**20,
        help="Memory for what a projector made of images and sounds, so that it does not encode them again; a plain "
        "number counts MiB.",
    ),
    "swap_bytes": _cache(
        "swap", "size", "--cache-swap", low=0, high=2**50, unit=2**20,
        help="Memory outside KV for sequences that had to make room; a plain number counts MiB, 0 computes them again.",
    ),
    "idle_cells": _cache(
        "idle_cells", "int", "--cache-idle-cells", low=0, high=16_777_216, unset=("0",),
        help="Cells of KV that idle prefixes may keep while others are computed; 0: the back end chooses.",
    ),
}  # fmt: skip

ENGINE: tuple[Option, ...] = tuple(
    dataclasses.replace(option, default=_defaults[field], place=("engine", field))
    for field, option in _DECLARED.items()
)
