"""What was learned of a template and loses calls makes way for the next candidate."""

from __future__ import annotations

import pytest
from chat_samples import FAMILIES, family
from vectors import COLLECTION

from llamasrv.chat.families import LFM2_CALLS
from llamasrv.chat.formats import ChatFormat, ReasoningMarks
from llamasrv.chat.parser import Parser
from llamasrv.chat.round_trip import LOST, OK, round_trip
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.events import Reasoning, Text, ToolCallStart
from llamasrv.domain.request import Tool

LFM2 = "<|tool_list_start|>"  # tells a family of the table


def verdicts(template: ChatTemplate) -> dict[str, str]:
    return {kind: trip.verdict for kind, trip in round_trip(template).items()}


def test_a_row_of_the_table_counts_where_nothing_else_is_shown():
    silent = "{{ '" + LFM2 + "' }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    assert ChatTemplate(silent).format.calls.notation == LFM2_CALLS.notation


def test_a_row_whose_words_are_in_a_comment_only_does_not_count():
    template = ChatTemplate("{# not " + LFM2 + " #}" + FAMILIES["attributes"])
    assert [format.name for format in template.candidates] == ["tagged"]


def test_a_row_that_loses_the_calls_of_its_template_makes_way_for_what_is_learned():
    template = ChatTemplate("{{- '" + LFM2 + "' -}}" + FAMILIES["attributes"])
    row, learned = template.candidates
    assert row.name == "lfm2" and "call" in row.unsure
    assert template.format is learned and (learned.name, learned.unsure) == ("tagged", ())
    assert LOST not in verdicts(template).values()


def test_where_every_candidate_loses_something_the_one_that_loses_least_is_used_and_says_so():
    """Each text has a sign before it that is no mark."""
    call = "{{- '<call>' + f.name + '[ARGS]' + f.arguments | tojson + '</call>' -}}"
    template = ChatTemplate(family(call).replace("+ m.content + '<|end|>'", "+ '? ' + m.content + '<|end|>'"))
    learned, *_, generic = template.candidates
    assert learned.unsure == ("text", "after a result")
    assert {"text", "call", "text and call", "two calls", "after a result"} < set(generic.unsure)
    assert template.format is learned


def test_a_mark_never_contains_a_word_of_the_trial():
    """The name stands before the mark, too: learned with it, no other tool was ever found."""
    call = "{{- f.name + '<|invoke|>{\"name\": \"' + f.name + '\", \"args\": ' + f.arguments | tojson + '}<|done|>' -}}"
    format = ChatTemplate(family(call)).format
    assert "zq" not in str(format)
    parser = Parser(format, tools=(Tool("look", "", {}),))
    events = parser.feed('look<|invoke|>{"name": "look", "args": {}}<|done|>') + parser.finish()
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["look"]


def test_where_every_candidate_would_hold_a_word_of_the_trial_the_generic_format_is_used():
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% if m.reasoning_content %} because {{ m.reasoning_content }}{% endif %}</end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    assert ChatTemplate(source).format.name == "generic"


def test_ids_in_marks_are_the_ids_of_the_calls():
    call = "{{- '<call ' + c.id + '>' + f.name + '[ARGS]' + f.arguments | tojson + '</call ' + c.id + '>' -}}"
    calls = ChatTemplate(family(call)).format.calls
    assert (calls.call_start, calls.call_end) == ("<call {id}>", "</call {id}>")
    parser = Parser(ChatTemplate(family(call)).format, tools=(Tool("look", "", {}),))
    events = parser.feed("<call a7>look[ARGS]{}</call a7><call b8>look[ARGS]{}</call b8> ok") + parser.finish()
    assert [event.id for event in events if isinstance(event, ToolCallStart)] == ["a7", "b8"]
    assert parser.complete_calls == 2 and events[-1].text == "ok"


def test_a_prompt_opens_a_thought_whatever_its_attributes_say():
    think = ReasoningMarks('<think effort="high">\n', "</think>")
    assert think.is_open('<bot><think effort="low">\n') and not think.is_open("<bot></think>")
    format = ChatFormat("plain", reasoning=think)
    events = Parser(format).feed('<think effort="none at all">Hm.</think>Yes.')
    assert events == [Reasoning(0, "Hm."), Text(0, "Yes.")]


def test_objects_with_commas_between_them_are_calls_without_a_list():
    call = "{{- '{\"name\": \"' + f.name + '\", \"arguments\": ' + f.arguments | tojson + '}' -}}"
    template = ChatTemplate(family(call, between="{{- ',' -}}"))
    assert template.format.calls.bare and template.format.calls.separator == ","
    assert verdicts(template)["two calls"] == OK


@pytest.mark.skipif(not COLLECTION.is_dir(), reason="the collection is not there")
def test_a_mark_never_contains_an_id_of_the_trial():
    """With other marks than the table knows, the ids in front of names were learned as part of a mark."""
    source = (COLLECTION / "upstage-Solar-Open-100B.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source.replace("<|begin|>", "<|turn|>").replace("<|tool_calls|>", "<|uses|>"))
    assert all("zq" not in str(format) for format in template.candidates)
