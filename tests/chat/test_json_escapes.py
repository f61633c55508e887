"""JSON as programs write it, with every character outside of ASCII escaped, passes every grammar."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings, strategies
from test_grammar import FORMATS, PLAIN, accepts, matcher

from llamasrv.chat.grammar import constrain
from llamasrv.domain.request import Content, Tool

TEXTS = strategies.text(max_size=30)
JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers(-(10**6), 10**6) | TEXTS,
    lambda inner: strategies.lists(inner, max_size=4) | strategies.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
ANY_OBJECT = matcher(constrain(PLAIN, content=Content("json")))
ANYTHING = matcher(constrain(PLAIN, content=Content("json", {})))
NOTE = matcher(
    constrain(
        PLAIN,
        content=Content(
            "json",
            {
                "type": "object",
                "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
                "required": ["text"],
            },
        ),
    )
)
DAMAGED = 'caf\u00e9 <b> \u65e5\u672c \U0001f600 "\\ \x00\x1f\x7f\u2028'

ESCAPED = json.dumps(DAMAGED)[1:-1].replace("<", "\\u003c")


def passes(compiled, text):
    found = compiled.deep_copy()
    tokens = list(text.encode())
    return found.try_consume_tokens(tokens) == len(tokens) and found.is_accepting()


@settings(max_examples=40, deadline=None)
@given(value=JSON)
def test_whatever_json_dumps_writes_is_taken(value):
    """After \\u only control characters were allowed: \\u00e9 became \\u0019, and files that agents wrote were damaged."""
    assert passes(ANYTHING, json.dumps(value, ensure_ascii=True))
    assert passes(ANY_OBJECT, json.dumps({"a": value}, ensure_ascii=True))


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_a_schema_s_texts_may_be_escaped(text):
    assert passes(NOTE, json.dumps({"text": text}, ensure_ascii=True))
    assert passes(NOTE, json.dumps({"text": text, "n": 1}, ensure_ascii=True))


def test_characters_of_all_blocks_may_be_escaped():
    text = "".join(map(chr, (*range(0, 0xD800, 61), *range(0xE000, 0x110000, 4099))))
    assert passes(ANYTHING, json.dumps(text)) and passes(ANY_OBJECT, json.dumps({text: text}))


@pytest.mark.parametrize("name, format", FORMATS)
def test_calls_may_be_escaped_in_every_notation(name, format):
    tool = Tool(
        "f",
        "",
        {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "o": {"type": "object", "properties": {"a": {"type": "string"}}},
                "l": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["s"],
        },
    )
    written = format.calls.write([("f", json.dumps({"s": "HERE", "o": {"a": "HERE"}, "l": ["HERE"]}))])
    compiled = matcher(constrain(format, tools=(tool,), must_call=True))
    for escaped in (ESCAPED, ESCAPED.upper().replace("\\U", "\\u")):
        assert passes(compiled, written.lstrip("\n").replace("HERE", escaped))


LARK = """# %json {"type": "null"}
start: "%json {}" | /%json [{]/ | a | %json {"x-guidance": {"whitespace_flexible": false}, "type": "array"}
a: %json { "type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]} | %json  {}
"""


def test_the_json_of_a_client_s_grammar_may_be_escaped():
    compiled = matcher(constrain(PLAIN, content=Content("lark", LARK)))
    assert passes(compiled, f'{{"t": "{ESCAPED}"}}') and passes(compiled, f'["{ESCAPED}"]')
    assert passes(compiled, "%json {}") and passes(compiled, "%json {") and not passes(compiled, "null ")


@pytest.mark.parametrize("pattern", ["^.{1,40}$", r"^\S+( [^\x00-\x1f]+)?$", "^f?.*\\S$"])
def test_an_escape_in_a_text_with_a_pattern_is_led_to_no_control_character(pattern):
    """There only control characters can be escaped so: \\u00e9 became \\u0019 where the pattern matched that."""
    compiled = matcher(constrain(PLAIN, content=Content("json", {"type": "string", "pattern": pattern})))
    begun = list(b'"caf\\u00')
    assert compiled.deep_copy().try_consume_tokens(begun) < len(begun) - 2
    assert passes(compiled, '"caf\u00e9"') and passes(compiled, '"caf\\"x\\""')


def test_names_with_a_pattern_are_led_to_none_either():
    named = {"patternProperties": {"^.+$": {"type": "integer"}}}
    one = {"properties": {"n": {"type": "integer"}}}
    for schema in ({**one, **named}, {**one, "allOf": [named]}, {**named, "additionalProperties": False}):
        compiled = matcher(constrain(PLAIN, content=Content("json", {"type": "object", **schema})))
        assert compiled.deep_copy().try_consume_tokens(list(b'{"caf\\u00')) < 8
        assert passes(compiled, '{"caf\u00e9": 1}') and passes(compiled, '{"n": 1}')


@pytest.mark.parametrize(
    "pattern", [r'^[^"\\]+$', r'^[^-"\\]+$', r'^[^]"\\]+$', r'(?s)^[^"\\]+$', r'^x?([^"\\\x00-\x02])+$']
)
def test_a_negated_class_matches_what_it_says_and_no_rare_control_character(pattern):
    """A class with all control characters let the quote and the backslash through, whatever it excluded."""
    compiled = matcher(constrain(PLAIN, content=Content("json", {"type": "string", "pattern": pattern})))
    for excluded in ('a"', "a\\", "\x19", "a\0", "a\x7f"):
        assert not passes(compiled, json.dumps(excluded))
    assert passes(compiled, json.dumps("caf\u00e9\n\t", ensure_ascii=False))
    for sign in "-]":
        assert passes(compiled, json.dumps(f"a{sign}b")) == (f"[^{sign}" not in pattern)


@pytest.mark.parametrize(
    "pattern", ["[^a]", "(?s)^.{1,6}$", r"^[\x00-\x20]{1,4}$", r"^\P{L}{1,4}$", r"^[\s\S]{1,5}$", r"^\p{Cc}+$"]
)
def test_a_text_with_a_pattern_is_json_whatever_is_chosen(pattern):
    grammar = matcher(constrain(PLAIN, content=Content("json", {"type": "string", "pattern": pattern})))
    chooses, texts = random.Random(1), []
    for _ in range(20):
        walk, text = grammar.deep_copy(), bytearray()
        while not (walk.is_stopped() or len(text) > 60 or (walk.is_accepting() and chooses.random() < 0.3)):
            mask = walk.compute_bitmask()
            allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
            byte = chooses.choice([byte for byte in allowed if byte < 0x20 or byte in b'\\"'] or allowed)
            assert walk.consume_token(byte)
            text.append(byte)
        if walk.is_accepting():
            texts.append(json.loads(text.rpartition(b"</think>")[2]))
    assert all(isinstance(text, str) for text in texts) and len(texts) > 5


def test_a_pattern_that_names_control_characters_keeps_them():
    for pattern, text in ((r"^a[^b]*$", "a\n\t"), ("(?s)^a.*$", "a\n"), (r"^a\t[.]$", "a\t."), (r"^a\s\.$", "a\n.")):
        compiled = matcher(constrain(PLAIN, content=Content("json", {"type": "string", "pattern": pattern})))
        assert passes(compiled, json.dumps(text))


def test_a_length_counts_what_an_escape_stands_for():
    five = constrain(PLAIN, content=Content("json", {"type": "string", "minLength": 5, "maxLength": 5}))
    assert accepts(five, json.dumps("\u00e9\u65e5<b>")) and not accepts(five, json.dumps("\u00e9"))
