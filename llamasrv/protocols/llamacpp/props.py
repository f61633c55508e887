"""GET /props: the first request of llama.cpp's own clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

import orjson

from llamasrv.domain.params import SamplingParams

_NAMES = SamplingParams._fields
_RANDOM_SEED = 0xFFFFFFFF


# Features of llama.cpp that this server lacks, reported as switched off.
_CONSTANT: dict[str, Any] = {
    "n_keep": 0, "n_discard": 0, "n_probs": 0, "stream": False, "lora": [], "grammar": "", "grammar_lazy": False,
    "grammar_triggers": [], "preserved_tokens": [],
    "post_sampling_probs": False, "backend_sampling": False, "timings_per_token": False, "speculative.types": "none",
    "chat_format": "Content-only", "reasoning_format": "none", "reasoning_in_content": False, "generation_prompt": "",
}  # fmt: skip


def params_body(
    params: SamplingParams, *, max_tokens: int | None = None, max_biases: int | None = None
) -> dict[str, Any]:
    """Sampling parameters under llama.cpp's names, which are also ours. Shows up to `max_biases` biases; None: all."""
    body = {name: getattr(params, name) for name in _NAMES}
    body["seed"] = _RANDOM_SEED if params.seed is None else params.seed
    body["logit_bias"] = [{"token": token, "bias": bias} for token, bias in islice(params.logit_bias, max_biases)]
    body["n_predict"] = body["max_tokens"] = -1 if max_tokens is None else max_tokens
    return {**body, **_CONSTANT}


def props_body(
    *,
    params: SamplingParams,
    context: int,
    total_slots: int,
    alias: str,
    file_name: str,
    file_type: str,
    chat_template: str,
    bos_token: str = "",
    eos_token: str = "",
    build: str,
    slots: bool,
    metrics: bool,
    notice: str | None = None,
    ui: bool = False,
    tool_template: str | None = None,
    abilities: Mapping[str, bool] | None = None,
    sleeping: bool = False,
    changeable: bool = False,
    modalities: Collection[str] = (),
    media_marker: str = "",
) -> bytes:
    return orjson.dumps(
        ({"notice": notice} if notice else {})
        | ({"chat_template_tool_use": tool_template} if tool_template else {})
        | {
            "default_generation_settings": {"params": params_body(params), "n_ctx": context},
            "total_slots": total_slots,
            "model_alias": alias,
            "model_path": file_name,
            "model_ftype": file_type,
            "modalities": {"vision": "vision" in modalities, "video": False, "audio": "audio" in modalities},
            "endpoint_slots": slots,
            "endpoint_props": changeable,
            "endpoint_metrics": metrics,
            "media_marker": media_marker,
            "ui": ui,
            "ui_settings": {},
            "cors_proxy_enabled": False,
            "chat_template": chat_template,
            "chat_template_caps": abilities or {},
            "bos_token": bos_token,
            "eos_token": eos_token,
            "build_info": build,
            "is_sleeping": sleeping,
        }
    )


def router_props_body(*, most: int, autoload: bool, build: str, ui: bool) -> bytes:
    """The properties of a server that was started without a model; a model's own are requested by its name. `most`: max
    models loaded at once, 0 if only memory limits them."""
    return orjson.dumps(
        {
            "role": "router",
            "max_instances": most,
            "models_autoload": autoload,
            "model_alias": "llamasrv",
            "model_path": "none",
            "default_generation_settings": {"params": {}, "n_ctx": 0},
            "ui": ui,
            "ui_settings": {},
            "build_info": build,
            "cors_proxy_enabled": False,
        }
    )
