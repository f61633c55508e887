"""JSON inside a text is held to the bounds of a body: 990 levels of a schema were a 500."""

import json

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.json_text import from_text, has_more_values
from llamasrv.protocols.common.schema import Invalid
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions

LIMITS = Limits(json_depth=100)


def nested(levels):
    return '{"items":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"[" + b"[]," * 10 + b"0]", 21),
        (b'{"a": 1, "b": [{}, {}]}', 8),
        (b'["{[:,", ",,,"]', 2),
        (b'["\\"[,,,", "\\\\", ",,"]', 3),
        (b'["\\\\\\",,,"]', 1),
        (b'["' + b"," * 3_000_000 + b'", "' + b'\\"{' * 1_000_000 + b'"]', 2),
    ],
)
def test_values_are_counted_outside_of_strings(text, count):
    json.loads(text)
    assert has_more_values(text, count - 1) and not has_more_values(text, count)


def test_a_text_of_too_many_values_is_refused():
    with pytest.raises(Invalid, match="more than 50 keys and values"):
        from_text("[" + "[]," * 50 + "0]", Limits(json_values=50), "x")


def test_it_is_as_deep_as_it_may_be():
    assert from_text(nested(99), LIMITS, "x") == json.loads(nested(99))
    assert from_text("[" + "{}, " * 500 + "1]", Limits(json_depth=5), "x")[-1] == 1
    for text in (nested(100), nested(990), "[" * 101 + "]" * 101):
        with pytest.raises(Invalid, match="more than 100 levels"):
            from_text(text, LIMITS, "x")
    with pytest.raises(Invalid, match="not JSON"):
        from_text("{", LIMITS, "x")


TAG = (
    '{"type": "structural_tag", "structures": [{"begin": "<a>", "end": "</a>", "schema": SCHEMA}], "triggers": ["<a>"]}'
)


@pytest.mark.parametrize(
    "form",
    [
        lambda text: {"guided_json": text},
        lambda text: {"json_schema": text},
        lambda text: {"structured_outputs": {"json": text}},
        lambda text: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": text}}},
        lambda text: {"response_format": {"type": "json_object", "schema": text}},
        lambda text: {"structured_outputs": {"structural_tag": TAG.replace("SCHEMA", text)}},
    ],
)
def test_every_field_that_takes_a_schema_as_text_has_the_bound(form):
    endpoint = ChatCompletions(Limits(json_depth=50))
    hello = [{"role": "user", "content": "Hello"}]
    assert endpoint.parse({"messages": hello, **form(nested(40))})[0].content is not None
    with pytest.raises(InvalidRequest, match="more than 50 levels"):
        endpoint.parse({"messages": hello, **form(nested(990))})
