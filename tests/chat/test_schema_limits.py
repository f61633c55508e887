"""What the schemas of one grammar may cost together."""

import pytest

from llamasrv.chat.schema_limits import (
    MAX_CHOICES,
    MAX_CONSTANTS,
    MAX_MULTIPLE,
    MAX_MULTIPLES,
    MAX_NESTED,
    MAX_OPTIONAL,
    MAX_PARTS,
    MAX_PROPERTIES,
    SchemaBounds,
)
from llamasrv.errors import InvalidRequest


def properties(number, prefix="p"):
    return {"type": "object", "properties": {f"{prefix}{n}": True for n in range(number)}}


@pytest.mark.parametrize(
    "schema, found",
    [
        (properties(MAX_PROPERTIES + 1), "'properties' is too large: 1501; at most 1500"),
        (
            {"items": properties(MAX_OPTIONAL + 1)},
            "an object with 601 properties that are not in 'required'; at most 600",
        ),
        (properties(900) | {"required": [f"p{n}" for n in range(250)]}, "an object with 650 properties"),
        ({"items": {"enum": list(range(MAX_CHOICES + 1))}}, "'enum' is too large: 30001"),
        ({"multipleOf": MAX_MULTIPLE + 1}, "'multipleOf' is too large: 10001"),
        ({"multipleOf": -1e300}, "'multipleOf' is too large"),
        ({"x": [None] * (MAX_PARTS + 1)}, "The schema is too large"),
        ({"items": {"const": "x" * (MAX_CONSTANTS + 1)}}, "'const' is too large: 65537"),
        ({"const": [{"a": "x" * 40_000}, "y" * 40_000]}, "'const' is too large: 80001"),
        ({"enum": ["x" * 40_000, "y" * 40_000]}, "'enum' is too large: 80000"),
        ({"enum": [f"{n:064}" for n in range(8200)]}, "values of the schema's 'enum' have more than 524288 characters"),
        (
            {"enum": [[[[{"a": [n, [n]]}]]] for n in range(MAX_NESTED // 6 + 1)]},
            "values of the schema's 'enum' have more than 4000 arrays and objects",
        ),
        ({"items": {"const": [[n] for n in range(MAX_NESTED)]}}, "values of the schema's 'const' have more than 4000"),
        ({"patternProperties": {f"^{n}": {} for n in range(65)}}, "'patternProperties' is too large: 65; at most 64"),
        ({"properties": {"x" * 70_000: {}}}, "'properties' is too large: 70000"),
        ({"anyOf": [{"pattern": "a*" * 20_000}] * 4}, "'pattern' is too large: 160000"),
    ],
)
def test_too_much_is_refused_by_its_keyword(schema, found):
    with pytest.raises(InvalidRequest, match=found) as refused:
        SchemaBounds().add(schema, "tools[0]")
    assert refused.value.param == "tools[0]"


def test_a_schema_may_have_more_arrays_and_objects_than_its_constants():
    SchemaBounds().add({"anyOf": [{"type": "null"}] * (MAX_NESTED + 1), "enum": [{"a": [1]}]}, "x")


def test_the_schemas_of_one_grammar_count_together():
    bounds = SchemaBounds()
    for schema in (
        properties(800) | {"required": [f"p{n}" for n in range(800)]},
        {"multipleOf": MAX_MULTIPLE},
        {"multipleOf": MAX_MULTIPLES - MAX_MULTIPLE},
    ):
        bounds.add(schema, "first")
    with pytest.raises(InvalidRequest, match="'properties' is too large: 1600") as refused:
        bounds.add(properties(800, "q") | {"required": [f"q{n}" for n in range(800)]}, "second")
    assert refused.value.param == "second"
    with pytest.raises(InvalidRequest, match="'multipleOf' is too large: 20001"):
        bounds.add({"multipleOf": 1}, "third")


def test_a_deep_schema_is_counted_without_recursion():
    schema = {}
    for _ in range(50_000):
        schema = {"items": schema}
    SchemaBounds().add(schema, "x")
