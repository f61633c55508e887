"""What llamasrv does with the flags of TGI and LM Studio and with Ollama's variables: one line each.

foreign_flag.py says what a line means. A line without a flag is for a variable alone.
"""

from __future__ import annotations

from llamasrv.config.foreign_flag import ForeignFlag, already, maps, no
from llamasrv.config.llama_values import always
from llamasrv.config.rival_values import (
    bytes_free,
    cache_type,
    gpu_share,
    into,
    keep_alive,
    load_timeout,
    ollama_debug,
    ollama_host,
    origins,
    switch,
    tokens,
)

_STEPS = "each step takes as much of a prompt as others can wait for: --step-target-ms"
_KERNELS = "llama.cpp chooses its kernels"
_ALL_DEVICES = "all devices are used: --device and --tensor-split choose, --split-mode says how a model is divided"
_PROGRAM = "this concerns Ollama's own program"

TGI: tuple[ForeignFlag, ...] = (
    maps("--model-id MODEL", "--model", into("model_path")),
    maps("--hostname HOST", "--host", into("server_host")),
    maps("--max-total-tokens TOKENS", "--ctx-per-sequence", tokens),
    already("--max-input-tokens, --max-input-length N", "a prompt may have whatever fits --ctx-per-sequence"),
    maps("--max-concurrent-requests N", "--queue-limit", into("engine_queue_limit")),
    maps("--max-batch-prefill-tokens N", "--batch-size", into("engine_batch_size")),
    maps("--max-batch-size N", "--parallel", into("engine_parallel")),
    maps("--max-batch-total-tokens N", "--ctx-size", into("engine_ctx_size")),
    maps("--max-best-of N", "--max-choices", into("limits_choices")),
    maps("--max-stop-sequences N", "--max-stops", into("limits_stops")),
    maps("--max-top-n-tokens N", "--max-top-logprobs", into("limits_top_logprobs")),
    maps("--max-client-batch-size N", "--max-prompts", into("limits_prompts")),
    maps("--payload-limit BYTES", "--max-body-bytes", into("limits_body_bytes")),
    already("--waiting-served-ratio RATIO", _STEPS),
    already("--max-waiting-tokens N", _STEPS),
    already("--validation-workers N", "requests are read by one event loop"),
    already("--num-shard N", _ALL_DEVICES),
    already("--sharded BOOL", _ALL_DEVICES),
    already("--cuda-graphs LIST", _KERNELS),
    already("--cuda-memory-fraction SHARE", "memory is planned from what is free: --fit-target MIB leaves more"),
    already("--disable-custom-kernels", _KERNELS),
    already("--usage-stats KIND", "nothing is sent to anyone"),
    already("--disable-grammar-support", "grammars cost nothing to requests without one"),
    already("--tokenizer-config-path PATH", "the GGUF file has it; --chat-template-file FILE replaces the template"),
    no("--quantize METHOD", "a GGUF file is quantised already: choose with hf:OWNER/REPO:QUANT"),
    maps("--kv-cache-type TYPE", "--cache-type-k and --cache-type-v", cache_type),
    maps("--lora-adapters NAME=FILE...", "--lora NAME=FILE", into("model_adapters")),
    maps("--speculate N", "--spec-draft-n-max", into("engine_draft_max")),
    maps("--json-output", "--log-format json", always({"log_format": "json"})),
    maps("--cors-allow-origin ORIGIN...", "--cors-origins", origins),
    maps("--huggingface-hub-cache PATH", "--models-dir", into("models_dir")),
    maps("--weights-cache-override PATH", "--models-dir", into("models_dir")),
    no("--otlp-endpoint URL", "set OTEL_EXPORTER_OTLP_ENDPOINT and --log-spans"),
    no("--ngrok", "this server opens no tunnels"),
)

LM_STUDIO: tuple[ForeignFlag, ...] = (
    maps("--context-length TOKENS", "--ctx-per-sequence", tokens),
    maps("--gpu SHARE", "--n-gpu-layers", gpu_share),
    maps("--identifier NAME", "--alias", into("model_alias")),
    maps("--ttl SECONDS", "--keep-alive", keep_alive),
    maps("--cors", "--cors-origins *", always({"server_cors_origins": ["*"]})),
    maps("--bind ADDRESS", "--host", into("server_host")),
    no("--estimate-only", "use: llamasrv check --model MODEL"),
)

OLLAMA: tuple[ForeignFlag, ...] = (
    maps("", "--host and --port", ollama_host, "OLLAMA_HOST"),
    maps("", "--ctx-per-sequence", into("engine_ctx_per_sequence"), "OLLAMA_CONTEXT_LENGTH"),
    maps("", "--parallel", into("engine_parallel"), "OLLAMA_NUM_PARALLEL"),
    maps("", "--models-max", into("models_max"), "OLLAMA_MAX_LOADED_MODELS"),
    maps("", "--queue-limit", into("engine_queue_limit"), "OLLAMA_MAX_QUEUE"),
    maps("", "--keep-alive", keep_alive, "OLLAMA_KEEP_ALIVE"),
    maps("", "--load-timeout", load_timeout, "OLLAMA_LOAD_TIMEOUT"),
    maps("", "--flash-attn", switch("engine_flash_attn", "on", "off"), "OLLAMA_FLASH_ATTENTION"),
    maps("", "--cache-type-k and --cache-type-v", cache_type, "OLLAMA_KV_CACHE_TYPE"),
    maps(
        "",
        "--cors-origins, beside localhost",
        lambda text: {"server_cors_origins": f"localhost,{text}"},
        "OLLAMA_ORIGINS",
    ),
    maps("", "--log-level debug", ollama_debug, "OLLAMA_DEBUG"),
    maps("", "--fit-target", bytes_free, "OLLAMA_GPU_OVERHEAD"),
    maps("", "--prefix-scope all", switch("cache_prefix_scope", "all"), "OLLAMA_MULTIUSER_CACHE"),
    already("", "--models-from ollama reads the models there", "OLLAMA_MODELS"),
    already("", _ALL_DEVICES, "OLLAMA_SCHED_SPREAD"),
    already("", _KERNELS, "OLLAMA_LLM_LIBRARY"),
    already("", _KERNELS, "OLLAMA_INTEL_GPU"),
    already("", _KERNELS, "OLLAMA_VULKAN"),
    already("", _KERNELS, "OLLAMA_NEW_ENGINE"),
    already("", "`llamasrv chat` keeps no history of lines with it", "OLLAMA_NOHISTORY"),
    already("", _PROGRAM, "OLLAMA_NOPRUNE"),
    already("", "every model runs on this machine", "OLLAMA_NO_CLOUD"),
    already("", "every model runs on this machine", "OLLAMA_REMOTES"),
    already("", _PROGRAM, "OLLAMA_EDITOR"),
    already("", _PROGRAM, "OLLAMA_TMPDIR"),
    already("", _PROGRAM, "OLLAMA_RUNNERS_DIR"),
)
