"""Options that limit a single request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from llamasrv.domain.option import option_field

_limits = partial(option_field, "limits")


@dataclass(frozen=True)
class LimitsSection:
    """Limits of a single request."""

    n_predict: int | None = _limits(
        "int",
        None,
        "-n",
        "--n-predict",
        "--predict",
        low=-1,
        high=16_777_216,
        unset=("-1",),
        help="Maximum tokens per choice when a request does not set one; -1: until the context is full.",
    )
    answer_tokens: int | None = _limits(
        "int",
        None,
        "--max-answer-tokens",
        low=-1,
        high=16_777_216,
        unset=("-1",),
        help="Upper bound on tokens per choice, whatever a request asks for; -1: until the context is full.",
    )
    timeout: float | None = _limits(
        "float",
        3600.0,
        "-to",
        "--timeout",
        low=0.0,
        high=1_000_000.0,
        unset=("0",),
        help="Maximum seconds per request, including waiting; 0 is no limit.",
    )
    body_bytes: int = _limits(
        "size",
        4 * 2**20,
        "--max-body-bytes",
        low=1024,
        high=2**40,
        help="Maximum size of a request body.",
    )
    body_seconds: float = _limits(
        "float",
        30.0,
        "--body-timeout",
        low=0.1,
        high=3600.0,
        help="Refuse a request with 408 if no byte of its body arrives for this many seconds.",
    )
    json_depth: int = _limits(
        "int",
        100,
        "--max-json-depth",
        low=5,
        high=500,
        help="Maximum nesting depth of a JSON body.",
    )
    json_values: int = _limits(
        "int",
        300_000,
        "--max-json-values",
        low=1000,
        high=100_000_000,
        help="Maximum keys and values of a JSON body, token ids among them. All streams pause while it is parsed: "
        "100,000 take up to 20 ms.",
    )
    messages: int = _limits(
        "int", 10_000, "--max-messages", low=1, high=1_000_000, help="Maximum messages per conversation."
    )
    parts: int = _limits("int", 1_000, "--max-parts", low=1, high=1_000_000, help="Maximum content parts per message.")
    tools: int = _limits("int", 1_024, "--max-tools", low=1, high=65_536, help="Maximum tools per request.")
    prompts: int = _limits(
        "int", 512, "--max-prompts", low=1, high=65_536, help="Maximum prompts per completions request."
    )
    inputs: int = _limits(
        "int",
        2048,
        "--max-inputs",
        low=1,
        high=65_536,
        help="Maximum inputs per embeddings request, or documents per reranking request.",
    )
    choices: int = _limits(
        "int",
        128,
        "--max-choices",
        low=1,
        high=65_536,
        help="Maximum choices per request: prompts times n (or best_of).",
    )
    decision_tokens: int = _limits(
        "int",
        262_144,
        "--max-decision-tokens",
        low=1,
        high=2**31 - 1,
        help="Maximum tokens of one request for decisions: its input once, and all of its questions.",
    )
    stops: int = _limits("int", 16, "--max-stops", low=1, high=1024, help="Maximum stop strings per request.")
    stop_chars: int = _limits(
        "int",
        256,
        "--max-stop-chars",
        low=1,
        high=65_536,
        help="Maximum length of a stop string, in characters.",
    )
    logit_bias: int = _limits(
        "int", 10_000, "--max-logit-bias", low=1, high=1_000_000, help="Maximum entries in logit_bias."
    )
    top_logprobs: int = _limits(
        "int", 20, "--max-top-logprobs", low=0, high=1_000, help="Maximum alternatives per token in top_logprobs."
    )
    background: int = _limits(
        "int",
        16,
        "--max-background",
        low=0,
        high=1_000,
        help="Maximum number of concurrent background responses; further ones get 429. With several API keys, each "
        "may use half of them.",
    )
