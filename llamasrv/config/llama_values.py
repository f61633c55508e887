"""Converts values of llama-server's flags to option values.

Each function takes the given text and returns values by option name, or raises ValueError with the expected form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llamasrv.config.foreign_flag import Sets
from llamasrv.domain.params import SAMPLER_LETTERS
from llamasrv.engine.base.tensor_names import of_layer


def scaled(text: str) -> dict[str, Any]:
    """--lora-scaled FILE:SCALE in the form of --lora."""
    return {"model_adapters": re.sub(r":(-?[\d.]+)(?=,|$)", r"@\1", text)}


def unified(text: str) -> dict[str, Any]:
    """llamasrv always has one KV pool; this only changes how long a single sequence may get."""
    return {"engine_ctx_per_sequence": "all" if text == "on" else "share"}


def agent(text: str) -> dict[str, Any]:
    return {"tools_names": ["all"]} if text == "on" else {}


_ON_THE_HUB = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)/(?:resolve|blob|raw)/([\w.-]+)/([^?#]+\.gguf)(?:[?#].*)?"
)


def model_url(text: str) -> dict[str, Any]:
    found = _ON_THE_HUB.fullmatch(text)
    if found is None:
        raise ValueError("must be a .gguf file on huggingface.co; download others yourself and use --model FILE")
    repo, revision, file = found.groups()
    return {"model_hf_repo": repo if revision == "main" else f"{repo}@{revision}", "model_hf_file": file}


def idle_slots(text: str) -> dict[str, Any]:
    """Whether idle prefixes are evicted from KV to host memory to make room for running sequences."""
    return {} if text == "on" else {"cache_idle_cells": 16_777_216}


def on_the_cpu(pattern: str) -> Sets:
    """Keep the tensors of the first N layers that match the pattern on the CPU."""

    def sets(text: str) -> dict[str, Any]:
        if not re.fullmatch(r"\d{1,4}", text):
            raise ValueError("must be a whole number, 0 or more")
        return {"engine_override_tensor": [f"{of_layer(layer, pattern)}=CPU" for layer in range(int(text))]}

    return sets


def rope_scale(text: str) -> dict[str, Any]:
    try:
        return {"engine_rope_freq_scale": 1 / float(text)}
    except (ValueError, ZeroDivisionError):
        raise ValueError("must be a number above 0") from None


def sampler_letters(text: str) -> dict[str, Any]:
    unknown = [letter for letter in text if letter not in SAMPLER_LETTERS]
    if unknown or not text:
        raise ValueError(f"must consist of the letters {''.join(SAMPLER_LETTERS)}")
    return {"sampling_samplers": [SAMPLER_LETTERS[letter] for letter in text]}


_SPEC_TYPES = {
    "draft-simple": "draft",
    "draft-mtp": "mtp",
    "ngram-simple": "ngram",
    "ngram-map-k": "ngram",
    "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram",
    "ngram-cache": "ngram",
    "none": "off",
}


def draft_kinds(text: str) -> dict[str, Any]:
    """llama-server's draft types as values of --spec."""
    kinds = text.split(",")
    unknown = [kind for kind in kinds if kind not in _SPEC_TYPES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown; use {', '.join(_SPEC_TYPES)}")
    wanted = {_SPEC_TYPES[kind] for kind in kinds} - {"off"}
    return {"engine_spec": wanted.pop() if len(wanted) == 1 else "auto" if wanted else "off"}


def draft_device(text: str) -> dict[str, Any]:
    if text.strip().lower() != "none":
        raise ValueError("must be none: otherwise a draft model is placed on its target's device")
    return {"engine_draft_n_gpu_layers": 0}


def checkpoints(text: str) -> dict[str, Any]:
    if not re.fullmatch(r"-?\d{1,6}", text):
        raise ValueError("must be a whole number")
    return {"cache_checkpoints": 0} if int(text) == 0 else {}


_VERBOSITY = {"0": "error", "1": "error", "2": "warning", "3": "info", "4": "debug", "5": "debug"}


def verbosity(text: str) -> dict[str, Any]:
    if text not in _VERBOSITY:
        raise ValueError("must be a whole number, 0 to 5")
    return {"log_level": _VERBOSITY[text]}


def masked(text: str) -> dict[str, Any]:
    """--cpu-mask 0xF as CPU numbers."""
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,256}", text) or not int(text, 16):
        raise ValueError("must be a hexadecimal mask such as 0xF")
    mask = int(text, 16)
    return {"engine_cpu_range": [str(cpu) for cpu in range(mask.bit_length()) if mask >> cpu & 1]}


def always(settings: Mapping[str, Any]) -> Sets:
    """For a flag that stands for these settings, whatever its text is."""
    return lambda text: settings
