"""What llamasrv does with each flag of llama-server: one line each.

same       an option of the same name, short form and meaning
maps       another option does it; `sets` gives its value
already    accepted: llamasrv does that anyway, or it has no effect here
no         refused, with what to use instead

A specification is written as llama-server's own help writes it, the names that negate after a slash. `ok` are values
that ask for nothing that llamasrv does not do anyway; `off` is why the negation is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llamasrv.engine.tensor_names import DENSE, EXPERTS, of_layer

Sets = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class Flag:
    spec: str
    verdict: str
    variable: str | None = None  # of the environment
    note: str = ""
    option: str = ""  # its key
    sets: Sets | None = None  # from what was given to values by the name of the option
    ok: tuple[str, ...] = ()
    off: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return _names(self.spec.partition(" / ")[0])

    @property
    def negations(self) -> tuple[str, ...]:
        return _names(self.spec.partition(" / ")[2])

    @property
    def hint(self) -> str:
        """What its value is called; "" where it takes none."""
        return self.spec.partition(" / ")[0].split(", ")[-1].partition(" ")[2]

    @property
    def has_two(self) -> bool:
        """Whether it takes two values."""
        return bool(re.fullmatch(r"[A-Z]+ [A-Z]+", self.hint))

    @property
    def long_name(self) -> str:
        return next((name for name in self.names if name.startswith("--")), self.names[0])


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"(?:^|, )(--?[A-Za-z][\w.-]*)", text))


def same(spec: str, option: str, variable: str | None = None) -> Flag:
    return Flag(spec, "same", variable, option=option)


def maps(spec: str, note: str, sets: Sets, variable: str | None = None) -> Flag:
    return Flag(spec, "maps", variable, note, sets=sets)


def already(spec: str, note: str, variable: str | None = None, off: str = "") -> Flag:
    return Flag(spec, "already", variable, note, off=off)


def no(spec: str, note: str, variable: str | None = None, ok: tuple[str, ...] = ()) -> Flag:
    return Flag(spec, "no", variable, note, ok=ok)


def _scaled(text: str) -> dict[str, Any]:
    """--lora-scaled FILE:SCALE as --lora writes it."""
    return {"model_adapters": re.sub(r":(-?[\d.]+)(?=,|$)", r"@\1", text)}


def _unified(text: str) -> dict[str, Any]:
    """One pool of KV, as llamasrv always has it; what differs is how long one sequence may become in it."""
    return {"engine_ctx_per_sequence": "all" if text == "on" else "share"}


_ON_THE_HUB = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)/(?:resolve|blob|raw)/([\w.-]+)/([^?#]+\.gguf)(?:[?#].*)?"
)


def _model_url(text: str) -> dict[str, Any]:
    found = _ON_THE_HUB.fullmatch(text)
    if found is None:
        raise ValueError("must be a .gguf file on huggingface.co; fetch others yourself, and give --model FILE")
    repo, revision, file = found.groups()
    return {"model_hf_repo": repo if revision == "main" else f"{repo}@{revision}", "model_hf_file": file}


def _idle_slots(text: str) -> dict[str, Any]:
    """Whether idle prefixes make room in KV for those that are computed, and wait in host memory."""
    return {} if text == "on" else {"cache_idle_cells": 16_777_216}


def _on_the_cpu(pattern: str) -> Sets:
    """The tensors of the first N layers that have the pattern stay on the CPU."""

    def sets(text: str) -> dict[str, Any]:
        if not re.fullmatch(r"\d{1,4}", text):
            raise ValueError("must be a whole number, 0 or more")
        return {"engine_override_tensor": [f"{of_layer(layer, pattern)}=CPU" for layer in range(int(text))]}

    return sets


def _rope_scale(text: str) -> dict[str, Any]:
    try:
        return {"engine_rope_freq_scale": 1 / float(text)}
    except (ValueError, ZeroDivisionError):
        raise ValueError("must be a number above 0") from None


_SPEC_TYPES = {"draft-simple": "draft", "ngram-simple": "ngram", "ngram-map-k": "ngram", "ngram-map-k4v": "ngram",
               "ngram-mod": "ngram", "ngram-cache": "ngram", "none": "off"}  # fmt: skip


def _spec(text: str) -> dict[str, Any]:
    """llama-server's kinds of drafts."""
    kinds = text.split(",")
    unknown = [kind for kind in kinds if kind not in _SPEC_TYPES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not there; there are {', '.join(_SPEC_TYPES)}")
    wanted = {_SPEC_TYPES[kind] for kind in kinds} - {"off"}
    return {"engine_spec": wanted.pop() if len(wanted) == 1 else "auto" if wanted else "off"}


_VERBOSITY = {"0": "error", "1": "error", "2": "warning", "3": "info", "4": "debug", "5": "debug"}


def _checkpoints(text: str) -> dict[str, Any]:
    if not re.fullmatch(r"-?\d{1,6}", text):
        raise ValueError("must be a whole number")
    return {"cache_checkpoints": 0} if int(text) == 0 else {}


def _verbosity(text: str) -> dict[str, Any]:
    if text not in _VERBOSITY:
        raise ValueError("must be a whole number, 0 to 5")
    return {"log_level": _VERBOSITY[text]}


def _masked(text: str) -> dict[str, Any]:
    """--cpu-mask 0xF as the numbers of the CPUs."""
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,256}", text) or not int(text, 16):
        raise ValueError("must be a mask in hexadecimal such as 0xF")
    mask = int(text, 16)
    return {"engine_cpu_range": [str(cpu) for cpu in range(mask.bit_length()) if mask >> cpu & 1]}


_PINNING = "the system moves threads between the CPUs of --cpu-range"
_ONE_SET = "the same threads compute steps of one row and of many"
_AS_TARGET = "a draft model runs with the settings of its target"
_DRAFT_PLACE = "a draft model lies where its target does; --spec-draft-ngl 0 keeps it on the CPU"
_DOWNLOADS = "name the repository: --hf-repo OWNER/REPO:QUANT, or llamasrv pull"
_TOOLS = "llamasrv runs no programs for clients; give tools with the request, and run them in the client"
_VIDEO = "videos are not taken; send some of their frames as images"

FLAGS: tuple[Flag, ...] = (
    # The program
    already("-h, --help, --usage", "the help of llamasrv"),
    already("--version", "the version of llamasrv"),
    no("-cl, --cache-list", "use: llamasrv models"),
    no("--completion-bash", "use: _LLAMASRV_COMPLETE=bash_source llamasrv"),
    # Threads
    same("-t, --threads N", "engine.threads", "LLAMA_ARG_THREADS"),
    same("-tb, --threads-batch N", "engine.threads_batch"),
    maps("-C, --cpu-mask M", "--cpu-range", _masked),
    same("-Cr, --cpu-range lo-hi", "engine.cpu_range"),
    no("--cpu-strict <0|1>", _PINNING, ok=("0",)),
    same("--prio N", "engine.prio"),
    same("--poll <0...100>", "engine.poll"),
    no("-Cb, --cpu-mask-batch M", f"{_ONE_SET}: --cpu-mask"),
    no("-Crb, --cpu-range-batch lo-hi", f"{_ONE_SET}: --cpu-range"),
    no("--cpu-strict-batch <0|1>", _PINNING, ok=("0",)),
    no("--prio-batch N", f"{_ONE_SET}: --prio", ok=("0",)),
    already("--poll-batch <0|1>", f"{_ONE_SET}: --poll"),
    already("--threads-http N", "requests are read by one event loop, not by threads", "LLAMA_ARG_THREADS_HTTP"),
    # Context and batches
    same("-c, --ctx-size N", "engine.ctx_size", "LLAMA_ARG_CTX_SIZE"),
    same("-n, --predict, --n-predict N", "limits.n_predict", "LLAMA_ARG_N_PREDICT"),
    same("-b, --batch-size N", "engine.batch_size", "LLAMA_ARG_BATCH"),
    same("-ub, --ubatch-size N", "engine.ubatch_size", "LLAMA_ARG_UBATCH"),
    same("--keep N", "engine.keep"),
    same("-np, --parallel N", "engine.parallel", "LLAMA_ARG_N_PARALLEL"),
    already("-cb, --cont-batching / -nocb, --no-cont-batching", "sequences join and leave at every step",
            "LLAMA_ARG_CONT_BATCHING", off="--parallel 1 computes one sequence after the other"),
    maps("-kvu, --kv-unified / -no-kvu, --no-kv-unified", "--ctx-per-sequence all, or share", _unified,
         "LLAMA_ARG_KV_UNIFIED"),
    same("--kv-unified-per-slot N", "engine.ctx_per_sequence", "LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
    same("--context-shift / --no-context-shift", "engine.context_shift", "LLAMA_ARG_CONTEXT_SHIFT"),
    already("--perf / --no-perf", "timings are in every reply and in /metrics", "LLAMA_ARG_PERF"),
    already("-e, --escape / --no-escape", "there is no prompt on the command line"),
    already("--warmup / --no-warmup", "a model is warmed up while it loads", off="the first request would be slow"),
    already("-dt, --defrag-thold N", "llama.cpp needs it no more", "LLAMA_ARG_DEFRAG_THOLD"),
    already("--backend-sampling, -bs", "samplers run where they are fastest; what they choose is the same",
            "LLAMA_ARG_BACKEND_SAMPLING"),
    # Prefixes
    same("-cram, --cache-ram N", "cache.ram", "LLAMA_ARG_CACHE_RAM"),
    maps("--cache-idle-slots / --no-cache-idle-slots", "--cache-idle-cells: idle prefixes leave KV, or stay",
         _idle_slots, "LLAMA_ARG_CACHE_IDLE_SLOTS"),
    already("--cache-prompt / --no-cache-prompt", "prefixes are reused", "LLAMA_ARG_CACHE_PROMPT",
            off="send cache_prompt: false with the request"),
    already("--cache-reuse N", "prefixes of any length are reused; a part that has moved is computed anew",
            "LLAMA_ARG_CACHE_REUSE"),
    already("-sps, --slot-prompt-similarity SIMILARITY", "the longest prefix that any sequence computed is reused"),
    maps("-ctxcp, --ctx-checkpoints, --swa-checkpoints N", "0: --cache-checkpoints 0; else memory bounds them",
         _checkpoints, "LLAMA_ARG_CTX_CHECKPOINTS"),
    already("-cms, --checkpoint-min-step N", "checkpoints are kept where prompts are likely to part",
            "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"),
    same("--slot-save-path PATH", "cache.slot_save_path"),
    no("-lcs, --lookup-cache-static FNAME", "drafts are looked up in the text that is there, not in files"),
    no("-lcd, --lookup-cache-dynamic FNAME", "drafts are looked up in the text that is there, not in files"),
    # How the model is computed
    same("-fa, --flash-attn [on|off|auto]", "engine.flash_attn", "LLAMA_ARG_FLASH_ATTN"),
    same("-ctk, --cache-type-k TYPE", "engine.cache_type_k", "LLAMA_ARG_CACHE_TYPE_K"),
    same("-ctv, --cache-type-v TYPE", "engine.cache_type_v", "LLAMA_ARG_CACHE_TYPE_V"),
    same("--rpc SERVERS", "engine.rpc", "LLAMA_ARG_RPC"),
    same("-ngl, --gpu-layers, --n-gpu-layers N", "engine.n_gpu_layers", "LLAMA_ARG_N_GPU_LAYERS"),
    same("--swa-full", "engine.swa_full", "LLAMA_ARG_SWA_FULL"),
    same("--rope-scaling {none,linear,yarn}", "engine.rope_scaling", "LLAMA_ARG_ROPE_SCALING_TYPE"),
    maps("--rope-scale N", "--rope-freq-scale 1/N", _rope_scale, "LLAMA_ARG_ROPE_SCALE"),
    same("--rope-freq-base N", "engine.rope_freq_base", "LLAMA_ARG_ROPE_FREQ_BASE"),
    same("--rope-freq-scale N", "engine.rope_freq_scale", "LLAMA_ARG_ROPE_FREQ_SCALE"),
    same("--yarn-orig-ctx N", "engine.yarn_orig_ctx", "LLAMA_ARG_YARN_ORIG_CTX"),
    same("--yarn-ext-factor N", "engine.yarn_ext_factor", "LLAMA_ARG_YARN_EXT_FACTOR"),
    same("--yarn-attn-factor N", "engine.yarn_attn_factor", "LLAMA_ARG_YARN_ATTN_FACTOR"),
    same("--yarn-beta-slow N", "engine.yarn_beta_slow", "LLAMA_ARG_YARN_BETA_SLOW"),
    same("--yarn-beta-fast N", "engine.yarn_beta_fast", "LLAMA_ARG_YARN_BETA_FAST"),
    same("-kvo, --kv-offload / -nkvo, --no-kv-offload", "engine.kv_offload", "LLAMA_ARG_KV_OFFLOAD"),
    same("--repack / -nr, --no-repack", "engine.repack", "LLAMA_ARG_REPACK"),
    no("--no-host", "llama.cpp chooses the buffers", "LLAMA_ARG_NO_HOST"),
    same("-lm, --load-mode MODE", "engine.load_mode", "LLAMA_ARG_LOAD_MODE"),
    maps("--mlock", "--load-mode mmap+mlock", lambda text: {"engine_load_mode": "mmap+mlock"}),
    maps("--no-mmap", "--load-mode none", lambda text: {"engine_load_mode": "none"}),
    same("-lzm, --lazy-mode MODE", "engine.lazy_mode", "LLAMA_ARG_LAZY_MODE"),
    same("--numa TYPE", "engine.numa", "LLAMA_ARG_NUMA"),
    same("-dev, --device <dev1,dev2,..>", "engine.device", "LLAMA_ARG_DEVICE"),
    maps("--list-devices", "names the devices, and ends", lambda text: {}),
    same("-ot, --override-tensor <tensor name pattern>=<buffer type>,...", "engine.override_tensor",
         "LLAMA_ARG_OVERRIDE_TENSOR"),
    maps("-cmoe, --cpu-moe", "--override-tensor", lambda text: {"engine_override_tensor": [f"{EXPERTS}=CPU"]},
         "LLAMA_ARG_CPU_MOE"),
    maps("-ncmoe, --n-cpu-moe N", "--override-tensor", _on_the_cpu(EXPERTS), "LLAMA_ARG_N_CPU_MOE"),
    maps("-ncffn, --n-cpu-ffn N", "--override-tensor", _on_the_cpu(DENSE), "LLAMA_ARG_N_CPU_FFN"),
    same("-sm, --split-mode {none,layer,row,tensor}", "engine.split_mode", "LLAMA_ARG_SPLIT_MODE"),
    same("-ts, --tensor-split N0,N1,N2,...", "engine.tensor_split", "LLAMA_ARG_TENSOR_SPLIT"),
    same("-mg, --main-gpu INDEX", "engine.main_gpu", "LLAMA_ARG_MAIN_GPU"),
    same("-fit, --fit [on|off]", "engine.fit", "LLAMA_ARG_FIT"),
    same("-fitt, --fit-target MiB0,MiB1,MiB2,...", "engine.fit_target", "LLAMA_ARG_FIT_TARGET"),
    same("-fitc, --fit-ctx N", "engine.fit_ctx", "LLAMA_ARG_FIT_CTX"),
    same("--check-tensors", "engine.check_tensors"),
    same("--override-kv KEY=TYPE:VALUE,...", "engine.override_kv"),
    same("--op-offload / --no-op-offload", "engine.op_offload"),
    # Adapters
    same("--lora FNAME", "model.adapters"),
    maps("--lora-scaled FNAME:SCALE,...", "--lora FNAME@SCALE", _scaled),
    already("--lora-init-without-apply", "an adapter counts where a request or POST /lora-adapters names it"),
    same("--control-vector FNAME", "model.control_vectors"),
    maps("--control-vector-scaled FNAME:SCALE,...", "--control-vector FNAME@SCALE",
         lambda text: {"model_control_vectors": _scaled(text)["model_adapters"]}),
    maps("--control-vector-layer-range START END", "--control-vector-layers START-END",
         lambda text: {"model_control_vector_layers": text.replace(" ", "-")}),
    # Which model
    same("-m, --model FNAME", "model.path", "LLAMA_ARG_MODEL"),
    maps("-mu, --model-url MODEL_URL", "--hf-repo and --hf-file, of a file on huggingface.co", _model_url,
         "LLAMA_ARG_MODEL_URL"),
    no("-dr, --docker-repo [<repo>/]<model>[:quant]", _DOWNLOADS, "LLAMA_ARG_DOCKER_REPO"),
    same("-hf, -hfr, --hf-repo <user>/<model>[:quant]", "model.hf_repo", "LLAMA_ARG_HF_REPO"),
    same("-hff, --hf-file FILE", "model.hf_file", "LLAMA_ARG_HF_FILE"),
    no("-hft, --hf-token TOKEN", "put it into the environment, as HF_TOKEN: everybody may read a command line"),
    same("--offline", "model.offline", "LLAMA_ARG_OFFLINE"),
    same("-a, --alias STRING", "model.alias", "LLAMA_ARG_ALIAS"),
    same("--tags STRING", "model.tags", "LLAMA_ARG_TAGS"),
    same("--models-dir PATH", "models.dir", "LLAMA_ARG_MODELS_DIR"),
    same("--models-preset PATH", "models.preset", "LLAMA_ARG_MODELS_PRESET"),
    same("--models-max N", "models.max", "LLAMA_ARG_MODELS_MAX"),
    same("--models-autoload / --no-models-autoload", "models.autoload", "LLAMA_ARG_MODELS_AUTOLOAD"),
    same("--sleep-idle-seconds SECONDS", "model.sleep_idle_seconds"),
    # The log
    maps("--log-disable", "errors alone", lambda text: {"log_level": "error", "log_requests": False}),
    same("--log-file FNAME", "log.file", "LLAMA_ARG_LOG_FILE"),
    maps("--log-jsonl / --no-log-jsonl", "--log-format json",
         lambda text: {"log_format": "json" if text == "on" else "text"}, "LLAMA_ARG_LOG_JSONL"),
    already("--log-colors [on|off|auto]", "the log has no colours", "LLAMA_ARG_LOG_COLORS"),
    same("-v, --verbose, --log-verbose", "log.verbose"),
    maps("-lv, --verbosity, --log-verbosity N", "--log-level", _verbosity, "LLAMA_ARG_LOG_VERBOSITY"),
    already("--log-prefix / --no-log-prefix", "a line begins with its level", "LLAMA_ARG_LOG_PREFIX"),
    already("--log-timestamps / --no-log-timestamps", "a line begins with the time", "LLAMA_ARG_LOG_TIMESTAMPS"),
    no("--log-prompts-dir PATH", "llamasrv writes nothing down that clients send"),
    # Sampling
    same("--samplers SAMPLERS", "sampling.samplers"),
    same("-s, --seed SEED", "sampling.seed"),
    no("--sampler-seq, --sampling-seq SEQUENCE", "write the names: --samplers top_k;temperature"),
    same("--ignore-eos", "sampling.ignore_eos"),
    same("--temp, --temperature N", "sampling.temp", "LLAMA_ARG_TEMPERATURE"),
    same("--top-k N", "sampling.top_k", "LLAMA_ARG_TOP_K"),
    same("--top-p N", "sampling.top_p", "LLAMA_ARG_TOP_P"),
    same("--min-p N", "sampling.min_p", "LLAMA_ARG_MIN_P"),
    same("--top-nsigma, --top-n-sigma N", "sampling.top_n_sigma"),
    same("--xtc-probability N", "sampling.xtc_probability"),
    same("--xtc-threshold N", "sampling.xtc_threshold"),
    same("--typical, --typical-p N", "sampling.typical"),
    same("--repeat-last-n N", "sampling.repeat_last_n"),
    same("--repeat-penalty N", "sampling.repeat_penalty", "LLAMA_ARG_REPEAT_PENALTY"),
    same("--presence-penalty N", "sampling.presence_penalty", "LLAMA_ARG_PRESENCE_PENALTY"),
    same("--frequency-penalty N", "sampling.frequency_penalty", "LLAMA_ARG_FREQUENCY_PENALTY"),
    same("--dry-multiplier N", "sampling.dry_multiplier"),
    same("--dry-base N", "sampling.dry_base"),
    same("--dry-allowed-length N", "sampling.dry_allowed_length"),
    same("--dry-penalty-last-n N", "sampling.dry_penalty_last_n"),
    no("--dry-sequence-breaker STRING", "send dry_sequence_breakers with the request"),
    no("--adaptive-target N", "there is no adaptive-p sampler; use --min-p or --top-n-sigma"),
    no("--adaptive-decay N", "there is no adaptive-p sampler; use --min-p or --top-n-sigma"),
    same("--dynatemp-range N", "sampling.dynatemp_range"),
    same("--dynatemp-exp N", "sampling.dynatemp_exp"),
    same("--mirostat N", "sampling.mirostat"),
    same("--mirostat-lr N", "sampling.mirostat_lr"),
    same("--mirostat-ent N", "sampling.mirostat_ent"),
    no("-l, --logit-bias TOKEN_ID(+/-)BIAS", "send logit_bias with the request"),
    no("--grammar GRAMMAR", "send grammar with the request"),
    no("--grammar-file FNAME", "send grammar with the request"),
    no("-j, --json-schema SCHEMA", "send response_format with the request"),
    no("-jf, --json-schema-file FILE", "send response_format with the request"),
    no("-r, --reverse-prompt PROMPT", "send stop with the request"),
    no("-sp, --special", "special tokens are told apart from text; return_tokens shows them"),
    no("--spm-infill", "infill uses the order that the model's own tokens ask for"),
    # Embeddings
    same("--pooling {none,mean,cls,last,rank}", "engine.pooling", "LLAMA_ARG_POOLING"),
    no("--embd-normalize N", "send embd_normalize with the request", ok=("2",)),
    same("--embedding, --embeddings", "engine.embeddings", "LLAMA_ARG_EMBEDDINGS"),
    maps("--rerank, --reranking", "--pooling rank", lambda text: {"engine_pooling": "rank"}, "LLAMA_ARG_RERANKING"),
    # Media
    same("-mm, --mmproj FILE", "model.mmproj", "LLAMA_ARG_MMPROJ"),
    no("-mmu, --mmproj-url URL", _DOWNLOADS, "LLAMA_ARG_MMPROJ_URL"),
    same("--mmproj-auto / --no-mmproj, --no-mmproj-auto", "model.mmproj_auto", "LLAMA_ARG_MMPROJ_AUTO"),
    same("--mmproj-offload / --no-mmproj-offload", "engine.mmproj_offload", "LLAMA_ARG_MMPROJ_OFFLOAD"),
    no("-mmdev, --mmproj-device DEVICE", "the projector computes where the model does, or with --no-mmproj-offload on "
       "the CPU", "MTMD_BACKEND_DEVICE"),
    same("--image-min-tokens N", "model.image_min_tokens", "LLAMA_ARG_IMAGE_MIN_TOKENS"),
    same("--image-max-tokens N", "model.image_max_tokens", "LLAMA_ARG_IMAGE_MAX_TOKENS"),
    already("--mtmd-batch-max-tokens N", "images are encoded beside the model, which goes on meanwhile",
            "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"),
    no("--video-fps N", _VIDEO, "LLAMA_ARG_VIDEO_FPS"),
    no("--video-timestamp-interval N", _VIDEO, "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL"),
    no("--video-ffmpeg-dir DIR", _VIDEO, "LLAMA_ARG_VIDEO_FFMPEG_DIR"),
    same("--media-path PATH", "media.path"),
    # Where it listens, and whom it answers
    same("--host HOST", "server.host", "LLAMA_ARG_HOST"),
    same("--port PORT", "server.port", "LLAMA_ARG_PORT"),
    same("--reuse-port", "server.reuse_port", "LLAMA_ARG_REUSE_PORT"),
    no("--path PATH", "let nginx serve files: conf/nginx.conf", "LLAMA_ARG_STATIC_PATH"),
    same("--cors-origins ORIGINS", "server.cors_origins", "LLAMA_ARG_CORS_ORIGINS"),
    no("--cors-methods METHODS", "each route answers with its own methods", "LLAMA_ARG_CORS_METHODS"),
    no("--cors-headers HEADERS", "the headers that clients of these APIs send are allowed", "LLAMA_ARG_CORS_HEADERS",
       ok=("*",)),
    no("--cors-credentials / --no-cors-credentials", "there are no cookies; pages send their key in a header",
       "LLAMA_ARG_CORS_CREDENTIALS"),
    same("--api-prefix PREFIX", "server.api_prefix", "LLAMA_ARG_API_PREFIX"),
    same("--api-key KEY", "server.api_key", "LLAMA_API_KEY"),
    same("--api-key-file FNAME", "server.api_key_file", "LLAMA_ARG_API_KEY_FILE"),
    no("--ssl-key-file FNAME", "let nginx speak TLS: conf/nginx.conf", "LLAMA_ARG_SSL_KEY_FILE"),
    no("--ssl-cert-file FNAME", "let nginx speak TLS: conf/nginx.conf", "LLAMA_ARG_SSL_CERT_FILE"),
    same("-to, --timeout N", "limits.timeout", "LLAMA_ARG_TIMEOUT"),
    same("--sse-ping-interval N", "server.keepalive", "LLAMA_ARG_SSE_PING_INTERVAL"),
    # Pages and tools
    same("--ui, --webui / --no-ui, --no-webui", "server.ui", "LLAMA_ARG_UI"),
    already("--ui-config, --webui-config JSON", "the pages are llamasrv's, and keep their settings in the browser",
            "LLAMA_ARG_UI_CONFIG"),
    already("--ui-config-file, --webui-config-file PATH",
            "the pages are llamasrv's, and keep their settings in the browser", "LLAMA_ARG_UI_CONFIG_FILE"),
    no("--ui-mcp-proxy, --webui-mcp-proxy / --no-ui-mcp-proxy, --no-webui-mcp-proxy", _TOOLS, "LLAMA_ARG_UI_MCP_PROXY"),
    no("--tools TOOL1,TOOL2,...", _TOOLS, "LLAMA_ARG_TOOLS"),
    no("--tools-runtime OPTION", _TOOLS, "LLAMA_ARG_TOOLS_RUNTIME"),
    no("--mcp-servers-config PATH", _TOOLS, "LLAMA_ARG_MCP_SERVERS_CONFIG"),
    no("--mcp-servers-json JSON", _TOOLS, "LLAMA_ARG_MCP_SERVERS_JSON"),
    no("-ag, --agent / -no-ag, --no-agent", _TOOLS, "LLAMA_ARG_AGENT"),
    # Routes
    same("--metrics", "server.metrics", "LLAMA_ARG_ENDPOINT_METRICS"),
    same("--props", "server.props", "LLAMA_ARG_ENDPOINT_PROPS"),
    same("--slots / --no-slots", "server.slots", "LLAMA_ARG_ENDPOINT_SLOTS"),
    # Chat
    already("--jinja / --no-jinja", "templates are always Jinja", "LLAMA_ARG_JINJA"),
    same("--reasoning-format FORMAT", "model.reasoning_format", "LLAMA_ARG_THINK"),
    same("-rea, --reasoning [on|off|auto]", "model.reasoning", "LLAMA_ARG_REASONING"),
    same("--reasoning-effort LEVEL", "model.reasoning_effort", "LLAMA_ARG_REASONING_EFFORT"),
    same("--reasoning-budget N", "model.reasoning_budget", "LLAMA_ARG_THINK_BUDGET"),
    no("--reasoning-budget-message MESSAGE", "the block of reasoning is closed without a message",
       "LLAMA_ARG_THINK_BUDGET_MESSAGE"),
    already("--reasoning-preserve / --no-reasoning-preserve", "what a client sends back of its reasoning is handed to "
            "the template", "LLAMA_ARG_REASONING_PRESERVE", off="leave reasoning_content out of the messages"),
    same("--chat-template JINJA_TEMPLATE", "model.chat_template", "LLAMA_ARG_CHAT_TEMPLATE"),
    same("--chat-template-file JINJA_TEMPLATE_FILE", "model.chat_template_file", "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    same("--chat-template-kwargs STRING", "model.chat_template_kwargs", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"),
    no("--skip-chat-parsing / --no-skip-chat-parsing", "use /v1/completions, whose text is not taken apart",
       "LLAMA_ARG_SKIP_CHAT_PARSING"),
    already("--prefill-assistant / --no-prefill-assistant", "a last message of the assistant is continued",
            "LLAMA_ARG_PREFILL_ASSISTANT", off="send add_generation_prompt: true with the request"),
    # Speculation
    *(already(spec, _AS_TARGET, variable) for spec, variable in (
        ("--spec-draft-type-k, -ctkd, --cache-type-k-draft TYPE", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
        ("--spec-draft-type-v, -ctvd, --cache-type-v-draft TYPE", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
        ("--spec-draft-threads, -td, --threads-draft N", None),
        ("--spec-draft-threads-batch, -tbd, --threads-batch-draft N", None),
        ("--spec-draft-cpu-mask, -Cd, --cpu-mask-draft M", None),
        ("--spec-draft-cpu-range, -Crd, --cpu-range-draft lo-hi", None),
        ("--spec-draft-cpu-strict, --cpu-strict-draft <0|1>", None),
        ("--spec-draft-prio, --prio-draft N", None),
        ("--spec-draft-poll, --poll-draft <0|1>", None),
        ("--spec-draft-cpu-mask-batch, -Cbd, --cpu-mask-batch-draft M", None),
        ("--spec-draft-cpu-strict-batch, --cpu-strict-batch-draft <0|1>", None),
        ("--spec-draft-prio-batch, --prio-batch-draft N", None),
        ("--spec-draft-poll-batch, --poll-batch-draft <0|1>", None),
        ("--spec-draft-backend-sampling / --no-spec-draft-backend-sampling",
         "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING"),
    )),
    *(no(spec, _DRAFT_PLACE, variable) for spec, variable in (
        ("--spec-draft-override-tensor, -otd, --override-tensor-draft <tensor name pattern>=<buffer type>,...", None),
        ("--spec-draft-cpu-moe, -cmoed, --cpu-moe-draft", "LLAMA_ARG_SPEC_DRAFT_CPU_MOE"),
        ("--spec-draft-n-cpu-moe, --spec-draft-ncmoe, -ncmoed, --n-cpu-moe-draft N",
         "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE"),
        ("--spec-draft-device, -devd, --device-draft <dev1,dev2,..>", None),
    )),
    same("--spec-draft-hf, -hfd, -hfrd, --hf-repo-draft <user>/<model>[:quant]", "model.draft_repo",
         "LLAMA_ARG_SPEC_DRAFT_HF_REPO"),
    same("--spec-draft-model, -md, --model-draft FNAME", "model.draft", "LLAMA_ARG_SPEC_DRAFT_MODEL"),
    same("--spec-draft-ngl, -ngld, --gpu-layers-draft, --n-gpu-layers-draft N", "engine.draft_n_gpu_layers",
         "LLAMA_ARG_N_GPU_LAYERS_DRAFT"),
    same("--spec-draft-n-max N", "engine.draft_max", "LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    maps("--spec-type LIST", "--spec: none is off, draft-simple is draft, ngram-... is ngram; both are auto", _spec,
         "LLAMA_ARG_SPEC_TYPE"),
    *(already(spec, "how many tokens are tried is chosen in each step, by what they cost and how likely they are",
              variable) for spec, variable in (
        ("--spec-draft-n-min N", "LLAMA_ARG_SPEC_DRAFT_N_MIN"),
        ("--spec-draft-p-split, --draft-p-split P", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT"),
        ("--spec-draft-p-min, --draft-p-min P", "LLAMA_ARG_SPEC_DRAFT_P_MIN"),
        ("--spec-ngram-mod-n-min N", None),
        ("--spec-ngram-mod-n-max N", None),
        ("--spec-ngram-mod-n-match N", None),
        ("--spec-ngram-simple-size-n N", None),
        ("--spec-ngram-simple-size-m N", None),
        ("--spec-ngram-simple-min-hits N", None),
        ("--spec-ngram-map-k-size-n N", None),
        ("--spec-ngram-map-k-size-m N", None),
        ("--spec-ngram-map-k-min-hits N", None),
        ("--spec-ngram-map-k4v-size-n N", None),
        ("--spec-ngram-map-k4v-size-m N", None),
        ("--spec-ngram-map-k4v-min-hits N", None),
        ("--spec-default", None),
    )),
    no("--spec-synth-len L", "its output would be no model's", "LLAMA_ARG_SPEC_SYNTH_LEN"),
    no("--spec-synth-rates P0,P1,...", "its output would be no model's", "LLAMA_ARG_SPEC_SYNTH_RATES"),
    *(no(spec, "llama-server took it away, too; use --spec-draft-n-max", variable) for spec, variable in (
        ("--draft, --draft-n, --draft-max N", "LLAMA_ARG_DRAFT_MAX"),
        ("--draft-min, --draft-n-min N", "LLAMA_ARG_DRAFT_MIN"),
        ("--spec-ngram-size-n N", None),
        ("--spec-ngram-size-m N", None),
        ("--spec-ngram-min-hits N", None),
    )),
    *(no(spec, _DOWNLOADS) for spec in (
        "--embd-gemma-default", "--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default",
        "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default", "--gpt-oss-20b-default",
        "--gpt-oss-120b-default", "--vision-gemma-4b-default", "--vision-gemma-12b-default",
    )),
)  # fmt: skip
