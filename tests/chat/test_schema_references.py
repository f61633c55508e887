"""What a schema may refer to and fix: beyond that the grammar library overran its stack, or computed for half a minute."""

import pytest

from llamasrv.chat.client_grammars import MAX_FIXED
from llamasrv.chat.references import MAX_REFERENCES
from llamasrv.chat.schema_references import check_references
from llamasrv.errors import InvalidRequest


def chain(length, link=lambda ref: ref):
    parts = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return {"$defs": {**parts, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


LINKS = [
    lambda ref: ref,
    lambda ref: {"anyOf": [ref, {"type": "null"}]},
    lambda ref: {"type": "object", "properties": {"optional": ref}},
    lambda ref: {"type": "array", "items": ref},
    lambda ref: {"type": "object", "additionalProperties": {"allOf": [ref]}},
]


@pytest.mark.parametrize("link", LINKS)
def test_a_long_chain_of_references_is_refused(link):
    """A chain of 2,500 ended the worker with SIGSEGV."""
    check_references(chain(MAX_REFERENCES - 1, link), "content")
    for length in (MAX_REFERENCES, 2500):
        with pytest.raises(InvalidRequest, match="more than 500 levels deep") as caught:
            check_references(chain(length, link), "content")
        assert caught.value.param == "content"


def test_a_large_circle_is_refused():
    graph = {
        f"d{n}": {
            "anyOf": [
                {"$ref": f"#/$defs/d{(n * 7 + 1) % 3000}"},
                {"$ref": f"#/$defs/d{(n * 13 + 5) % 3000}"},
                {"type": "null"},
            ]
        }
        for n in range(3000)
    }
    with pytest.raises(InvalidRequest, match="levels deep"):
        check_references({"$defs": graph, "$ref": "#/$defs/d0"}, "tools")


def test_levels_inside_definitions_count_too():
    def deep(ref):
        for _ in range(20):
            ref = {"anyOf": [ref]}
        return ref

    check_references(chain(50, deep), "content")
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        check_references(chain(200, deep), "content")


def test_definitions_that_nothing_refers_to_do_not_count():
    check_references({**chain(2500), "$ref": "#/$defs/d2400"}, "content")


def test_definitions_inside_each_other_are_not_read_without_end():
    schema, place = {"type": "object"}, "#"
    inner = schema
    for _ in range(900):
        place += "/not"
        inner["not"] = inner = {"x": [{}] * 3}
    schema["anyOf"] = [{"$ref": "#" + "/not" * n} for n in range(1, 900)]
    with pytest.raises(InvalidRequest, match="too large|levels deep"):
        check_references(schema, "content")


TEXT = {"const": "x" * 3000}


@pytest.mark.parametrize("schema", [
    {"const": "x" * (MAX_FIXED + 1)},
    {"type": "array", "items": TEXT, "minItems": 1000},
    {"type": "array", "items": {"type": "array", "items": {"const": "x"}, "minItems": 1000, "maxItems": 1000}, "minItems": 1000},
    {"type": "object", "properties": {"free": {}, "late": {"type": "array", "items": TEXT, "minItems": 1000}}},
    {"$defs": {"a": {"prefixItems": [{"$ref": "#/$defs/b"}] * 8, "minItems": 8, "maxItems": 8},
               "b": {"prefixItems": [TEXT] * 8, "minItems": 8, "maxItems": 8}}, "$ref": "#/$defs/a"},
    {"type": "object", "properties": {f"p{n}": TEXT for n in range(20)}, "required": [f"p{n}" for n in range(20)]},
    {"type": "string", "pattern": "^((ab){1000}){1000}$"},
])  # fmt: skip
def test_a_long_text_without_a_choice_is_refused(schema):
    """A body of 4 KB made 120 million tokens that must follow: 40 s on the engine's thread, and 3 GB."""
    with pytest.raises(InvalidRequest, match="fixes a text of more than"):
        check_references(schema, "content")


@pytest.mark.parametrize("schema", [
    {"type": "object", "properties": {f"a_rather_long_name_of_a_property_{n}": {"type": "string"} for n in range(1400)},
     "required": [f"a_rather_long_name_of_a_property_{n}" for n in range(1400)], "additionalProperties": False},
    {"type": "array", "items": {"type": "string"}, "minItems": 10_000},
    {"enum": [f"choice number {n}" for n in range(20_000)]},
    {"type": "string", "pattern": "(a|b|c|d){1000}" * 20},
    {"type": "string", "minLength": 100_000},
    True, {},
])  # fmt: skip
def test_what_leaves_choices_may_be_long(schema):
    check_references(schema, "content")
