"""Converts values of the flags and variables of vLLM, TGI, LM Studio and Ollama to option values.

Each function takes the given text and returns values by option name, or raises ValueError with the expected form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from llamasrv.config.foreign_flag import Sets

OLLAMA_PORT = 11434
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "ns": 1e-9}  # seconds
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def into(*names: str) -> Sets:
    """For a flag whose text is a valid value of these options."""
    return lambda text: dict.fromkeys(names, text)


def tokens(text: str) -> dict[str, Any]:
    """vLLM's length of a sequence: 8192, 8k (8,000), 8K (8,192), auto."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([kmgKMG]?)", text.strip())
    if text.strip().lower() in ("auto", "-1"):
        return {}
    if match is None:
        raise ValueError("must be a number of tokens, such as 8192 or 8k")
    return {"engine_ctx_per_sequence": int(float(match[1]) * _FACTORS[match[2]])}


def seconds_of(text: str) -> float:
    """Seconds of a duration in Go's notation: 5m, 1h30m, 300; negative: for ever."""
    text = text.strip()
    if re.fullmatch(r"-?\d{1,9}(\.\d{1,9})?", text):
        return float(text)
    parts = re.findall(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|us|ns|m|s)", text)
    if "".join(map("".join, parts)) != text.lstrip("-") or not parts:
        raise ValueError("must be a duration such as 5m or 300")
    seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
    return -seconds if text.startswith("-") else seconds


def keep_alive(text: str) -> dict[str, Any]:
    seconds = seconds_of(text)
    return {"models_keep_alive": -1.0 if seconds < 0 else seconds}


def load_timeout(text: str) -> dict[str, Any]:
    seconds = seconds_of(text)
    return {"models_load_timeout": 86_400.0 if seconds <= 0 else seconds}


def ollama_host(text: str) -> dict[str, Any]:
    """OLLAMA_HOST: [SCHEME://]HOST[:PORT]."""
    match = re.fullmatch(
        r"(?:(https?)://)?(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]*)(?::(\d{1,5}))?(?:/\S*)?", text.strip().strip("\"'")
    )
    if match is None:
        raise ValueError("must be HOST or HOST:PORT")
    default = {"http": 80, "https": 443}.get(match[1] or "", OLLAMA_PORT)
    return {"server_host": match[2].strip("[]") or "127.0.0.1", "server_port": int(match[3] or default)}


def cache_type(text: str) -> dict[str, Any]:
    """The KV cache's type, in Ollama's or vLLM's words."""
    word = text.strip().lower()
    if word == "auto":
        return {}
    named = {"bfloat16": "bf16", "float16": "f16", "fp8": "q8_0", "fp8_e4m3": "q8_0", "fp8_e5m2": "q8_0"}
    kind = named.get(word, word)
    return {"engine_cache_type_k": kind, "engine_cache_type_v": kind}


def origins(text: str) -> dict[str, Any]:
    """Origins as a JSON list or separated by commas."""
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else text.split(",")
    except (ValueError, RecursionError):
        raise ValueError("must be a JSON list of origins") from None
    if not all(isinstance(one, str) for one in found):
        raise ValueError("must be a JSON list of origins")
    return {"server_cors_origins": [one.strip() for one in found]}


def adapters(text: str) -> dict[str, Any]:
    """vLLM's --lora-modules: NAME=FILE, or {"name": ..., "path": ...}."""
    if not text.lstrip().startswith("{"):
        return {"model_adapters": text}
    try:
        wire = json.loads(text)
        return {"model_adapters": [f"{wire['name']}={wire['path']}"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('must be NAME=FILE, or JSON with "name" and "path"') from None


_SAMPLING = {
    "temperature": "sampling_temp",
    "top_p": "sampling_top_p",
    "top_k": "sampling_top_k",
    "min_p": "sampling_min_p",
    "repetition_penalty": "sampling_repeat_penalty",
    "presence_penalty": "sampling_presence_penalty",
    "frequency_penalty": "sampling_frequency_penalty",
    "max_new_tokens": "limits_n_predict",
}


def sampling(text: str) -> dict[str, Any]:
    """vLLM's --override-generation-config."""
    wire = _object(text)
    for name in wire:
        if name not in _SAMPLING:
            raise ValueError(f"{name!r} is not one of {', '.join(_SAMPLING)}")
    return {_SAMPLING[name]: value for name, value in wire.items()}


_METHODS = {"ngram": "ngram", "draft_model": "draft", "mtp": "mtp", "deepseek_mtp": "mtp"}


def speculation(text: str) -> dict[str, Any]:
    """vLLM's --speculative-config: a method, the number of tokens, and a draft model's file."""
    wire = _object(text)
    method = wire.get("method", "draft_model" if "model" in wire else None)
    if method not in _METHODS:
        raise ValueError(f'"method" must be one of {", ".join(_METHODS)}; others need files that are not GGUF')
    values: dict[str, Any] = {"engine_spec": _METHODS[method]}
    if method == "draft_model":
        values["model_draft"] = wire.get("model")
    if "num_speculative_tokens" in wire:
        values["engine_draft_max"] = wire["num_speculative_tokens"]
    return values


def _object(text: str) -> Mapping[str, Any]:
    try:
        wire = json.loads(text)
    except (ValueError, RecursionError):
        wire = None
    if not isinstance(wire, dict):
        raise ValueError("must be a JSON object")
    return wire


def gibibytes(name: str) -> Sets:
    def sets(text: str) -> dict[str, Any]:
        if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text):
            raise ValueError("must be a number of GiB")
        return {name: f"{int(float(text) * 1024)}MiB"}

    return sets


def level(text: str) -> dict[str, Any]:
    levels = {"critical": "error", "fatal": "error", "trace": "debug", "warn": "warning"}
    return {"log_level": levels.get(text.lower(), text)}


def ollama_debug(text: str) -> dict[str, Any]:
    return {} if text.strip().lower() in ("0", "false", "f", "no", "off") else {"log_level": "debug"}


def switch(name: str, on: Any, off: Any = None) -> Sets:
    """For a variable that is true or false."""

    def sets(text: str) -> dict[str, Any]:
        is_on = text.strip().lower() in ("1", "true", "t", "yes", "on")
        value = on if is_on else off
        return {} if value is None else {name: value}

    return sets


def socket_path(text: str) -> dict[str, Any]:
    if not text.endswith(".sock"):
        raise ValueError("must end in .sock")
    return {"server_host": text}


def task(text: str) -> dict[str, Any]:
    """vLLM's --task, --runner and --convert."""
    kinds: dict[str, dict[str, Any]] = {
        "auto": {},
        "generate": {},
        "none": {},
        "transcription": {},
        "embed": {"engine_embeddings": True},
        "embedding": {"engine_embeddings": True},
        "pooling": {"engine_embeddings": True},
        "score": {"engine_pooling": "rank"},
        "rerank": {"engine_pooling": "rank"},
        "classify": {"engine_pooling": "rank"},
    }
    if text not in kinds:
        raise ValueError(f"must be one of {', '.join(kinds)}")
    return kinds[text]


def gpu_share(text: str) -> dict[str, Any]:
    """LM Studio's --gpu: max, off, auto; a share of the layers needs their number."""
    if text in ("max", "1", "1.0", "auto"):
        return {} if text == "auto" else {"engine_n_gpu_layers": "all"}
    if text in ("off", "0", "0.0"):
        return {"engine_n_gpu_layers": 0}
    raise ValueError("must be max, off or auto here; for a part of the model give its layers with --n-gpu-layers N")


def bytes_free(text: str) -> dict[str, Any]:
    if not re.fullmatch(r"\d{1,15}", text):
        raise ValueError("must be a number of bytes")
    return {"engine_fit_target": [f"{-(-int(text) // 2**20)}MiB"]} if int(text) else {}
