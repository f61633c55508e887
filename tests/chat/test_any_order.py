"""Calls whose name, ids, arguments and types stand in an order of the template's own."""

from __future__ import annotations

import json

import pytest
from fresh_layouts import Layout, calls, each, write
from test_fresh_layouts import PARIS, results
from test_grammar import accepts
from vectors import message_of

from llamasrv.chat.grammar import constrain
from llamasrv.chat.notations.any_order import AnyOrder
from llamasrv.chat.parser import Parser
from llamasrv.chat.round_trip import probe_tools
from llamasrv.chat.template import ChatTemplate

NAME_BEHIND = write("<act><args>", "JSON", "</args><name>", "NAME", "</name></act>")
LAYOUTS = {
    "the name behind its arguments": Layout(calls(NAME_BEHIND, between="\n")),
    "an id behind everything": Layout(calls(write("<act>", "NAME", " ", "JSON", " #", "ID", "</act>"))),
    "values described by attributes": Layout(
        calls(write('<act name="', "NAME", '">') + each('<arg k="', "KEY", '" v=', "VALUE", "/>") + write("</act>")),
    ),
    "a type behind each value": Layout(
        calls(write('<act name="', "NAME", '">') + each("<", "KEY", ">", "RAW", "</", "KEY", ":", "KIND", ">") + write("</act>")),
    ),
    "elements named after types": Layout(
        calls(write('<act name="', "NAME", '">') + each("<", "KIND", ' name="', "KEY", '">', "RAW", "</", "KIND", ">") + write("</act>")),
    ),
    "values without keys": Layout(calls(write("<act>", "NAME", "(") + each("VALUE", between=", ") + write(")</act>"))),
    "a list of keys and values": Layout(
        calls(write('<act>{"fn": "', "NAME", '", "args": [') + each('{"k": "', "KEY", '", "v": ', "VALUE", "}", between=", ")
              + write("]}</act>")),
    ),
    "words for the user behind the sign of calls": Layout(
        calls(write("=>", "NAME", "\n", "JSON", "\n")), text=("=>user\n", "\n"),
    ),
    "a dictionary that is printed": Layout(
        calls("{{- '<run>' ~ {'name': f.name, 'arguments': f.arguments} ~ '</run>' }}"),
    ),
    "brackets and a sign that end each call": Layout(
        calls(write("NAME", "(", "JSON", ");\n"), before="<<\n", after=">>"),
    ),
    "a count in the mark of all calls": Layout(
        calls(write("<act>", "NAME", ": ", "JSON", "</act>"), after="</acts>").replace(
            "{%- for c", "{{- '<acts n=\"' ~ (m.tool_calls | length) ~ '\">' }}{%- for c", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_in_another_order_is_read_and_can_be_forced(name):
    assert {kind: right for kind, right in results(LAYOUTS[name]).items() if not right} == {}


def test_a_count_or_an_id_may_be_another_than_the_trial_had():
    format = ChatTemplate(LAYOUTS["a count in the mark of all calls"].source).format
    assert format.calls.section_start == '<acts n="{total}">'
    call = '<act>zqtool: {"zqfirst": "a", "zqsecond": 1}</act>'
    constraint = constrain(format, tools=probe_tools(), must_call=True)
    assert accepts(constraint, f'<acts n="3">{call * 3}</acts>')
    parser = Parser(format, tools=probe_tools())
    parser.feed(f'<acts n="3">{call * 3}</acts>')
    assert parser.finish() is not None and parser.complete_calls == 3


def test_what_is_written_is_what_is_read():
    notation = AnyOrder(
        before='{name}" id="{id}">', pair="{key}:{type}={value};", text_type="str", other_types=(("integer", "int"),)
    )
    assert notation.write("f", '{"a": "b", "c": 1}', 0) == 'f" id="000000000">a:str=b;c:int=1;'


def test_a_text_whose_key_comes_behind_it_may_hold_the_sign_between_them():
    """It ended at its first bracket, in silence."""
    source = Layout(
        calls(write("<act>", "NAME") + each(" ", "RAW", " (", "KEY", ")", between=",") + write("</act>"))
    ).source
    parser = Parser(ChatTemplate(source).format, tools=probe_tools())
    message = message_of(parser.feed("<act>zqtool Oslo (Norway), west (zqfirst), 7 (zqsecond)</act>") + parser.finish())
    assert json.loads(message["tool_calls"][0]["arguments"]) == {"zqfirst": "Oslo (Norway), west", "zqsecond": 7}


def test_a_call_whose_name_never_comes_stays_text():
    format = ChatTemplate(LAYOUTS["the name behind its arguments"].source).format
    text = f"<act><args>{json.dumps(PARIS[1])}</args> and nothing"
    parser = Parser(format, tools=probe_tools())
    said = "".join(event.text for event in parser.feed(text) + parser.finish())
    assert said == text and parser.calls == 0
