"""Marks, headers and blocks that no table knows: learned, read for every cut, and allowed by the grammar."""

from __future__ import annotations

import json
import time

import pytest
from chat_samples import FAMILIES, LEARNED_BY_MARKS
from test_grammar import accepts
from vectors import message_of

from llamasrv.chat import round_trip
from llamasrv.chat.formats import Headers
from llamasrv.chat.grammar import constrain
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.parser import Parser
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import Tool

TOOLS = (
    Tool("weather", "", {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool("note", "", {"type": "object", "properties": {"text": {"type": ["string", "integer", "null"]}}}),
)


def format_of(name):
    return ChatTemplate({**FAMILIES, **LEARNED_BY_MARKS}[name]).format


def read(format, text, prompt="", **kwargs):
    """The message, which must be the same for every cut: content, reasoning, calls."""

    def parse(*pieces):
        numbers = iter(range(100))
        parser = Parser(format, prompt=prompt, tools=TOOLS, new_id=lambda: str(next(numbers)), **kwargs)
        return message_of([event for piece in pieces for event in parser.feed(piece)] + parser.finish())

    whole = parse(text)
    for cut in range(len(text) + 1):
        assert parse(text[:cut], text[cut:]) == whole, f"cut at {cut}"
    assert parse(*text) == whole
    calls = [(call["name"], json.loads(call["arguments"])) for call in whole["tool_calls"]]
    return whole["content"].strip(), whole["reasoning_content"].strip(), calls


# -- what is learned


def test_it_learns_blocks_for_text_thoughts_and_calls():
    format = format_of("blocks")
    assert (format.content_start, format.content_end) == ("<|SAY|>", "<|/SAY|>")
    assert (format.reasoning.start, format.reasoning.end) == ("<|MULL|>", "<|/MULL|>")
    assert format.calls.notation == JsonObject("fn", "input", "ref_id", id_first=True, id_counts=True)
    assert format.calls.section_end == "]<|/DO|>"


@pytest.mark.parametrize(
    "name, headers",
    [
        ("letters", Headers("<|from|>bot", " to=", "<|says|>", "you", "me", "", "<|next|>", "<|eot|>")),
        ("letters to marks", Headers("<|from|>bot", "<|to|>", "<|says|>", "you", "me", "", "<|next|>", "<|eot|>")),
        ("letters with arguments", Headers("<|from|>bot", " @", "<|:|>", "you", "me", "fn.", "<|+|>", "<|eot|>")),
    ],
)
def test_it_learns_headers_with_recipients(name, headers):
    assert format_of(name).headers == headers


def test_it_learns_the_end_of_a_turn_and_attributes_of_values():
    assert format_of("ends of roles").role_ends == ("</turn>",)
    assert format_of("wrapped").calls.notation.cdata
    kinds = format_of("kinds").calls.notation
    assert (kinds.string_type, kinds.other_type) == (' kind="text">', ' kind="data">')


@pytest.mark.parametrize("name", LEARNED_BY_MARKS)
def test_the_grammar_allows_what_the_template_shows(name):
    template = ChatTemplate(LEARNED_BY_MARKS[name])
    for trip in round_trip.round_trip(template).values():
        if trip.verdict != round_trip.OK or trip.prompt.endswith(template.format.calls.call_start or "\0"):
            continue
        output = trip.output.removesuffix("<|eot|>").removesuffix("<|end|>").removesuffix("</turn>")
        constraint = constrain(template.format, prompt=trip.prompt, tools=round_trip.probe_tools())
        assert accepts(constraint, output), trip.kind


# -- what is read


def test_blocks_come_apart():
    text = '<|MULL|>Hm.<|/MULL|>\n<|SAY|>Hello!<|/SAY|><|DO|>[{"ref_id": "0", "fn": "note", "input": {"text": "x"}}]<|/DO|>'
    assert read(format_of("blocks"), text) == ("Hello!", "Hm.", [("note", {"text": "x"})])


def test_the_end_of_a_block_ends_the_text_without_a_trace():
    assert read(format_of("blocks"), "<|SAY|>Hello!<|/SAY|><|eot|>") == ("Hello!", "", [])
    assert read(format_of("blocks"), "Hello!") == ("Hello!", "", [])


def test_letters_come_apart():
    text = (
        ' to=me<|says|>Hm.<|next|><|from|>bot to=you<|says|>Look!<|next|><|from|>bot to=note<|says|><go>\n<do="note">\n'
        '<with="text">a</with>\n</do>\n</go><|next|><|from|>bot to=weather<|says|><go>\n<do="weather">\n'
        '<with="days">3</with>\n</do>\n</go><|eot|>'
    )
    assert read(format_of("letters"), text) == ("Look!", "Hm.", [("note", {"text": "a"}), ("weather", {"days": 3})])


@pytest.mark.parametrize("to", ["you", "me"])
def test_a_call_that_is_quoted_in_a_letter_to_the_user_or_to_itself_is_none(to):
    quoted = 'Write <go>\n<do="note">\n<with="text">a</with>\n</do>\n</go>, then.'
    content, thought, calls = read(format_of("letters"), f" to={to}<|says|>{quoted}<|eot|>")
    assert (content or thought, calls) == (quoted, [])


def test_a_call_without_a_header_is_one_all_the_same():
    text = '<go>\n<do="note">\n<with="text">a</with>\n</do>\n</go><|eot|>'
    assert read(format_of("letters"), text) == ("", "", [("note", {"text": "a"})])


def test_letters_whose_header_names_the_tool_come_apart():
    text = ' @me<|:|>Hm.<|+|><|from|>bot @fn.note<|:|>{"text": "a"}<|+|><|from|>bot @you<|:|>Done.<|eot|>'
    assert read(format_of("letters with arguments"), text) == ("Done.", "Hm.", [("note", {"text": "a"})])


@pytest.mark.parametrize("text", ["Hello to=you all", "to be", " to=", "Plain words."])
def test_text_without_a_header_is_content(text):
    assert read(format_of("letters"), text)[0] == ("" if text == " to=" else text)


def test_an_open_thought_ends_at_a_call():
    """Some models call amid a thought. If its end mark still comes, what looked like a call was thought."""
    call = '<tool_call>\n{"name": "note", "arguments": {"text": "a"}}\n</tool_call>'
    format = ChatTemplate(
        "{{- messages[0].content -}}{%- if add_generation_prompt -%}{{- '<think>' -}}{%- endif -%}"
    ).format
    assert read(format, "I will note it. " + call, "<think>") == ("", "I will note it.", [("note", {"text": "a"})])
    assert read(format, f"I may {call} or not</think>No.", "<think>") == ("No.", f"I may {call} or not", [])
    assert read(format, f"I may <tool_call> or so, {call}", "<think>")[2] == [("note", {"text": "a"})]
    assert read(format, "I may <tool_call> or so", "<think>") == ("", "I may <tool_call> or so", [])
    parser = Parser(format, prompt="<think>", tools=TOOLS)
    assert message_of(parser.feed("I may <tool_call> or so"))["reasoning_content"] == "I may <tool_call> or so"
    assert read(format, f"{call}\n</think>\nDone.", "<think>") == ("Done.", "", [("note", {"text": "a"})])


def test_a_block_of_text_ends_a_thought_that_is_open():
    format = format_of("blocks, thinking")
    assert read(format, "<say>Hello!</say>", "<|bot|><mull>\n") == ("Hello!", "", [])
    assert read(format, "Hm. <say>Hello!</say>", "<|bot|><mull>\n") == ("Hello!", "Hm.", [])


@pytest.mark.parametrize("name, prompt, text", [
    ("blocks, thinking", "<|bot|><mull>\n", '<|DO|>[{"fn": "note", "input": '), ("ends of roles", "", "</turn> "),
    ("letters", "", "<|from|>bot to=you<|says|>a<|next|>"), ("letters", "", " to=me "),
    ("letters with arguments", "", ' @fn.note<|:|>{"text": "a"}<|+|><|from|>bot'), ("wrapped", "", '<run="note"><p n="text"><![CDATA['),
    ("wrapped", "", '<run="note"><p n="text">]]><![CDATA['), ("wrapped", "<think>", '<run="note"><p n="text">'),
])  # fmt: skip
def test_the_work_is_linear_in_the_text(name, prompt, text):
    def seconds(times):
        parser = Parser(format_of(name), prompt=prompt, tools=TOOLS)
        pieces = [text * 10] * (times // 10)
        started = time.process_time()
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
        return time.process_time() - started

    seconds(100)
    small = min(seconds(500) for _ in range(3))
    assert seconds(8000) < 16 * 4 * small + 0.2


def test_thinking_as_content_begins_with_the_mark_that_the_prompt_wrote():
    format = format_of("blocks, thinking")
    text = "Hm.\n</mull><say>Hello!</say>"
    assert read(format, text, "<|bot|><mull>\n", reasoning=False)[0] == "<mull>\nHm.\n</mull>Hello!"
    assert read(format, text, "<|bot|><mull>\n") == ("Hello!", "Hm.", [])


def test_the_end_of_a_turn_written_as_text_says_nothing():
    format = format_of("ends of roles")
    call = '<call>{"name": "note", "arguments": {"text": "a"}}</call>'
    assert read(format, "Hello!</turn>\n") == ("Hello!", "", [])
    assert read(format, call + "</turn>") == ("", "", [("note", {"text": "a"})])
    assert read(format, "A </turn> in a text") == ("A </turn> in a text", "", [])


@pytest.mark.parametrize("written, value", [
    ("7", 7), ("seven", "seven"), ("null", None), ('"7"', '"7"'), ("True", "True"), ("{1", "{1"), ("[1]", "[1]"),
    ("<![CDATA[<b>7</p>]]>", "<b>7</p>"), ("<![CDATA[a]]]]><![CDATA[>b]]>", "a]]>b"), ("<![CDATA[7]]>", 7),
])  # fmt: skip
def test_a_value_is_text_where_its_schema_allows_text_and_nothing_else_fits(written, value):
    text = f'<run="note"><p n="text">{written}</p></run>'
    assert read(format_of("wrapped"), text) == ("", "", [("note", {"text": value})])


def test_values_say_what_kind_they_are():
    text = '<run="note"><p n="text" kind="text">7</p></run>\n<run="note"><p n="text" kind="data">7</p></run>'
    assert read(format_of("kinds"), text)[2] == [("note", {"text": "7"}), ("note", {"text": 7})]


def test_a_stray_mark_before_plain_text_says_nothing():
    from llamasrv.chat.families import GEMMA4, HARMONY

    assert read(GEMMA4, "<|channel>Hello!") == ("Hello!", "", [])
    assert read(GEMMA4, "<|channel>thought\nHm.<channel|>Hello!") == ("Hello!", "Hm.", [])
    assert read(HARMONY, "<|channel|>Hello, you!") == ("Hello, you!", "", [])
    assert read(HARMONY, "<|channel|>fin")[0] == ""


# -- what published formats taught

PLAIN = "{%- for m in messages -%}{{- '<|' + m.role + '|>' -}}BODY{{- '<|end|>' -}}{%- endfor -%}{{- PROMPT if add_generation_prompt -}}"
MADE = "{%- for c in m.tool_calls or [] -%}{%- set f = c.function -%}CALL{%- endfor -%}"


def learned(body, prompt="<|assistant|>", call=""):
    made = MADE.replace("CALL", call) if call else ""
    return ChatTemplate(PLAIN.replace("BODY", body + made).replace("PROMPT", repr(prompt)), special_tokens=()).format


def forced(format, text, prompt=""):
    return accepts(constrain(format, prompt=prompt, tools=TOOLS, must_call=True), text)


def test_a_tag_that_the_prompt_opens_and_the_source_closes_is_a_thought():
    format = learned("{{- (m.content or '').split('</mull>')[-1] -}}", prompt="<|assistant|><mull>\n")
    assert read(format, "Hm.\n</mull>\n\nYes.", prompt="<|assistant|><mull>\n") == ("Yes.", "Hm.", [])


def test_marks_of_an_answer_are_found_behind_an_empty_thought():
    body = (
        "{%- if m.role == 'assistant' -%}{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n' -}}"
        "{{- m.content if m.tool_calls else '<answer>\\n' + m.content + '\\n</answer>' -}}"
        "{%- else -%}{{- m.content -}}{%- endif -%}"
    )
    format = learned(body, call="{{- '<do>' + f.name + f.arguments | tojson + '</do>' -}}")
    assert (format.content_start.strip(), format.content_end.strip()) == ("<answer>", "</answer>") and not format.unsure
    assert read(format, "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>") == ("Yes.", "Hm.", [])


def test_words_that_end_a_thought_before_an_answer_are_not_asked_for_before_a_call():
    body = "{{- 'Thought: ' + m.reasoning_content + '\\n' if m.reasoning_content -}}{{- 'Final: ' + m.content if m.content -}}"
    call = "{{- 'Action: ' + f.name + '\\nInput: ' + f.arguments | tojson -}}"
    format = learned(body.replace("if m.content", "if m.content and m.role == 'assistant'"), call=call)
    assert format.reasoning.ended_by_calls
    assert forced(format, 'Thought: Hm.\nAction: weather\nInput: {"town": "Oslo"}')
    assert forced(format, 'Action: weather\nInput: {"town": "Oslo"}')


def test_a_token_that_ends_turns_with_calls_may_be_one_without_text():
    body = "{{- m.content -}}"
    call = "{{- '<|do|>{\"name\": \"' + f.name + '\", \"arguments\": ' + f.arguments | tojson + '}' -}}"
    source = PLAIN.replace("BODY", body + MADE.replace("CALL", call)).replace("PROMPT", "'<|assistant|>'")
    format = ChatTemplate(
        source.replace("'<|end|>'", "'<|eom|>' if m.tool_calls else '<|end|>'"), special_tokens=()
    ).format
    call = '<|do|>{"name": "note", "arguments": {"text": "x"}}'
    assert forced(format, call) and forced(format, call + "<|eom|>")


def test_python_may_lose_its_commas_or_be_printed():
    pairs = "{%- for k, v in f.arguments.items() -%}{{- k + '=' + v | tojson -}}{%- endfor -%}"
    call = "{{- '[' + f.name + '(' -}}" + pairs + "{{- ')]' -}}"
    format = learned("{{- m.content or '' -}}", call=call)
    made = [("weather", {"town": "Oslo", "days": 2})]
    assert (
        read(format, '[weather(town="Oslo", days=2)]') == read(format, '[weather(town="Oslo"days=2)]') == ("", "", made)
    )
    assert forced(format, '[weather(town="Oslo", days=2)]')
    assert read(format, "[print(weather(town='Oslo', days=2))]") == ("", "", made)


def test_a_text_that_begins_with_the_name_of_a_tool_is_none_of_its_calls():
    call = "{{- f.name + '\\n' + f.arguments | tojson -}}"
    format = learned("{{- '\\n' + m.content if m.content -}}", call=call)
    assert read(format, 'weather\n{"town": "Oslo"}', "<|assistant|>") == ("", "", [("weather", {"town": "Oslo"})])
    assert read(format, "weather\nis what I like", "<|assistant|>") == ("weather\nis what I like", "", [])


def test_a_text_behind_a_mark_of_its_own_may_have_several_lines():
    """It ended with its first line, and the rest of the call was content."""
    pairs = "{%- for k, v in f.arguments.items() -%}{{- '<|p|>' + k + ' = ' + (v if v is string else v | tojson) + '\\n' -}}{%- endfor -%}"
    call = "{{- '<|invoke|>' + f.name + '\\n' -}}" + pairs + "{{- '<|done|>' -}}"
    format = learned("{{- m.content or '' -}}", call=call)
    made = {"town": "Oslo\nand = 1\n\tBergen", "days": 2}
    text = f"<|invoke|>weather\n<|p|>town = {made['town']}\n<|p|>days = 2\n<|done|>"
    assert read(format, text) == ("", "", [("weather", made)])
