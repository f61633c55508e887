"""Values that a forced call writes as literals of Python, or as JSON inside a text."""

from __future__ import annotations

import json
from ast import literal_eval

import pytest
from test_grammar import accepts

from llamasrv.chat.formats import Calls, ChatFormat
from llamasrv.chat.grammar import constrain
from llamasrv.chat.literal_rules import can_be_literal
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.keyword_call import KeywordCall
from llamasrv.domain.request import Tool

META = {
    "type": "object",
    "required": ["prio"],
    "properties": {
        "prio": {"type": "integer", "maximum": 9},
        "tags": {"type": "array", "items": {"type": "string"}},
        "any": {},
    },
}
MAIL = Tool(
    "mail",
    "",
    {"type": "object", "properties": {"meta": META, "to": {"enum": ["a", "b's"]}, "free": {"type": "object"}}},
)
PYTHON = ChatFormat("python", calls=Calls(KeywordCall(), section_start="<py>", section_end="</py>", separator="\n"))
IN_TEXT = ChatFormat("text", calls=Calls(JsonObject(arguments_in_text=True), call_start="<fn>", call_end="</fn>"))
PYTHON_RULES, TEXT_RULES = (constrain(format, tools=(MAIL,), must_call=True) for format in (PYTHON, IN_TEXT))


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        ("{'prio': 2, 'tags': []}", True),
        ("{'tags': ['x', \"it's\", 'a\\'b'], 'prio': 2}", True),
        ('{"prio": 2, "tags": ["x"]}', True),
        ("{'prio': 2, 'any': {'x': [None, True, 1.5]}}", True),
        ("{'tags': []}", False),  # what is required is missing
        ("{'prio': 10}", False),
        ("{'prio': '2'}", False),
        ("{'prio': 2, 'other': 1}", False),
        ("{'prio': 2, 'tags': [1]}", False),
    ],
)
def test_a_list_or_an_object_may_be_a_literal_of_python(written, allowed):
    assert accepts(PYTHON_RULES, f"<py>mail(meta={written})</py>") is allowed


DEEP = "{'a': {'b': [1, {'c': [{'d': {'e': [None]}}]}]}}"


@pytest.mark.parametrize("written", [DEEP, f"[{DEEP}]", '"any"', "'any'", "True"])
def test_what_may_be_anything_may_be_of_any_depth(written):
    tool = Tool("put", "", {"type": "object", "properties": {"any": {"description": "what you like"}}})
    assert accepts(constrain(PYTHON, tools=(tool,), must_call=True), f"<py>put(any={written})</py>")
    in_text = json.dumps(json.dumps({"any": literal_eval(written)}))
    constraint = constrain(IN_TEXT, tools=(tool,), must_call=True)
    assert accepts(constraint, f'<fn>{{"name": "put", "arguments": {in_text}}}</fn>')


def test_a_choice_stands_in_the_quotes_that_the_template_shows():
    tool = Tool("go", "", {"type": "object", "properties": {"to": {"type": "string", "enum": ["sea", "sky"]}}})
    shown = ChatFormat("python", calls=Calls(KeywordCall(single=True), section_start="<py>", section_end="</py>"))
    constraint = constrain(shown, tools=(tool,), must_call=True)
    assert accepts(constraint, "<py>go(to='sky')</py>") and accepts(constraint, '<py>go(to="sky")</py>')
    assert not accepts(constraint, "<py>go(to='mud')</py>")


@pytest.mark.parametrize("written", ['{"on": True}', '{"k": {"n": [1, None]}, "on": False}', '{"on": true}', "{}"])
def test_an_object_without_properties_may_be_a_literal_in_json_s_quotes(written):
    assert accepts(PYTHON_RULES, f"<py>mail(free={written})</py>")


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        (r'"{\"meta\": {\"prio\": 2, \"tags\": [\"a \\\"b\\\" \\n\"]}}"', True),
        (r'"{\"to\": \"b\'s\"}"'.replace("\\'", "'"), True),
        ('{"meta": {"prio": 2}}', True),  # an object is read as well
        (r'"{\"to\": \"c\"}"', False),
        (r'"{\"meta\": {\"prio\": \"2\"}}"', False),
        (r'"{"meta": {}}"', False),
    ],
)
def test_arguments_in_a_text_follow_their_schema(written, allowed):
    assert accepts(TEXT_RULES, f'<fn>{{"name": "mail", "arguments": {written}}}</fn>') is allowed


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"$ref": "#/x"},
        {"type": "array", "items": {"format": "date"}},
        {"enum": [1]},
        {"not": {}},
        False,
    ],
)
def test_what_a_schema_asks_beyond_that_is_written_in_json(schema):
    assert not can_be_literal(schema)
