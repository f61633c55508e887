"""The base of all schemas: strictness, names of what is wrong, and the places of values in the request."""

from __future__ import annotations

import dataclasses

import pytest

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import ClassifyRequest, EmbedRequest, GenerateRequest, RerankRequest
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.schema import (
    Bound,
    Count,
    Flag,
    Ignored,
    Loader,
    Names,
    Nested,
    Number,
    Object,
    Refused,
    Row,
    StreamFlag,
    String,
    WireSchema,
    build,
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


def test_a_wrong_type_is_told_with_both_types(load):
    error = refused(load, flag="yes")
    assert error.code == "invalid_type"
    assert error.message == "Invalid type for 'flag': expected a boolean, but got a string instead."


def test_a_wrong_value_is_told_with_its_bound(load):
    assert refused(load, count=9).message == (
        "Invalid 'count': integer above maximum value. Expected a value <= 5, but got 9 instead."
    )


def test_a_missing_field_is_named(load):
    with pytest.raises(InvalidRequest) as caught:
        load({"name": None})
    assert caught.value.message == "Missing required parameter: 'name'."
    assert caught.value.code == "missing_required_parameter"


def test_the_first_declared_of_several_complaints_is_told(load):
    assert refused(load, names=3, flag=3, count="x").param == "flag"


def test_ignored_unknown_and_absent_fields_have_no_value(load):
    assert load({"name": "x", "old": 1, "brand_new": 2, "flag": None}) == {"name": "x"}


@pytest.mark.parametrize("harmless", [None, False, "", [], {}])
def test_a_refused_field_that_asks_for_nothing_is_harmless(load, harmless):
    assert load({"name": "x", "never": harmless}).get("never") is None


def test_a_refused_field_is_told_with_its_reason(load):
    assert refused(load, never=True).message == "'never' is not supported by this server: not here"


def test_the_table_of_fields_is_read_from_the_schema():
    assert rows(Sample)[0] == Row("name", "honoured", "who")
    assert rows(Sample)[-2:] == [Row("old", "ignored", "no longer used"), Row("never", "refused", "not here")]


class Inner(WireSchema):
    top_k = Count(0, 100, to="sampling.top_k", via=lambda k: k + 1)
    most = Count(0, 100, to="max_tokens")
    unplaced = Flag()


class Options(Nested):
    schema = Inner


class Placed(WireSchema):
    model = String(to="model")
    stream = Flag(to="stream", load_default=True)
    min_p = Number(0, 1, to="sampling.min_p")
    also_min_p = Number(0, 1, to="sampling.min_p")
    long = Bound(1, "max_tokens", to="max_tokens")
    short = Bound(1, "max_tokens", to="max_tokens")
    progress = StreamFlag(to="with_progress")
    options = Options("more")
    unplaced = Flag()


def built(body, **others):
    return build(GenerateRequest, Loader(Placed, Limits()).load(body), prompts=(), **others)


def test_a_value_goes_where_its_field_says():
    request = built({"model": "m", "min_p": 0.5, "stream": False, "unplaced": True})
    assert request == GenerateRequest((), model="m", sampling={"min_p": 0.5})


def test_absent_fields_keep_the_defaults_of_the_request():
    assert built({}, stream=False) == GenerateRequest(())


def test_a_field_may_have_a_default_of_its_own():
    assert built({}).stream and built({"stream": None}).stream and not built({"stream": False}).stream


def test_what_the_endpoint_says_wins_over_the_body():
    assert built({"model": "m"}, model="other").model == "other"


def test_of_two_fields_with_one_place_the_first_declared_wins():
    assert built({"also_min_p": 0.2, "min_p": 0.1}).sampling == {"min_p": 0.1}
    assert built({"also_min_p": 0.2}).sampling == {"min_p": 0.2}


@pytest.mark.parametrize(
    "body, most",
    [({"long": 9, "short": 5}, 5), ({"long": 4, "short": 5}, 4), ({"long": -1, "short": 5}, 5), ({"long": -1}, None)],
)
def test_the_tightest_of_several_bounds_holds(body, most):
    assert built(body).max_tokens == most


@pytest.mark.parametrize("stream, wanted, told", [(True, True, True), (False, True, False), (True, False, False)])
def test_a_flag_of_streams_has_no_effect_on_whole_replies(stream, wanted, told):
    assert built({"progress": wanted, "stream": stream}).with_progress is told


def test_fields_of_an_object_inside_the_body_have_places_too():
    request = built({"min_p": 0.5, "options": {"top_k": 4, "most": 7, "unplaced": True}})
    assert (request.sampling, request.max_tokens) == ({"min_p": 0.5, "top_k": 5}, 7)


def test_errors_and_unknown_names_inside_an_object_have_its_name_in_front():
    loader = Loader(Placed, Limits())
    with pytest.raises(InvalidRequest) as caught:
        loader.load({"options": {"top_k": "x"}})
    assert caught.value.param == "options.top_k"
    assert loader.unknown({"options": {"top": 1}, "more": 2}) == ["more", "options.top"]


def schemas(base=WireSchema):
    for schema in base.__subclasses__():
        yield schema
        yield from schemas(schema)


def test_every_place_exists():
    import llamasrv.protocols.openapi  # noqa: F401  all schemas

    kinds = (GenerateRequest, EmbedRequest, RerankRequest, ClassifyRequest)
    requests = {one.name for kind in kinds for one in dataclasses.fields(kind)}
    sampling = {one.name for one in dataclasses.fields(SamplingParams)}
    places = [(schema.__name__, field.to) for schema in schemas() for field in schema().fields.values() if field.to]
    assert len(places) > 100
    for name, place in places:
        part, _, key = place.rpartition(".")
        assert part in ("", "sampling") and key in (sampling if part else requests), (name, place)
