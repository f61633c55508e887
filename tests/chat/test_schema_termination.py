"""Schemas that refer to themselves: those that have a finite value, and those that have none."""

import pytest

from llamasrv.chat.schema_termination import has_an_end

NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},  # need not be there
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},  # may be empty
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 1},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}},
        {"oneOf": [{"type": "null"}, {"$ref": "#/oneOf/1"}]},
        {"$ref": "#/not/there"},  # found when the grammar is compiled
    ],
)
def test_it_has_an_end(schema):
    assert has_an_end(schema)


@pytest.mark.parametrize("schema", [
    NODE,
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": ["object"], "properties": {"a": {"$ref": "#/$defs/b"}}, "required": ["a"],
     "$defs": {"b": {"allOf": [{"$ref": "#"}]}}},
])  # fmt: skip
def test_it_has_none(schema):
    assert not has_an_end(schema)


def test_a_long_chain_of_references_is_followed_without_recursion():
    names = [f"d{n}" for n in range(5_000)]
    chain = {name: {"$ref": f"#/$defs/{after}"} for name, after in zip(names, [*names[1:], "last"])}
    assert has_an_end({"$ref": "#/$defs/d0", "$defs": {**chain, "last": {"type": "null"}}})
    assert not has_an_end({"$ref": "#/$defs/d0", "$defs": {**chain, "last": {"$ref": "#/$defs/d0"}}})
