"""The end of a choice in llama.cpp's own words: the last object of /completion, and `__verbose` elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llamasrv.domain.events import Finished, FinishReason, Usage
from llamasrv.domain.request import GenerateRequest
from llamasrv.protocols.llamacpp.props import params_body
from llamasrv.protocols.reply import RunFacts
from llamasrv.protocols.telemetry import timings

_STOP_TYPES = {
    FinishReason.STOP: "eos",
    FinishReason.TOOL_CALLS: "eos",
    FinishReason.STOP_STRING: "word",
    FinishReason.LENGTH: "limit",
    FinishReason.CONTEXT: "limit",
}


def settings_of(request: GenerateRequest) -> dict[str, Any]:
    """The settings other than sampling, as `generation_settings` repeats them."""
    most = -1 if request.max_tokens is None else request.max_tokens
    settings: dict[str, Any] = {
        "n_keep": request.keep or 0,
        "n_discard": request.discard,
        "stream": request.stream,
        "stop": list(request.stop),
        "n_probs": request.logprobs or 0,
        "max_tokens": most,
        "n_predict": most,
        "post_sampling_probs": request.sampled_probs,
    }
    if request.content is not None and request.content.kind == "gbnf":
        settings["grammar"] = request.content.value
    return settings


def generation_settings(info: RunFacts, given: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters and the other settings of a request. The bias of a banned token becomes null in JSON."""
    body = {**params_body(info.params), **given}
    if info.params.ignore_eos:
        bans = [{"token": token, "bias": -math.inf} for token in sorted(info.end_tokens)]
        body["logit_bias"] = [*body["logit_bias"], *bans]
    return body


def final_body(
    event: Finished,
    info: RunFacts,
    given: Mapping[str, Any],
    *,
    text: str,
    tokens: list[int],
    has_new_line: bool,
) -> dict[str, Any]:
    usage = event.usage or Usage()
    return {
        "index": event.choice,
        "content": text,
        "tokens": tokens,
        "id_slot": -1 if event.slot is None else event.slot,
        "stop": True,
        "model": info.model,
        "tokens_predicted": usage.completion_tokens,
        "tokens_evaluated": usage.prompt_tokens,
        "generation_settings": generation_settings(info, given),
        "prompt": info.prompt_text(event.choice),
        "has_new_line": has_new_line,
        "truncated": event.reason is FinishReason.CONTEXT or usage.forgotten_tokens > 0,
        "stop_type": _STOP_TYPES.get(event.reason, "none"),
        "stopping_word": event.stop or "",
        # The last token was never given to the model.
        "tokens_cached": usage.prompt_tokens + max(0, usage.completion_tokens - 1),
        "timings": timings(usage),
    }
