"""Log-probabilities of labels become the probabilities of options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from llamasrv.domain.decide import NO_FIT, Decided, Fit, Kind


def log_sum(values: Sequence[float]) -> float:
    """The logarithm of the sum of exponentials."""
    top = max(values)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(value - top) for value in values))


def probabilities(logprobs: Sequence[float], fit: Fit = NO_FIT) -> list[float]:
    """softmax((z + b) / T). If all labels are impossible, the result is uniform."""
    values = [(z + b) / fit.temperature for z, b in zip_longest(logprobs, fit.bias[: len(logprobs)], fillvalue=0.0)]
    norm = log_sum(values)
    if math.isinf(norm):
        return [1 / len(values)] * len(values)
    return [math.exp(value - norm) for value in values]


def bucket(kind: Kind, count: int) -> str:
    """The name, in calibration files, of a kind of question with a similar number of options."""
    if kind == "predicate":
        return kind
    for low, high in ((1, 2), (3, 5), (6, 10)):
        if count <= high:
            return f"{kind} {low}-{high}"
    return f"{kind} 11+"


def fit_for(fits: Mapping[str, Fit], kind: Kind, count: int) -> Fit:
    """The fit of the bucket, else that of the kind."""
    return fits.get(bucket(kind, count)) or fits.get(kind) or NO_FIT


def answer(shown: Sequence[tuple[Sequence[int], Sequence[float]]], fit: Fit, min_mass: float) -> Decided:
    """`shown`: for each order, the options in that order and the log-probabilities of their labels."""
    each: list[list[float]] = [[] for _ in shown[0][0]]
    for order, logprobs in shown:
        for option, p in zip(order, probabilities(logprobs, fit)):
            each[option].append(p)
    mean = [math.fsum(found) / len(shown) for found in each]
    total = math.fsum(mean)
    mass = min(1.0, math.fsum(math.exp(log_sum(logprobs)) for _, logprobs in shown) / len(shown))
    return Decided(tuple(min(1.0, p / total) for p in mean), mass, mass < min_mass)
