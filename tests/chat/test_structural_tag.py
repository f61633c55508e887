"""Free text in which tags, once begun, hold what they must: vLLM's structural tags, in both of their shapes."""

from __future__ import annotations

import json

import pytest
from test_grammar import accepts

from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.grammar import constrain
from llamasrv.protocols.common.structural_tag import structural_tag
from llamasrv.protocols.limits import Limits

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OLD = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "integer"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
TAG = {"begin": "<x>", "content": {"type": "regex", "pattern": "[a-c]+"}, "end": "</x>"}


def constraint(value):
    return constrain(ChatFormat("plain"), content=structural_tag(value, Limits(json_depth=100)))


@pytest.mark.parametrize("value", [OLD, json.dumps(OLD)], ids=["object", "text"])
@pytest.mark.parametrize(
    "text, fits",
    [
        ("Free text, <b>as it comes</b>.", True),
        ("", True),
        ('Now <f=a>{"n": 1}</f> and <f=b>7</f>.', True),
        ("Now <f=c>1</f>", False),
        ('<f=a>{"n": "1"}</f>', False),
        ('<f=a>{"n": 1}', False),
        ("<f=b>{}</f>", False),
    ],
)
def test_a_tag_that_is_begun_holds_what_it_must(value, text, fits):
    assert accepts(constraint(value), text) == fits


@pytest.mark.parametrize("layout, fitting, other", [
    ({"type": "tag", **TAG}, "<x>abc</x>", "<x>d</x>"),
    ({"type": "const_string", "value": "yes"}, "yes", "no"),
    ({"type": "json_schema", "json_schema": SCHEMA}, '{"n": 3}', '{"n": null}'),
    ({"type": "sequence", "elements": [{"type": "const_string", "value": "a: "}, {"type": "tag", **TAG}]}, "a: <x>a</x>", "<x>a</x>"),
    ({"type": "or", "elements": [{"type": "const_string", "value": "no"}, {"type": "tag", **TAG}]}, "<x>a</x>", "nothing"),
    ({"type": "tags_with_separator", "tags": [TAG], "separator": ", "}, "<x>a</x>, <x>b</x>", "<x>a</x><x>b</x>"),
    ({"type": "tags_with_separator", "tags": [TAG], "separator": ",", "at_least_one": True}, "<x>a</x>", ""),
    ({"type": "triggered_tags", "triggers": ["<x"], "tags": [TAG], "at_least_one": True}, "So: <x>a</x> done", "So: nothing"),
    ({"type": "triggered_tags", "triggers": ["<x"], "tags": [TAG], "stop_after_first": True}, "So: <x>a</x>", "<x>a</x> done"),
    ({"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}, "<t>any\n<b></t>", "<t>any"),
])  # fmt: skip
def test_every_layout_binds(layout, fitting, other):
    held = constraint({"type": "structural_tag", "format": layout})
    assert accepts(held, fitting) and not accepts(held, other)
