"""JSON inside a text is held to the depth of a body: 990 levels of a schema were a 500."""

import json

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.json_text import from_text
from llamasrv.protocols.common.schema import Invalid
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions


def nested(levels):
    return '{"items":' * levels + "{}" + "}" * levels


def test_it_is_as_deep_as_it_may_be():
    assert from_text(nested(99), 100, "x") == json.loads(nested(99))
    assert from_text("[" + "{}, " * 500 + "1]", 5, "x")[-1] == 1
    for text in (nested(100), nested(990), "[" * 101 + "]" * 101):
        with pytest.raises(Invalid, match="more than 100 levels"):
            from_text(text, 100, "x")
    with pytest.raises(Invalid, match="not JSON"):
        from_text("{", 100, "x")


TAG = (
    '{"type": "structural_tag", "structures": [{"begin": "<a>", "end": "</a>", "schema": SCHEMA}], "triggers": ["<a>"]}'
)


@pytest.mark.parametrize("form", [
    lambda text: {"guided_json": text},
    lambda text: {"json_schema": text},
    lambda text: {"structured_outputs": {"json": text}},
    lambda text: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": text}}},
    lambda text: {"response_format": {"type": "json_object", "schema": text}},
    lambda text: {"structured_outputs": {"structural_tag": TAG.replace("SCHEMA", text)}},
])  # fmt: skip
def test_every_field_that_takes_a_schema_as_text_has_the_bound(form):
    endpoint = ChatCompletions(Limits(json_depth=50))
    hello = [{"role": "user", "content": "Hello"}]
    assert endpoint.parse({"messages": hello, **form(nested(40))})[0].content is not None
    with pytest.raises(InvalidRequest, match="more than 50 levels"):
        endpoint.parse({"messages": hello, **form(nested(990))})
