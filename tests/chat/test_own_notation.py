"""The notation that README.md works out, run as it stands there."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from chat_samples import family
from test_grammar import accepts
from vectors import message_of

from llamasrv.chat import notations
from llamasrv.chat.argument_rules import has_grammar, json_text, members, properties
from llamasrv.chat.formats import Calls
from llamasrv.chat.grammar import constrain
from llamasrv.chat.literals import read_literal
from llamasrv.chat.markers import marks
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Learned, Notation, OpenCall, quote, values_of
from llamasrv.chat.parser import Parser
from llamasrv.chat.round_trip import LOST, OK, round_trip
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Scanner, Steps
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import Tool

OF_THE_EXAMPLE = (
    dataclass, json, re, ClassVar, Learned, Notation, OpenCall, RuleWriter, Scanner, Steps, Tool, has_grammar, json_text,
    marks, members, properties, quote, read_literal, trial, values_of,
)  # fmt: skip

SOURCE = family(
    "{{- '<do>' + f.name -}}{%- for k, v in f.arguments.items() -%}{{- ' [' + k + ': ' + v | tojson + ']' -}}"
    "{%- endfor -%}{{- '</do>' -}}"
)
LOOK = Tool(
    "look",
    "",
    {"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}, "required": ["at", "n"]},
)


@pytest.fixture
def bracketed():
    """The class of the example."""
    readme = (Path(notations.__file__).parents[1] / "README.md").read_text("utf-8")
    code = re.search(r"```python\n(@dataclass.*?)```", readme, re.DOTALL)[1]
    found = dict(globals())
    exec(compile(code, "README.md", "exec"), found)
    return found["Bracketed"]


@pytest.fixture
def template(bracketed):
    return ChatTemplate(SOURCE, notations=(bracketed,))


def read(format, *pieces):
    parser = Parser(format, tools=(LOOK,), new_id=lambda: "1")
    events = [event for piece in pieces for event in parser.feed(piece)]
    message = message_of(events + parser.finish())
    return message["content"], [(c["name"], c["arguments"]) for c in message["tool_calls"]], parser.complete_calls


def test_it_is_learned_and_every_kind_of_turn_comes_back(template, bracketed):
    assert template.format.calls == Calls(bracketed(), call_start="<do>", call_end="</do>")
    trips = round_trip(template)
    assert trips["call"].verdict == trips["two calls"].verdict == trips["text and call"].verdict == OK
    lost = {kind for kind, trip in trips.items() if trip.verdict == LOST}
    assert not lost


def test_it_reads_the_same_for_every_cut(template):
    format = template.format
    text = 'Now.<do>look [at: "the <sea>"] [n: 7]</do>'
    whole = ("Now.", [("look", '{"at": "the <sea>", "n": 7}')], 1)
    assert read(format, text) == read(format, *text) == whole
    for cut in range(len(text)):
        assert read(format, text[:cut], text[cut:]) == whole, f"cut at {cut}"


def test_what_is_no_call_stays_text_and_what_is_cut_off_stays_incomplete(template):
    format = template.format
    assert read(format, "Say <do>") == ("Say <do>", [], 0)
    _, calls, complete = read(format, '<do>look [at: "there"] [n: ')
    assert calls == [("look", '{"at": "there", "n": ')] and complete == 0


def test_the_grammar_accepts_what_it_writes(template):
    format = template.format
    constraint = constrain(format, tools=(LOOK,), must_call=True)
    assert accepts(constraint, format.calls.write([("look", json.dumps({"at": "sea", "n": 7}))]))
    assert not accepts(constraint, format.calls.write([("look", json.dumps({"at": "sea", "n": "x"}))]))


def test_a_call_without_arguments_is_whole(template):
    """The example took it for cut off, and so a newcomer's copy of it failed at forced calls of such a tool."""
    text = template.format.calls.write([("look", "{}")])
    for cut in range(len(text)):
        assert read(template.format, text[:cut], text[cut:]) == ("", [("look", "{}")], 1)
