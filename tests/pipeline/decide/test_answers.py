import math

import pytest

from llamasrv.domain.decide import NO_FIT, Fit
from llamasrv.pipeline.decide.answers import answer, bucket, fit_for, log_sum, probabilities

LOGPROBS = [math.log(0.3), math.log(0.1), math.log(0.2)]
ORDER = (0, 1, 2)


def test_probabilities_are_normalised_over_the_options():
    found = answer([(ORDER, LOGPROBS)], NO_FIT, 0.0)
    assert found.probabilities == pytest.approx([0.5, 1 / 6, 1 / 3], abs=1e-9)
    assert found.mass == pytest.approx(0.6, abs=1e-9) and not found.refused


def test_a_temperature_and_a_bias_act_on_log_probabilities():
    p = probabilities([math.log(0.8), math.log(0.2)], Fit(2.0, (0.0, math.log(4))))
    assert p == pytest.approx([0.5, 0.5])


def test_mass_is_reported_before_the_fit():
    assert answer([(ORDER, LOGPROBS)], Fit(7.0), 0.0).mass == pytest.approx(0.6)


def test_below_the_bound_a_question_is_refused():
    assert answer([(ORDER, LOGPROBS)], NO_FIT, 0.61).refused
    assert not answer([(ORDER, LOGPROBS)], NO_FIT, 0.59).refused


def test_orders_are_averaged_by_option():
    found = answer([((0, 1), [math.log(0.8), math.log(0.2)]), ((1, 0), [math.log(0.8), math.log(0.2)])], NO_FIT, 0.0)
    assert found.probabilities == pytest.approx((0.5, 0.5))


def test_labels_that_are_all_impossible_are_equally_likely():
    found = answer([(ORDER, [-math.inf] * 3)], NO_FIT, 0.01)
    assert found.probabilities == pytest.approx([1 / 3] * 3) and found.mass == 0 and found.refused


def test_large_differences_neither_overflow_nor_vanish():
    assert log_sum([-10_000.0, -10_000.0]) == pytest.approx(-10_000 + math.log(2))
    assert probabilities([-5000.0, -9000.0]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("count", "name"), [(2, "choice 1-2"), (3, "choice 3-5"), (10, "choice 6-10"), (11, "choice 11+")]
)
def test_kinds_have_buckets_by_number_of_options(count, name):
    assert bucket("choice", count) == name


def test_a_bucket_without_a_fit_takes_that_of_its_kind():
    own, kind = Fit(2.0), Fit(3.0)
    assert fit_for({"choice 3-5": own, "choice": kind}, "choice", 4) is own
    assert fit_for({"choice 3-5": own, "choice": kind}, "choice", 9) is kind
    assert fit_for({"choice": kind}, "score", 4) is NO_FIT
