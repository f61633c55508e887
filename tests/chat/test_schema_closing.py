"""Objects that declare properties are closed: a small model otherwise invents names until its tokens run out."""

from __future__ import annotations

import json

import pytest
from test_grammar import FORMATS, PLAIN, accepts, matcher

from llamasrv.chat.grammar import constrain
from llamasrv.chat.schema_closing import closed
from llamasrv.domain.request import Content, Tool
from llamasrv.errors import InvalidRequest

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
PYDANTIC = {
    "$defs": {
        "Place": {
            "properties": {"street": {"title": "Street", "type": "string"}, "description": {"type": "string"}},
            "required": ["street"],
            "title": "Place",
            "type": "object",
        }
    },
    "properties": {
        "name": {"type": "string"},
        "home": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
        "others": {"items": {"$ref": "#/$defs/Place"}, "type": "array"},
    },
    "required": ["name"],
    "title": "Person",
    "type": "object",
}
TREE = {
    "$defs": {
        "N": {
            "type": "object",
            "properties": {"v": {}, "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}},
            "required": ["next"],
        }
    },
    "$ref": "#/$defs/N",
}
SHARED = {
    "$defs": {"A": A},
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/A"}, "y": {"allOf": [{"$ref": "#/$defs/A"}, B]}},
}


@pytest.mark.parametrize("schema, good, bad", [
    (A, [{"a": 1}], [{"a": 1, "c": 2}, {"c": 2}]),
    (PYDANTIC, [{"name": "x", "home": {"street": "s", "description": "d"}, "others": [{"street": "t"}]}, {"name": "x"}],
     [{"name": "x", "home": {"street": "s", "zip": 1}}, {"name": "x", "age": 1}, {"name": "x", "others": [{"street": "s", "q": 1}]}]),
    (TREE, [{"v": 1, "next": {"next": None}}], [{"next": {"next": None, "w": 1}}]),
    ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]),
    ({"type": "object", "properties": {"a": {}}, "required": ["a", "z"]}, [{"a": 1, "z": 2}], [{"a": 1}]),
    ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x-": {"type": "integer"}}},
     [{"a": 1, "x-y": 2}], [{"a": 1, "y": 2}, {"x-y": "text"}]),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
])  # fmt: skip
def test_what_is_not_declared_cannot_be_written(schema, good, bad):
    form = constrain(PLAIN, content=Content("json", schema))
    assert all(accepts(form, json.dumps(value)) for value in good)
    assert not any(accepts(form, json.dumps(value)) for value in bad)


@pytest.mark.parametrize("schema, good, bad", [
    ({"allOf": [A, B]}, [{"a": 1, "b": 2}], [{"a": 1}, {"a": 1, "b": 2, "c": 3}]),
    ({"$defs": {"A": A, "B": B}, "allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
     [{"a": 1, "b": 2}], [{"a": 1, "b": 2, "c": 3}]),
    ({"allOf": [A, B], "unevaluatedProperties": False}, [{"a": 1, "b": 2}], [{"a": 1, "b": 2, "c": 3}]),
    (SHARED, [{"x": {"a": 1}, "y": {"a": 1, "b": 2}}], [{"x": {"a": 1, "b": 2}}, {"y": {"a": 1, "b": 2, "c": 3}}]),
    ({"type": "object", "properties": {"k": {}}, "anyOf": [A, B]}, [{"k": 1, "a": 1}, {"k": 1, "b": 1}], [{"k": 1, "a": 1, "z": 1}]),
    ({"$defs": {"A": A}, "$ref": "#/$defs/A", "properties": {"b": {}}}, [{"a": 1, "b": 2}, {"a": 1}], [{"a": 1, "c": 1}]),
    ({"allOf": [{"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False}, B]},
     [{"a": 1, "b": 2}], [{"b": 2, "c": 3}]),
])  # fmt: skip
def test_names_of_branches_that_hold_together_count_together(schema, good, bad):
    """Closed one by one, no value would satisfy two of them."""
    test_what_is_not_declared_cannot_be_written(schema, good, bad)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {}},
        {"allOf": [{**A, "additionalProperties": True}, B]},
        {**A, "anyOf": [{"additionalProperties": True}]},
    ],
)
def test_what_declares_nothing_or_says_that_it_is_open_stays_free(schema):
    assert accepts(constrain(PLAIN, content=Content("json", schema)), json.dumps({"a": 1, "b": 2, "zz": 3}))


def test_what_may_have_unevaluated_properties_stays_free():
    """`unevaluatedProperties: true`, which says what JSON Schema says anyway, was a 400."""
    form = constrain(PLAIN, content=Content("json", {**A, "unevaluatedProperties": True}))
    assert accepts(form, '{"a": 1, "b": 2}') and not accepts(form, '{"b": 2}')


def test_who_declares_properties_without_a_type_means_an_object():
    """A model could write any text, number or array instead: JSON Schema asks the names of objects alone."""
    untyped = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = constrain(PLAIN, content=Content("json", untyped))
    assert accepts(form, '{"a": 1}') and not any(accepts(form, text) for text in ("7", '"x"', "[]", "{}", "null"))
    form = constrain(PLAIN, content=Content("json", {**untyped, "type": ["object", "null"]}))
    assert accepts(form, "null") and accepts(form, '{"a": 1}')


def test_what_depends_on_a_condition_is_left_alone():
    schema = {**A, "if": {"properties": {"a": {"const": 1}}}, "then": {"properties": {"b": {}}}}
    assert "additionalProperties" not in closed(schema, "x")


@pytest.mark.parametrize("name, format", FORMATS)
def test_objects_inside_arguments_are_closed_in_every_notation(name, format):
    schema = {
        "type": "object",
        "properties": {"o": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        "required": ["o"],
    }
    form = constrain(format, tools=(Tool("f", "", schema),), must_call=True)

    def call(value):
        return format.calls.write([("f", json.dumps({"o": value}))]).lstrip("\n")

    assert accepts(form, call({"a": 1})) and not accepts(form, call({"a": 1, "b": 2}))


def test_annotations_do_not_lengthen_the_grammar_and_names_like_them_stay():
    schema = {
        **A,
        "description": "x" * 10_000,
        "title": "t",
        "properties": {"description": {"type": "string", "default": "q"}},
    }
    assert closed(schema, "x")["properties"] == {"description": {"type": "string"}, "a": True}
    assert len(json.dumps(closed(schema, "x"))) < 200


def test_a_schema_that_refers_to_itself_is_closed_once():
    endless = {"$defs": {"N": {"allOf": [A, {"$ref": "#/$defs/N"}]}}, "$ref": "#/$defs/N"}
    assert len(json.dumps(closed(endless, "x"))) < 600
    tree = {
        "$defs": {"N": {"allOf": [A, {"properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}]}},
        "$ref": "#/$defs/N",
    }
    form = constrain(PLAIN, content=Content("json", tree))
    assert accepts(form, json.dumps({"a": 1, "c": [{"a": 2, "c": []}]})) and not accepts(
        form, '{"a": 1, "c": [{"a": 2, "d": 1}]}'
    )
    assert matcher(form)


def test_a_deep_schema_is_refused_without_recursion_errors():
    schema = {}
    for _ in range(450):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest, match="too deeply"):
        closed(schema, "content")
