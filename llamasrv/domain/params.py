"""The sampling parameters of one sequence, and the samplers that take them.

Names and defaults are llama.cpp's (`common_params_sampling`), so that values from a llama-server command line mean the
same here. Ranges are checked when a request is validated, not here.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Any, NamedTuple, Protocol


class Keeps(IntEnum):
    """What a sampler preserves of its input logits, apart from tokens in its window."""

    NOTHING = 0  # drops tokens, or needs all logits
    ORDER = 1  # may change all logits, but preserves their order
    LOGITS = 2


class SamplerModel(Protocol):
    """What samplers know of a model."""

    @property
    def vocab_size(self) -> int: ...

    def window(self, last_n: int) -> int:
        """Last tokens to look at, where a negative number means all of the context."""


@dataclass(frozen=True, slots=True)
class SamplerType:
    """A sampler that requests may name. The library makes it by `llama_sampler_init_NAME`.

    The defaults are safe for any sampler: it may drop any token, and has no device implementation. That costs only
    requests that use it.
    """

    name: str
    letter: str  # in llama.cpp's short form of an order
    is_on: Callable[[SamplingParams], bool]  # whether it has an effect; it is built only then
    arguments: Callable[[SamplingParams, SamplerModel], tuple[Any, ...]]  # what the library makes it from
    init: str = ""  # its name there, if it is another
    keeps: Callable[[SamplingParams], Keeps] = lambda p: Keeps.NOTHING  # while it is on
    window: Callable[[SamplingParams], int] | None = None  # last tokens whose logits it changes; negative: all
    on_device: Callable[[SamplingParams], bool] = lambda p: False  # whether the library can run it in its graph
    chooses: bool = False  # always comes last and selects the token
    strays: bool = False  # may select a token that was not a candidate
    is_usual: bool = True  # part of the default order
    aliases: tuple[str, ...] = ()


def _penalises(p: SamplingParams) -> bool:
    moves = p.repeat_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
    return moves and p.repeat_last_n != 0


def _temperature_keeps(p: SamplingParams) -> Keeps:
    if p.dynatemp_range > 0:  # depends on the entropy of all logits
        return Keeps.NOTHING
    return Keeps.LOGITS if p.temperature == 1 else Keeps.ORDER


_TYPES = (
    SamplerType(
        "penalties", "e", _penalises, keeps=lambda p: Keeps.LOGITS, window=lambda p: p.repeat_last_n,
        arguments=lambda p, model: (
            model.vocab_size, model.window(p.repeat_last_n), p.repeat_penalty, p.frequency_penalty, p.presence_penalty,
        ),
    ),
    SamplerType(
        "dry", "d", lambda p: p.dry_multiplier > 0 and p.dry_penalty_last_n != 0,
        keeps=lambda p: Keeps.LOGITS, window=lambda p: p.dry_penalty_last_n,
        arguments=lambda p, model: (
            p.dry_multiplier, p.dry_base, p.dry_allowed_length, model.window(p.dry_penalty_last_n),
            p.dry_sequence_breakers,
        ),
    ),
    SamplerType("top_n_sigma", "s", lambda p: p.top_n_sigma > 0, lambda p, model: (p.top_n_sigma,)),
    SamplerType("top_k", "k", lambda p: p.top_k > 0, lambda p, model: (p.top_k,), on_device=lambda p: True),
    SamplerType(
        "typ_p", "y", lambda p: p.typical_p < 1, lambda p, model: (p.typical_p, p.min_keep), init="typical",
        aliases=("typical_p", "typical", "typ"),
    ),
    SamplerType(
        "top_p", "p", lambda p: p.top_p < 1, lambda p, model: (p.top_p, p.min_keep), on_device=lambda p: True,
        aliases=("nucleus",),
    ),
    SamplerType("min_p", "m", lambda p: p.min_p > 0, lambda p, model: (p.min_p, p.min_keep), on_device=lambda p: True),
    SamplerType(
        "xtc", "x", lambda p: p.xtc_probability > 0,
        lambda p, model: (p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed),
    ),
    SamplerType(
        "temperature", "t", lambda p: True,
        lambda p, model: (p.temperature, p.dynatemp_range, p.dynatemp_exponent), init="temp_ext",
        keeps=_temperature_keeps, on_device=lambda p: p.dynatemp_range <= 0, aliases=("temp",),
    ),
    SamplerType(
        "adaptive_p", "a", lambda p: True, lambda p, model: (p.adaptive_target, p.adaptive_decay, p.seed),
        keeps=lambda p: Keeps.LOGITS, chooses=True, is_usual=False,
    ),
    SamplerType("infill", "i", lambda p: True, lambda p, model: (), strays=True, is_usual=False),
)  # fmt: skip

SAMPLERS = {kind.name: kind for kind in _TYPES}
_WINDOWED = [kind for kind in _TYPES if kind.window is not None]  # they can change which token is the most likely
SAMPLER_ORDER = tuple(kind.name for kind in _TYPES if kind.is_usual)
"""The default order of the chain; a request may set its own, from all names."""
SAMPLER_LETTERS = {kind.letter: kind.name for kind in _TYPES}
"""llama.cpp's short form of an order."""
_ALIASES = {alias: kind.name for kind in _TYPES for alias in kind.aliases}


def sampler_named(name: str) -> str | None:
    """The sampler that llama.cpp calls by this name, such as `top-k` or `temp`; None if unknown."""
    plain = name.replace("-", "_").lower()
    return plain if plain in SAMPLERS else _ALIASES.get(plain)


def samplers_of(p: SamplingParams) -> list[SamplerType]:
    """The samplers that have an effect, in order. Mirostat replaces all but two; greedy sampling needs only those that
    can change which token is the most likely."""
    if p.is_greedy:
        on = [kind for kind in _WINDOWED if kind.is_on(p)]
        return [kind for name in p.samplers if (kind := SAMPLERS[name]) in on] if on else []
    names = ("penalties", "temperature") if p.mirostat else p.samplers
    return [kind for name in names if (kind := SAMPLERS[name]).is_on(p)]


class LogitBias:
    """Biases added to the logits of tokens. Merged once per request; its choices share the arrays, which are never
    modified."""

    __slots__ = ("tokens", "values")

    def __init__(self, pairs: Iterable[tuple[int, float]] = ()) -> None:
        """Several biases for a token add up, as in llama.cpp; minus infinity bans it regardless of the others."""
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


class SamplingParams(NamedTuple):
    """The sampler chain of one sequence. Temperature 0 (or below) is greedy; `seed` None: random."""

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
    adaptive_target: float = -1.0  # for the sampler `adaptive_p`, if in `samplers`; negative: off
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

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is chosen."""
        return self.temperature <= 0 and self.mirostat == 0 and self.xtc_probability <= 0
