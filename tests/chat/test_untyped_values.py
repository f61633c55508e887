"""Templates that write all values in quotes, or texts without: the tool's schema says what they are."""

from __future__ import annotations

import json

import pytest
from vectors import message_of

from llamasrv.chat.formats import Calls, ChatFormat
from llamasrv.chat.notations.braces import Braces
from llamasrv.chat.notations.keyword_call import KeywordCall
from llamasrv.chat.notations.tagged import Tagged
from llamasrv.chat.parser import Parser
from llamasrv.domain.request import Tool

PYTHON = ChatFormat("python", calls=Calls(KeywordCall(), section_start="[", section_end="]", separator=", "))
BRACES = ChatFormat("braces", calls=Calls(Braces("<q>", all_quoted=True), call_start="<do>", call_end="</do>"))
MARKED = ChatFormat("braces", calls=Calls(Braces("<q>"), call_start="<do>", call_end="</do>"))
ELEMENTS = ChatFormat(
    "tagged",
    calls=Calls(
        Tagged(name_end=">", key_start="<", key_end=">", value_end="</{key}>", end="</{name}>"),
        call_start="<do><",
        call_end="</do>",
    ),
)
LOOK = Tool(
    "look",
    "",
    {
        "type": "object",
        "properties": {
            "at": {"type": "string"},
            "n": {"type": "integer"},
            "deep": {"type": "boolean"},
            "any": {},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
)


def read(format, text):
    found = []
    for pieces in ((text,), tuple(text)):
        parser = Parser(format, tools=(LOOK,), new_id=lambda: "1")
        events = [event for piece in pieces for event in parser.feed(piece)]
        message = message_of(events + parser.finish())
        calls = [(call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]]
        found.append((message["content"], calls, parser.complete_calls))
    assert found[0] == found[1], "one character at a time"
    return found[0]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('at="sea", n="7", deep="true"', {"at": "sea", "n": 7, "deep": True}),
        ("at='sea', n='7', deep='True'", {"at": "sea", "n": 7, "deep": True}),
        ("at=the sea, or so, n=7", {"at": "the sea, or so", "n": 7}),
        ("n=7, at=the sea", {"n": 7, "at": "the sea"}),
        ("at=None, deep=True", {"at": None, "deep": True}),
        ('at="7", any="7"', {"at": "7", "any": "7"}),
        # templates that print a list in Python's way, into a text
        ("tags=\"['a', 'b']\", n=7", {"tags": ["a", "b"], "n": 7}),
        ("any=\"['a']\"", {"any": "['a']"}),
        ("tags=\"['a'\"", {"tags": "['a'"}),
    ],
)
def test_values_of_pythons_calls_follow_the_schema(written, arguments):
    assert read(PYTHON, f"[look({written})]") == ("", [("look", arguments)], 1)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("at:<q>7<q>,n:<q>7<q>,deep:<q>true<q>", {"at": "7", "n": 7, "deep": True}),
        ("any:<q>7<q>", {"any": 7}),
        ("tags:<q>['a', 'b']<q>,n:<q>7<q>", {"tags": ["a", "b"], "n": 7}),
        ("tags:[<q>7<q>,<q>a<q>],n:<q>7<q>", {"tags": ["7", "a"], "n": 7}),
    ],
)
def test_values_in_braces_follow_the_schema(written, arguments):
    assert read(BRACES, f"<do>look{{{written}}}</do>") == ("", [("look", arguments)], 1)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("<tags><item>a</item><item>b, c</item></tags><n>7</n>", {"tags": ["a", "b, c"], "n": 7}),
        ("<tags></tags><at><b>sea</b></at>", {"tags": [], "at": "<b>sea</b>"}),
        ('<tags>["<b>"]</tags><any><b>7</b></any>', {"tags": ["<b>"], "any": "<b>7</b>"}),
    ],
)
def test_lists_as_elements(written, arguments):
    """What no trial shows: the list was a text."""
    assert read(ELEMENTS, f"<do><look>{written}</look></do>") == ("", [("look", arguments)], 1)


def test_where_only_texts_stand_in_quotes_a_value_of_any_type_stays_text():
    assert read(MARKED, "<do>look{any:<q>7<q>,n:7}</do>")[1] == [("look", {"any": "7", "n": 7})]


def test_brackets_without_a_mark_are_a_call_only_with_the_name_of_a_tool():
    assert read(PYTHON, "[look(n=1), look(n=2)]")[1] == [("look", {"n": 1}), ("look", {"n": 2})]
    for text in ("[other(n=1)] is none", "[1] The source", "[look] at this", "See [look(n=1)]"):
        assert read(PYTHON, text) == (text, [], 0)
