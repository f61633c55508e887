"""llama-server's flags that select a model with its settings, such as --fim-qwen-7b-default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIM = {"server_port": 8012, "engine_ubatch_size": 1024, "engine_batch_size": 1024, "engine_ctx_size": 0}
_DRAFT = "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
_OSS = {
    "server_port": 8013,
    "engine_ubatch_size": 2048,
    "engine_batch_size": 32768,
    "engine_parallel": 2,
    "engine_ctx_size": 262_144,
    "sampling_temp": 1.0,
    "sampling_top_p": 1.0,
    "sampling_top_k": 0,
    "sampling_min_p": 0.01,
}
_VISION = {"server_port": 8014, "engine_ctx_size": 0}

# By flag: repository, file ("": chosen by quantisation), and values by option name.
_MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "--embd-gemma-default": (
        "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF", "embeddinggemma-300M-qat-Q4_0.gguf",
        {"server_port": 8011, "engine_ubatch_size": 2048, "engine_batch_size": 2048, "engine_parallel": 32,
         "engine_ctx_size": 65_536, "engine_embeddings": True},
    ),
    "--fim-qwen-1.5b-default": ("ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF", "qwen2.5-coder-1.5b-q8_0.gguf", _FIM),
    "--fim-qwen-3b-default": ("ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF", "qwen2.5-coder-3b-q8_0.gguf", _FIM),
    "--fim-qwen-7b-default": ("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", "qwen2.5-coder-7b-q8_0.gguf", _FIM),
    "--fim-qwen-7b-spec": (
        "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", "qwen2.5-coder-7b-q8_0.gguf", {**_FIM, "model_draft_repo": _DRAFT},
    ),
    "--fim-qwen-14b-spec": (
        "ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF", "qwen2.5-coder-14b-q8_0.gguf", {**_FIM, "model_draft_repo": _DRAFT},
    ),
    "--fim-qwen-30b-default": (
        "ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", "qwen3-coder-30b-a3b-instruct-q8_0.gguf", _FIM,
    ),
    "--gpt-oss-20b-default": ("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf", _OSS),
    "--gpt-oss-120b-default": ("ggml-org/gpt-oss-120b-GGUF", "", _OSS),
    "--vision-gemma-4b-default": ("ggml-org/gemma-3-4b-it-qat-GGUF", "", _VISION),
    "--vision-gemma-12b-default": ("ggml-org/gemma-3-12b-it-qat-GGUF", "", _VISION),
}  # fmt: skip

NAMED_MODELS: Mapping[str, Mapping[str, Any]] = {
    flag: {"model_hf_repo": repo, **({"model_hf_file": file} if file else {}), **values}
    for flag, (repo, file, values) in _MODELS.items()
}
