"""Sampling parameters of requests: llama.cpp's defaults < the model's own < the operator's < the request's.

Owns what depends on the model loaded: its vocabulary and its context. Ranges of single fields are the protocols'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.errors import InvalidRequest
from llamasrv.models.model import Model

MOST_BIASED = 10_000  # tokens of texts in a bias; more ids than that are a matter of the operator's limit

_PARAMS = frozenset(SamplingParams._fields)


def defaults_of(model: Model, author: Mapping[str, Any], context: int) -> dict[str, Any]:
    """Sampling parameters for requests that give none: the author's, then the operator's."""
    both = {**author, **model.settings.sampling}
    defaults = {name: _frozen(value) for name, value in both.items() if name in _PARAMS and value is not None}
    _bound_windows(defaults, context)
    return defaults


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any], vocab: Vocabulary, context: int) -> SamplingParams:
    """The defaults with what the request gives. Raises InvalidRequest."""
    params = {**defaults, **given}
    _bound_windows(params, context)
    if "logit_bias" in given:
        params["logit_bias"] = _bias(given["logit_bias"], vocab, spared=not params.get("ignore_eos", False))
    return SamplingParams(**params)


def _bias(entries: tuple[tuple[int | str, float], ...], vocab: Vocabulary, *, spared: bool) -> LogitBias:
    """The bias by token. `spared`: the tokens that end an answer are not already banned."""
    out: list[tuple[int, float]] = []
    for key, bias in entries:
        if len(out) > max(MOST_BIASED, len(entries)):
            raise InvalidRequest(
                f"Invalid 'logit_bias': the texts have more than {MOST_BIASED} tokens altogether.", param="logit_bias"
            )
        if isinstance(key, str):  # a text: each of its tokens
            out += [(token, bias) for token in vocab.tokenize(key, parse_special=True)]
        elif 0 <= key < vocab.size:
            out.append((key, bias))
        else:
            raise InvalidRequest(
                f"Invalid 'logit_bias': token id {key} is outside the vocabulary of {vocab.size} tokens.",
                param="logit_bias",
            )
    banned = {token for token, bias in out if bias == -math.inf}
    if banned and len(banned if spared else banned | vocab.eog) >= vocab.size:
        raise InvalidRequest("Invalid 'logit_bias': every token is banned.", param="logit_bias")
    return LogitBias(out)


def _bound_windows(params: dict[str, Any], context: int) -> None:
    """Bound how many tokens samplers look back over: they allocate room for as many as requested."""
    for name in ("repeat_last_n", "dry_penalty_last_n"):
        if name in params and not 0 <= params[name] <= context:
            params[name] = context


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value
