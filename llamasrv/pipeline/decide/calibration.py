"""Fits of probabilities to an operator's own cases: a temperature, and a bias for each label, by kind of question.

The fit is p = softmax((z + b) / T) for log-probabilities z, found as softmax(w z + c), which is convex in w and c. What
it is worth is measured by cross-validation: on each of FOLDS parts, with a fit on the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llamasrv.domain.decide import COLDEST, HOTTEST, NO_FIT, Fit, Kind
from llamasrv.pipeline.decide.answers import bucket, probabilities

FOLDS = 5
KIND_CASES, BUCKET_CASES = 20, 50  # min cases for a fit
CASES_OF_A_LABEL = 20  # min average cases per label for a bias
BIASED_LABELS = 10  # max labels with a bias
RIDGE = 1.0  # strength of the prior that the biases are zero
ROUNDS, HALVINGS = 50, 30
BINS = 10


@dataclass(frozen=True, slots=True)
class Case:
    kind: Kind
    logprobs: tuple[float, ...]  # per option, up to a constant, in the order shown
    answer: int


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over cases. `log_loss` in nats. `calibration_error`: mean difference, over ten bins, between the
    probability of the likeliest option and how often it is right."""

    log_loss: float
    brier: float
    calibration_error: float
    right: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """`after` is measured on cases outside the fit. `fit` is NO_FIT if a fit is no better."""

    fit: Fit
    num_cases: int
    before: Quality
    after: Quality


def calibrate(cases: Iterable[Case]) -> dict[str, Calibration]:
    """By kind, and by kind and bucket of options where there are enough cases."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        for name in dict.fromkeys((case.kind, bucket(case.kind, len(case.logprobs)))):
            groups.setdefault(name, []).append(case)
    least = {name: KIND_CASES if " " not in name else BUCKET_CASES for name in groups}
    return {name: _calibrated(group) for name, group in sorted(groups.items()) if len(group) >= least[name]}


def _calibrated(cases: Sequence[Case]) -> Calibration:
    answers = [case.answer for case in cases]
    unseen: list[list[float]] = [[] for _ in cases]
    for fold in range(FOLDS):
        others = fitted([case for number, case in enumerate(cases) if number % FOLDS != fold])
        for number in range(fold, len(cases), FOLDS):
            unseen[number] = probabilities(cases[number].logprobs, others)
    plain = measured([probabilities(case.logprobs) for case in cases], answers)
    after = measured(unseen, answers)
    if after.log_loss >= plain.log_loss:
        return Calibration(NO_FIT, len(cases), plain, plain)
    return Calibration(fitted(cases), len(cases), plain, after)


def measured(found: Sequence[Sequence[float]], answers: Sequence[int]) -> Quality:
    count = len(answers)
    bins = [[0.0, 0.0] for _ in range(BINS)]
    loss = brier = right = 0.0
    for p, answer in zip(found, answers):
        loss -= math.log(max(p[answer], 1e-12))
        brier += math.fsum((value - (option == answer)) ** 2 for option, value in enumerate(p))
        top = max(range(len(p)), key=p.__getitem__)
        right += top == answer
        one = bins[min(BINS - 1, int(p[top] * BINS))]
        one[0] += p[top]
        one[1] += top == answer
    error = math.fsum(abs(sure - hits) for sure, hits in bins)
    return Quality(loss / count, brier / count, error / count, right / count)


def fitted(cases: Sequence[Case]) -> Fit:
    """The fit of maximum posterior likelihood."""
    labels = max(len(case.logprobs) for case in cases)
    if labels > BIASED_LABELS or len(cases) < CASES_OF_A_LABEL * labels:
        labels = 0
    at = [1.0] + [0.0] * labels
    loss, gradient, hessian = _loss(cases, at)
    for _ in range(ROUNDS):
        step = _solved(hessian, gradient)
        length = 1.0
        for _ in range(HALVINGS):
            tried = [value - length * move for value, move in zip(at, step)]
            tried[0] = min(1 / COLDEST, max(1 / HOTTEST, tried[0]))
            found = _loss(cases, tried)
            if found[0] < loss:
                break
            length /= 2
        else:
            break
        gain = loss - found[0]
        at, (loss, gradient, hessian) = tried, found
        if gain < 1e-9 * len(cases):
            break
    temperature = 1 / at[0]
    return Fit(temperature, tuple(value * temperature for value in at[1:]))


def _loss(cases: Sequence[Case], at: Sequence[float]) -> tuple[float, list[float], list[list[float]]]:
    """The negative log-likelihood with the ridge, its gradient and its Hessian."""
    size = len(at)
    weight, shift = at[0], at[1:]
    loss = RIDGE / 2 * math.fsum(value * value for value in shift)
    gradient = [0.0, *(RIDGE * value for value in shift)]
    hessian = [[0.0] * size for _ in range(size)]
    for i in range(1, size):
        hessian[i][i] = RIDGE
    for case in cases:
        z = case.logprobs
        values = [weight * value + (shift[i] if shift else 0.0) for i, value in enumerate(z)]
        top = max(values)
        p = [math.exp(value - top) for value in values]
        total = math.fsum(p)
        p = [value / total for value in p]
        loss -= values[case.answer] - top - math.log(total)
        mean = math.fsum(a * b for a, b in zip(p, z))
        gradient[0] += mean - z[case.answer]
        hessian[0][0] += math.fsum(a * (b - mean) ** 2 for a, b in zip(p, z))
        if not shift:
            continue
        gradient[1 + case.answer] -= 1.0
        for i, a in enumerate(p):
            gradient[1 + i] += a
            hessian[0][1 + i] += a * (z[i] - mean)
            hessian[1 + i][1 + i] += a
            for j, b in enumerate(p):
                hessian[1 + i][1 + j] -= a * b
    for i in range(1, size):
        hessian[i][0] = hessian[0][i]
    return loss, gradient, hessian


def _solved(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    """x of matrix x = vector, by elimination; the diagonal is raised slightly, for identical cases."""
    rows = [[*row, value] for row, value in zip(matrix, vector)]
    size = len(rows)
    for i in range(size):
        rows[i][i] += 1e-9
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i])]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - math.fsum(rows[i][k] * found[k] for k in range(i + 1, size))) / rows[i][i]
    return found
