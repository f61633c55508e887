"""Sampling options: the defaults for requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from llamasrv.domain.option import option_field
from llamasrv.domain.params import SAMPLER_ORDER

_sampling = partial(option_field, "sampling")


@dataclass(frozen=True)
class SamplingSection:
    """Defaults for requests, under the names of SamplingParams; None: not set by the operator."""

    temperature: float | None = _sampling(
        "float",
        None,
        "--temp",
        "--temperature",
        low=0.0,
        high=100.0,
        key="temp",
        help="Temperature; 0 is greedy (llama.cpp's default: 0.8).",
    )
    top_k: int | None = _sampling(
        "int", None, "--top-k", low=0, high=1_000_000, help="Keep the k most likely tokens (40); 0 is off."
    )
    top_p: float | None = _sampling(
        "float",
        None,
        "--top-p",
        low=0.0,
        high=1.0,
        help="Keep the most likely tokens whose probabilities add up to p (0.95); 1 is off.",
    )
    min_p: float | None = _sampling(
        "float",
        None,
        "--min-p",
        low=0.0,
        high=1.0,
        help="Drop tokens less likely than p times the most likely one (0.05); 0 is off.",
    )
    typical_p: float | None = _sampling(
        "float",
        None,
        "--typical",
        "--typical-p",
        low=0.0,
        high=1.0,
        key="typical",
        help="Locally typical sampling (1.0: off).",
    )
    top_n_sigma: float | None = _sampling(
        "float",
        None,
        "--top-nsigma",
        "--top-n-sigma",
        low=-1.0,
        high=100.0,
        help="Keep tokens within n standard deviations of the top logit (-1: off).",
    )
    dynatemp_range: float | None = _sampling(
        "float", None, "--dynatemp-range", low=0.0, high=100.0, help="Dynamic temperature: range (0: off)."
    )
    dynatemp_exponent: float | None = _sampling(
        "float",
        None,
        "--dynatemp-exp",
        low=0.0,
        high=100.0,
        key="dynatemp_exp",
        help="Dynamic temperature: exponent (1.0).",
    )
    xtc_probability: float | None = _sampling(
        "float", None, "--xtc-probability", low=0.0, high=1.0, help="XTC: chance of excluding the top choices (0: off)."
    )
    xtc_threshold: float | None = _sampling(
        "float", None, "--xtc-threshold", low=0.0, high=1.0, help="XTC: minimum probability of a top choice (0.1)."
    )
    repeat_penalty: float | None = _sampling(
        "float",
        None,
        "--repeat-penalty",
        low=0.01,
        high=100.0,
        help="Penalty that divides the logits of recent tokens (1.0: off).",
    )
    repeat_last_n: int | None = _sampling(
        "int",
        None,
        "--repeat-last-n",
        low=-1,
        high=16_777_216,
        help="Number of recent tokens that penalties consider (64); -1 is the whole context.",
    )
    presence_penalty: float | None = _sampling(
        "float",
        None,
        "--presence-penalty",
        low=-100.0,
        high=100.0,
        help="Penalty subtracted once from the logit of a token that has occurred (0: off).",
    )
    frequency_penalty: float | None = _sampling(
        "float",
        None,
        "--frequency-penalty",
        low=-100.0,
        high=100.0,
        help="Penalty subtracted for each occurrence of a token (0: off).",
    )
    dry_multiplier: float | None = _sampling(
        "float",
        None,
        "--dry-multiplier",
        low=0.0,
        high=100.0,
        help="DRY: strength of the penalty against repeated phrases (0: off).",
    )
    dry_base: float | None = _sampling(
        "float", None, "--dry-base", low=1.0, high=100.0, help="DRY: growth of the penalty per repeated token (1.75)."
    )
    dry_allowed_length: int | None = _sampling(
        "int",
        None,
        "--dry-allowed-length",
        low=0,
        high=100_000,
        help="DRY: longest repetition without a penalty, in tokens (2).",
    )
    dry_penalty_last_n: int | None = _sampling(
        "int",
        None,
        "--dry-penalty-last-n",
        low=-1,
        high=16_777_216,
        help="DRY: number of recent tokens to scan (64); -1 is the whole context.",
    )
    mirostat: int | None = _sampling(
        "int", None, "--mirostat", low=0, high=2, help="Mirostat version (0: off); replaces the other filters."
    )
    mirostat_tau: float | None = _sampling(
        "float",
        None,
        "--mirostat-ent",
        low=0.0,
        high=100.0,
        key="mirostat_ent",
        help="Mirostat: target entropy, tau (5.0).",
    )
    mirostat_eta: float | None = _sampling(
        "float", None, "--mirostat-lr", low=0.0, high=1.0, key="mirostat_lr", help="Mirostat: learning rate, eta (0.1)."
    )
    adaptive_target: float | None = _sampling(
        "float",
        None,
        "--adaptive-target",
        low=-1.0,
        high=1.0,
        help="Target probability of the sampler adaptive_p, if --samplers includes it (-1: off).",
    )
    adaptive_decay: float | None = _sampling(
        "float", None, "--adaptive-decay", low=0.0, high=0.99, help="Adaptive-p: decay of its history (0.9)."
    )
    samplers: tuple[str, ...] | None = _sampling(
        "samplers",
        None,
        "--samplers",
        help=f"Order of the samplers, separated by commas or semicolons ({';'.join(SAMPLER_ORDER)}); adaptive_p may "
        "take part.",
    )
    seed: int | None = _sampling(
        "int", None, "-s", "--seed", low=-1, high=4_294_967_295, help="Seed for requests without one (-1: random)."
    )
    ignore_eos: bool | None = _sampling(
        "bool",
        None,
        "--ignore-eos",
        help="Continue past the model's end token (false).",
    )
