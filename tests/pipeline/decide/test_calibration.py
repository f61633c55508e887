"""Fits to an operator's cases: what was put in comes back, nothing gets worse, few cases are left alone."""

import math
import random

import pytest

from llamasrv.domain.decide import NO_FIT
from llamasrv.pipeline.decide.answers import probabilities
from llamasrv.pipeline.decide.calibration import COLDEST, HOTTEST, Case, calibrate, fitted, measured


def cases(count, *, temperature=1.0, bias=(0.0, 0.0, 0.0), kind="choice", seed=1):
    """Answers drawn from softmax((z + bias) / temperature)."""
    dice = random.Random(seed)
    made = []
    for _ in range(count):
        z = [dice.gauss(0, 3) for _ in bias]
        p = [math.exp((value + b) / temperature) for value, b in zip(z, bias)]
        made.append(Case(kind, tuple(z), dice.choices(range(len(p)), p)[0]))
    return made


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_comes_back(temperature):
    assert fitted(cases(5000, temperature=temperature)).temperature == pytest.approx(temperature, rel=0.06)


def test_a_bias_for_each_label_comes_back():
    fit = fitted(cases(5000, temperature=2.0, bias=(1.5, 0.0, -1.5)))
    assert [value - fit.bias[1] for value in fit.bias] == pytest.approx([1.5, 0, -1.5], abs=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_the_likelihood_of_the_cases_is_never_worse(seed):
    some = cases(60, temperature=random.Random(seed).uniform(0.2, 5), seed=seed)
    answers = [case.answer for case in some]
    fit = fitted(some)
    after, before = (measured([probabilities(c.logprobs, f) for c in some], answers) for f in (fit, NO_FIT))
    assert after.log_loss <= before.log_loss + 1e-9


def test_without_a_bias_the_likeliest_option_stays():
    some = cases(40, temperature=4.0)  # too few for a bias
    fit = fitted(some)
    assert fit.bias == () and all(
        max(range(3), key=probabilities(c.logprobs, fit).__getitem__) == max(range(3), key=c.logprobs.__getitem__)
        for c in some
    )


@pytest.mark.parametrize("answer", [0, 1])
def test_cases_that_are_all_alike_stay_within_bounds(answer):
    fit = fitted([Case("predicate", (0.0, -5.0), answer)] * 100)
    assert COLDEST <= fit.temperature <= HOTTEST and all(map(math.isfinite, fit.bias))


def test_kinds_need_20_cases_and_buckets_50():
    assert list(calibrate(cases(19, temperature=3))) == []
    assert list(calibrate(cases(49, temperature=3))) == ["choice"]
    assert list(calibrate(cases(50, temperature=3))) == ["choice", "choice 3-5"]
    assert list(calibrate(cases(50, kind="predicate", bias=(0.0, 0.0)))) == ["predicate"]


def test_reported_probabilities_are_better_on_cases_that_the_fit_has_not_seen():
    one = calibrate(cases(500, temperature=4.0))["choice"]
    assert one.after.log_loss < one.before.log_loss - 0.2
    assert one.after.calibration_error < one.before.calibration_error / 2


def test_no_fit_is_kept_that_helps_only_the_cases_it_knows():
    for one in calibrate(cases(25, seed=3)).values():
        assert one.fit == NO_FIT or one.after.log_loss < one.before.log_loss


def test_figures_by_hand():
    found = measured([(0.8, 0.2), (0.6, 0.4)], [0, 1])
    assert found.log_loss == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)
    assert found.brier == pytest.approx((0.08 + 0.72) / 2)
    assert found.calibration_error == pytest.approx((0.2 + 0.6) / 2) and found.right == 0.5
