"""Bounds on what one request may ask for. Each is an option; anything beyond it is refused at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest values that are accepted."""

    body_bytes: int = 4 * 1024 * 1024
    body_seconds: float = 30.0  # max seconds without a byte of the body
    json_depth: int = 100
    json_values: int = 300_000  # keys, values and containers: parsing holds the GIL for 0.2 microseconds each
    messages: int = 10_000
    parts: int = 1_000  # content parts of one message
    tools: int = 1_024
    prompts: int = 512  # prompts of one completions request
    inputs: int = 2048  # inputs of one embeddings request, documents of one ranking
    choices: int = 128  # prompts x n, or prompts x best_of
    stops: int = 16
    stop_chars: int = 256
    logit_bias: int = 10_000
    top_logprobs: int = 20
    max_tokens: int = 2**31 - 1
    dry_breakers: int = 16
    template_kwargs: int = 64
    model_chars: int = 256
    decision_tokens: int = 262_144  # tokens of the input and all questions of one request for decisions
    media: int = 64  # images and sounds of one request
    media_marker: str = "<__media__>"  # placeholder for an image or sound in a raw prompt
    background: int = 16  # background responses at once
