"""Layouts that no known model has, as another vendor might choose them: each is learned from the template."""

from __future__ import annotations

import json

import pytest
from chat_samples import family
from test_grammar import accepts
from vectors import message_of

from llamasrv.chat.grammar import constrain
from llamasrv.chat.parser import Parser
from llamasrv.chat.round_trip import LOST, OK, probe_tools, round_trip
from llamasrv.chat.template import ChatTemplate

NAME, ARGUMENTS = "{{- f.name -}}", "{{- f.arguments | tojson -}}"


def says(text: str) -> str:
    return "{{- " + repr(text) + " -}}"


def each(item: str, between: str = "") -> str:
    more = "{%- if not loop.last -%}" + says(between) + "{%- endif -%}" if between else ""
    return "{%- for k, v in f.arguments.items() -%}" + item + more + "{%- endfor -%}"


KEY, VALUE, AS_JSON = "{{- k -}}", "{{- v if v is string else v | tojson -}}", "{{- v | tojson -}}"
PYTHON = NAME + says("(") + each(KEY + says("=") + AS_JSON, ", ") + says(")")
WRAPPED = says('{"type": "function", "function": {"name": "') + NAME + says('", "arguments": ') + ARGUMENTS + says("}}")
WITH_ID = says('<uses>[{"id": "') + "{{- c.id -}}" + WRAPPED.replace('{"type', '", "type', 1) + says("]</uses>")

LAYOUTS = {
    "an object under another key": family(WRAPPED, before=says("<uses>["), between=says(", "), after=says("]</uses>")),
    "a list with an id around each call": family(WITH_ID),
    "a member that is always the same": family(
        says('<t>{"type": "function", "name": "') + NAME + says('", "parameters": ') + ARGUMENTS + says("}</t>")
    ),
    "a semicolon between calls": family(PYTHON, before=says("<fn>"), between=says("; "), after=says("</fn>")),
    "a sign before each line": family(
        says("@") + NAME + says(": ") + ARGUMENTS + says("\n"), before=says("<<CALLS>>\n"), after=says("<<END>>")
    ),
    "a fence of its own": family(
        says('```tool_call\n{"name": "') + NAME + says('", "arguments": ') + ARGUMENTS + says("}\n```\n")
    ),
    "an arrow in brackets": family(says("[[") + NAME + says(" -> ") + ARGUMENTS + says("]]")),
    "marks in Chinese": family(says("《工具》") + NAME + says("《参数》") + ARGUMENTS + says("《完》")),
    "lines of Python between marks": family(
        PYTHON, before=says("<|code|>\n"), between=says("\n"), after=says("\n<|/code|>")
    ),
    "short tags with equals signs": family(
        says("<c:") + NAME + says(">") + each(says("<p:") + KEY + says("=") + VALUE + says("/>")) + says("</c>")
    ),
    "an attribute that holds the arguments": family(
        says('<tool name="') + NAME + says("\" args='") + ARGUMENTS + says("'/>")
    ),
    "words that announce an action": family(says("Action: ") + NAME + says("\nInput: ") + ARGUMENTS + says("\n")),
    "the name behind the arguments": family(
        says('<t>{"arguments": ') + ARGUMENTS + says(', "name": "') + NAME + says('"}</t>')
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_layout_is_learned_and_its_own_writing_is_allowed(layout):
    template = ChatTemplate(LAYOUTS[layout])
    format, trips = template.format, round_trip(template)
    assert format.learned and format.unsure == () and LOST not in {trip.verdict for trip in trips.values()}
    assert trips["call"].verdict == trips["two calls"].verdict == OK
    for kind in ("call", "two calls"):
        output = trips[kind].output.removesuffix("<|end|>")
        assert accepts(constrain(format, tools=probe_tools(), must_call=True), output), output
        parser = Parser(format, tools=probe_tools())
        cut = message_of([event for char in output for event in parser.feed(char)] + parser.finish())
        assert [call["name"] for call in cut["tool_calls"]] == ["zqtool", "zqother"][: len(cut["tool_calls"])]
        assert [sorted(json.loads(call["arguments"])) for call in cut["tool_calls"]] == [
            ["zqfirst", "zqsecond"]
        ] * parser.complete_calls


def test_what_is_the_same_in_every_call_is_written_in_a_forced_one():
    format = ChatTemplate(LAYOUTS["a member that is always the same"]).format
    call = '<t>{"type": "function", "name": "zqtool", "parameters": {"zqfirst": "a", "zqsecond": 1}}</t>'
    constraint = constrain(format, tools=probe_tools(), must_call=True)
    assert accepts(constraint, call) and not accepts(constraint, call.replace('"type": "function", ', ""))
    assert format.calls.write([("zqtool", '{"zqfirst": "a", "zqsecond": 1}')]) == call


def test_thoughts_between_two_phrases_are_learned():
    source = family(says('<t>{"name": "') + NAME + says('", "arguments": ') + ARGUMENTS + says("}</t>")).replace(
        "{{- '<|' + {'assistant': 'bot'}.get(m.role, m.role) + '|>'",
        "{{- '<|' + {'assistant': 'bot'}.get(m.role, m.role) + '|>' + "
        "('Thoughts:\\n' + m.reasoning_content + '\\nAnswer:\\n' if m.reasoning_content else '')",
    )
    template = ChatTemplate(source)
    assert round_trip(template)["thought"].verdict == OK
    assert (template.format.reasoning.start, template.format.reasoning.end) == ("Thoughts:\n", "\nAnswer:\n")
