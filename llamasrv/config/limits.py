"""The options that bound what one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from llamasrv.config.field import option_field

_limits = partial(option_field, "limits")


@dataclass(frozen=True)
class LimitsSection:
    """What one request may ask for."""

    n_predict: int | None = _limits(
        "int", None, "-n", "--n-predict", "--predict", low=-1, high=16_777_216, unset=("-1",),
        help="Tokens generated for one choice where a request does not say; -1: until the context is full.",
    )  # fmt: skip
    answer_tokens: int | None = _limits(
        "int", None, "--max-answer-tokens", low=-1, high=16_777_216, unset=("-1",),
        help="Most tokens generated for one choice, also when a request asks for more; -1: until the context is full.",
    )  # fmt: skip
    timeout: float | None = _limits(
        "float", 3600.0, "-to", "--timeout", low=0.0, high=1_000_000.0, unset=("0",),
        help="Most seconds for one request, waiting included; 0 is no limit.",
    )  # fmt: skip
    body_bytes: int = _limits("size", 4 * 2**20, "--max-body-bytes", low=1024, high=2**40, help="Largest request body.")
    body_seconds: float = _limits(
        "float", 30.0, "--body-timeout", low=0.1, high=3600.0,
        help="Seconds without a byte of a request's body after which it is refused with 408.",
    )  # fmt: skip
    json_depth: int = _limits("int", 100, "--max-json-depth", low=5, high=500, help="Deepest nesting of a JSON body.")
    messages: int = _limits(
        "int", 10_000, "--max-messages", low=1, high=1_000_000, help="Most messages in one conversation."
    )
    parts: int = _limits("int", 1_000, "--max-parts", low=1, high=1_000_000, help="Most content parts of one message.")
    tools: int = _limits("int", 1_024, "--max-tools", low=1, high=65_536, help="Most tools of one request.")
    prompts: int = _limits(
        "int", 512, "--max-prompts", low=1, high=65_536, help="Most prompts of one completions request."
    )
    inputs: int = _limits(
        "int", 2048, "--max-inputs", low=1, high=65_536,
        help="Most inputs of one embeddings request, and documents of one ranking.",
    )  # fmt: skip
    choices: int = _limits(
        "int",
        128,
        "--max-choices",
        low=1,
        high=65_536,
        help="Most choices of one request: prompts times n (or best_of).",
    )
    stops: int = _limits("int", 16, "--max-stops", low=1, high=1024, help="Most stop strings of one request.")
    stop_chars: int = _limits("int", 256, "--max-stop-chars", low=1, high=65_536, help="Longest stop string.")
    logit_bias: int = _limits(
        "int", 10_000, "--max-logit-bias", low=1, high=1_000_000, help="Most entries of logit_bias."
    )
    top_logprobs: int = _limits(
        "int", 20, "--max-top-logprobs", low=0, high=1_000, help="Most alternatives told for each token."
    )
    background: int = _limits(
        "int", 16, "--max-background", low=0, high=1_000,
        help="Most responses that go on without their client at once; further ones are refused with 429.",
    )  # fmt: skip
