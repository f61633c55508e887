"""Where loaded values go: the places that fields name in the request."""

from __future__ import annotations

import pytest

from llamasrv.domain.decide import DecideRequest
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import ClassifyRequest, EmbedRequest, GenerateRequest, RerankRequest
from llamasrv.domain.speech import SpeechRequest
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import Loader, Nested, build, loader_of
from llamasrv.protocols.common.sampling import SamplingSchema
from llamasrv.protocols.common.schema import Bound, Count, Flag, Number, StreamFlag, String, WireSchema
from llamasrv.protocols.limits import Limits


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
    assert loader.unheard({"options": {"top": 1}, "more": 2}) == ["more", "options.top"]


def test_endpoints_with_the_same_schema_and_limits_share_its_loader():
    assert loader_of(Placed, Limits()) is loader_of(Placed, Limits())
    assert loader_of(Placed, Limits(stops=1)) is not loader_of(Placed, Limits())


def schemas(base=WireSchema):
    for schema in base.__subclasses__():
        yield schema
        yield from schemas(schema)


def test_every_place_exists():
    import llamasrv.protocols.openapi  # noqa: F401  all schemas

    kinds = (GenerateRequest, EmbedRequest, RerankRequest, ClassifyRequest, DecideRequest, SpeechRequest)
    requests = {name for kind in kinds for name in kind.__annotations__}
    sampling = set(SamplingParams._fields)
    places = [(schema.__name__, field.to) for schema in schemas() for field in schema().fields.values() if field.to]
    assert len(places) > 100
    for name, place in places:
        part, _, key = place.rpartition(".")
        assert part in ("", "sampling") and key in (sampling if part else requests), (name, place)


def test_each_sampling_parameter_has_a_field_at_openais_endpoints():
    places = {field.to for field in SamplingSchema().fields.values() if field.to}
    assert {f"sampling.{name}" for name in SamplingParams._fields} <= places
