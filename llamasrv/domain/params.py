"""The sampling parameters of one sequence.

Names and defaults are llama.cpp's (`common_params_sampling`), so that a value copied from a llama-server
command line means the same here. Ranges are checked where a request is validated, not here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

SAMPLER_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The default order of the chain; a request may give its own, of these names and two more."""
SAMPLERS = (*SAMPLER_ORDER, "adaptive_p", "infill")
_ALIASES = {"temp": "temperature", "typical_p": "typ_p", "typical": "typ_p", "typ": "typ_p", "nucleus": "top_p"}
SAMPLER_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p",
    "x": "xtc", "t": "temperature", "a": "adaptive_p", "i": "infill",
}  # fmt: skip
"""llama.cpp's short form of an order."""


def sampler_named(name: str) -> str | None:
    """The sampler that llama.cpp knows under this name, such as `top-k` or `temp`; None if there is none."""
    plain = name.replace("-", "_").lower()
    return plain if plain in SAMPLERS else _ALIASES.get(plain)


class LogitBias:
    """What is added to the logits of tokens. Merged once for a request; its choices share the arrays, which nobody
    changes."""

    __slots__ = ("tokens", "values")

    def __init__(self, pairs: Iterable[tuple[int, float]] = ()) -> None:
        """Several for one token add up, as in llama.cpp; minus infinity bans it whatever else is added."""
        sums: dict[int, float] = {}
        for token, bias in pairs:
            sums[token] = -inf if -inf in (bias, sums.get(token)) else sums.get(token, 0.0) + bias
        ordered = sorted(sums.items())
        self.tokens = array("i", [token for token, _ in ordered])  # ascending
        self.values = array("f", [bias for _, bias in ordered])

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.tokens, self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogitBias) and self.tokens == other.tokens and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.tokens.tobytes())

    def __repr__(self) -> str:
        return f"LogitBias({list(self)})"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One sequence's sampler chain. Temperature 0 (or below) is greedy; `seed` None means a fresh one."""

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0  # of the sampler `adaptive_p`, where it is in `samplers`; negative: off
    adaptive_decay: float = 0.9
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_keep: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: LogitBias = LogitBias()
    samplers: tuple[str, ...] = SAMPLER_ORDER
