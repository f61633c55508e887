"""The base of all schemas: strictness, and names of what is wrong."""

from __future__ import annotations

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import Loader
from llamasrv.protocols.common.schema import (
    Count,
    Flag,
    Ignored,
    Names,
    Number,
    Object,
    Refused,
    Row,
    String,
    WireSchema,
    rows,
)
from llamasrv.protocols.limits import Limits


class Sample(WireSchema):
    name = String("who", required=True)
    flag = Flag()
    count = Count(1, "choices", also=(-1,))
    number = Number(0, 2, above=True)
    object = Object()
    names = Names("stops", 3)
    old = Ignored("no longer used")
    never = Refused("not here")


@pytest.fixture
def load():
    return Loader(Sample, Limits(choices=5, stops=2)).load


def refused(load, **body):
    with pytest.raises(InvalidRequest) as caught:
        load({"name": "x", **body})
    return caught.value


def test_values_come_out_as_they_are(load):
    body = {"name": "x", "flag": True, "count": 3, "number": 1.5, "object": {"a": 1}, "names": ["a", "b"]}
    assert load(body) == {**body, "names": ("a", "b")}


@pytest.mark.parametrize("value, count", [(3, 3), (3.0, 3), (1e0, 1), (-1, -1), (5, 5)])
def test_whole_numbers_are_counts(load, value, count):
    assert load({"name": "x", "count": value})["count"] == count


@pytest.mark.parametrize("value", [0, 6, -2, 2.5, "3", True, [], float("inf"), float("nan"), 1e300])
def test_other_values_are_no_counts(load, value):
    assert refused(load, count=value).param == "count"


@pytest.mark.parametrize("value", [0, 2.1, -1, "1", True, float("nan"), float("inf"), 10**400])
def test_numbers_stay_in_their_range(load, value):
    assert refused(load, number=value).param == "number"


def test_a_wrong_type_is_reported_with_both_types(load):
    error = refused(load, flag="yes")
    assert error.code == "invalid_type"
    assert error.message == "Invalid type for 'flag': expected a boolean, but got a string instead."


def test_a_wrong_value_is_reported_with_its_bound(load):
    assert refused(load, count=9).message == (
        "Invalid 'count': integer above maximum value. Expected a value <= 5, but got 9 instead."
    )


def test_a_missing_field_is_named(load):
    with pytest.raises(InvalidRequest) as caught:
        load({"name": None})
    assert caught.value.message == "Missing required parameter: 'name'."
    assert caught.value.code == "missing_required_parameter"


def test_the_first_declared_of_several_complaints_is_reported(load):
    assert refused(load, names=3, flag=3, count="x").param == "flag"


def test_ignored_unknown_and_absent_fields_have_no_value(load):
    assert load({"name": "x", "old": 1, "brand_new": 2, "flag": None}) == {"name": "x"}


@pytest.mark.parametrize("harmless", [None, False, "", [], {}])
def test_a_refused_field_that_asks_for_nothing_is_harmless(load, harmless):
    assert load({"name": "x", "never": harmless}).get("never") is None


def test_a_refused_field_is_reported_with_its_reason(load):
    assert refused(load, never=True).message == "'never' is not supported by this server: not here"


def test_the_table_of_fields_is_read_from_the_schema():
    assert rows(Sample)[0] == Row("name", "honoured", "who")
    assert rows(Sample)[-2:] == [Row("old", "ignored", "no longer used"), Row("never", "refused", "not here")]
