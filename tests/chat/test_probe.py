"""Formats learned from templates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chat_samples import FAMILIES, HERMES, STRICT
from vectors import template_of

from llamasrv.chat.families import GENERIC_CALLS, TABLE
from llamasrv.chat.formats import Blocks, Calls
from llamasrv.chat.notations.braces import Braces
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.keyword_call import KeywordCall
from llamasrv.chat.notations.named import Named
from llamasrv.chat.notations.tagged import Tagged
from llamasrv.chat.parser import Parser
from llamasrv.chat.round_trip import probe_tools
from llamasrv.chat.template import ChatTemplate, fallback_source
from llamasrv.domain.events import Reasoning, Text
from llamasrv.domain.request import Tool

LEARNED = {
    "python": Calls(KeywordCall(), section_start="<|do|>[", section_end="]<|/do|>", separator=", "),
    "python without marks": Calls(KeywordCall(), section_start="[", section_end="]", separator=", "),
    "braces": Calls(Braces(quote="<q>", all_quoted=True), call_start="<do>call:", call_end="</do>"),
    "objects between tags": Calls(JsonObject(), call_start="<call>\n", call_end="\n</call>", separator="\n"),
    "a list of objects": Calls(JsonObject(), section_start="<CALLS>[", section_end="]</CALLS>", separator=", "),
    "an object alone": Calls(JsonObject(), parallel=False),
    "a list alone": Calls(JsonObject(), section_start="[", section_end="]", separator=", "),
    "names as keys": Calls(
        JsonObject(name_is_key=True), section_start="<|calls|>[", section_end="]<|/calls|>", separator=", "
    ),
    "name, then object": Calls(Named(name_end="[ARGS]"), call_start="[CALL]"),
    "name and id, then object": Calls(Named(name_end="[ARGS]", id_mark="[ID]"), call_start="[CALL]"),
    "a section of named calls": Calls(
        Named(name_end="<|sep|>"),
        section_start="<|calls|>",
        section_end="<|/calls|>",
        call_start="<|call|>",
        call_end="<|/call|>",
    ),
    "fenced": Calls(
        Named(name_end="\n```json\n"),
        section_start="<|calls|>",
        section_end="<|/calls|>",
        call_start="<|call|>",
        call_end="\n```<|/call|>",
        separator="\n",
    ),
    "function tags": Calls(Named(name_end=">"), call_start="<fn=", call_end="</fn>"),
    "values on lines": Calls(
        Tagged(name_end=">\n", key_start="<arg=", key_end=">\n", value_end="\n</arg>\n"),
        call_start="<call>\n<fn=",
        call_end="</fn>\n</call>",
        separator="\n",
    ),
    "keys and values": Calls(
        Tagged(name_end="\n", key_start="<key>", key_end="</key>\n<value>", value_end="</value>\n"),
        call_start="<call>",
        call_end="</call>",
        separator="\n",
    ),
    "attributes": Calls(
        Tagged(name_end='">\n', key_start='<parameter name="', key_end='">', value_end="</parameter>\n"),
        section_start="<calls>\n",
        section_end="\n</calls>",
        call_start='<invoke name="',
        call_end="</invoke>",
        separator="\n",
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_it_learns_how_calls_are_written(name):
    format = ChatTemplate(FAMILIES[name]).format
    assert format.learned and format.calls == LEARNED[name]


def test_it_learns_the_marks_around_reasoning():
    reasoning = ChatTemplate(HERMES).format.reasoning
    assert (reasoning.start, reasoning.end) == ("<think>\n", "\n</think>\n\n")


def test_it_finds_the_marks_that_a_template_only_names():
    source = STRICT.replace("message.content | trim", "message.content.split('</ponder:think>')[-1]")
    reasoning = ChatTemplate(source).format.reasoning
    assert (reasoning.start, reasoning.end) == ("<ponder:think>", "</ponder:think>")


def test_it_assumes_the_usual_marks_where_nothing_is_said():
    assert ChatTemplate(STRICT).format.reasoning.assumed


@pytest.mark.parametrize("source", [STRICT, fallback_source(), fallback_source("plain")])
def test_a_template_without_tools_gets_the_generic_format(source):
    format = ChatTemplate(source).format
    assert format.name == "generic" and replace(format.calls, gap="", indent="") == GENERIC_CALLS


def test_it_describes_itself_without_what_is_not_set():
    told = ChatTemplate(FAMILIES["name, then object"]).format.describe()
    assert told["format"] == "named" and told["learned"] is True
    assert told["calls"]["call_start"] == "[CALL]" and "id_mark" not in told["calls"]


def test_it_knows_which_special_tokens_are_part_of_its_marks():
    format = ChatTemplate(FAMILIES["a section of named calls"]).format
    assert format.needs("<|call|>") and format.needs("<|/calls|>") and format.needs("</think>")
    assert not format.needs("<|end|>") and not format.needs("")
    harmony = next(family.format for family in TABLE if family.format.name == "harmony")
    assert all(harmony.needs(token) for token in ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>"))


def test_a_tag_before_a_call_alone_says_nothing():
    source = FAMILIES["an object alone"] + "{# <|python_tag|> #}"
    assert ChatTemplate(source).format.silent == ("<|python_tag|>",)


def test_the_end_of_a_thought_in_front_of_a_call_is_no_mark_of_the_call():
    """Learned with it, the mark of the section was never found alone, and stayed in the content before every call."""
    source = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
        "{% if m.role == 'assistant' and m.tool_calls %}  <|bot|></think>    {{ m.content or '' }}"
        "{% for c in m.tool_calls %}{{ '<calls>' if loop.first }}<call>{{ c.function.name }}<sep>"
        "{{ c.function.arguments | tojson }}</call>{% endfor %}  </calls><end>"
        "{% elif m.role == 'assistant' %}<|bot|> </think> {{ m.content }}<end>"
        "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|bot|></think>{% endif %}"
    )
    format = ChatTemplate(source).format
    assert (format.calls.section_start, format.calls.call_start) == ("<calls>", "<call>")
    parser = Parser(format, prompt="<|bot|></think>", tools=(Tool("look", "", {}),))
    events = parser.feed("Now.<calls><call>look<sep>{}</call></calls>") + parser.finish()
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Now."
    assert parser.complete_calls == 1


def test_a_format_is_derived_once():
    template = ChatTemplate(HERMES)
    assert template.format is template.format


BLOCKS = (
    "{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content %}<|model|><|thought|>{{ m.reasoning_content }}<|end|>{% endif %}"
    "{% if m.content %}<|model|><|text|>{{ m.content }}<|end|>{% endif %}"
    "{% for c in m.tool_calls %}<|model|>{{ c.function.name }}<|call|>"
    '{"name": "{{ c.function.name }}", "args": {{ c.function.arguments | tojson }}}<|end|>{% endfor %}<|done|>'
    "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|model|>{% endif %}"
)


def test_rows_of_typed_blocks_are_learned():
    """Every mark of a header was taken for the recipient's of a message, and what stood in the blocks was lost."""
    format = ChatTemplate(BLOCKS).format
    assert (format.name, format.unsure) == ("blocks", ())
    assert format.blocks == Blocks("<|model|>", "<|text|>", "<|thought|>", "<|end|>", "<|end|><|done|>")
    assert format.calls is not None and (format.calls.header, format.calls.call_start) == ("{name}", "<|call|>")


@pytest.mark.parametrize(
    "output, expected",
    [
        ("<|text|>Hi<|end|><|done|>", ("Hi", "", 0)),
        ("Hi there<|end|>", ("Hi there", "", 0)),
        ("<|text|>    return 1<|end|><|done|>", ("    return 1", "", 0)),
        ("<|text|>It is <|end|> that ends<|end|>", ("It is <|end|> that ends", "", 0)),
        ("<|thought|>Hm<|end|><|model|><|text|>Hi", ("Hi", "Hm", 0)),
        ("<|thought|>a<|end|><|model|><|text|>b<|end|><|model|><|thought|>c<|end|>", ("b", "ac", 0)),
        ('zqtool<|call|>{"name": "zqtool", "args": {}}<|end|><|model|><|text|>x', ("x", "", 1)),
        ('<|call|>{"name": "zqtool", "args": {}}<|end|><|model|>a<|call|>{"name": "a", "args": {}}', ("", "", 2)),
    ],
)
def test_blocks_are_read_however_the_text_is_cut(output, expected):
    for cut in range(len(output) + 1):
        parser = Parser(ChatTemplate(BLOCKS).format, prompt="<|model|>", tools=probe_tools())
        events = parser.feed(output[:cut]) + parser.feed(output[cut:]) + parser.finish()
        said = "".join(event.text for event in events if isinstance(event, Text))
        thought = "".join(event.text for event in events if isinstance(event, Reasoning))
        assert (said, thought, parser.complete_calls) == expected, cut


def test_a_mark_that_only_the_instructions_show_is_learned():
    """A model wrote what it was asked for, and each call came back as text."""
    source = (
        '{% if tools %}Write calls as calltools[{"name": NAME, "arguments": ...}]. {{ tools | tojson }}{% endif %}'
        "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
        "{% endfor %}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}<|assistant|>"
    )
    calls = ChatTemplate(source).format.calls
    assert calls is not None and (calls.section_start, calls.section_end) == ("calltools[", "]")


def test_a_word_before_each_answer_is_no_part_of_it():
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}Helper: {% endif %}{{ m.content }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    format = ChatTemplate(source).format
    assert format.leads == ("Helper:",)
    for output, expected in (("Helper: Hi", "Hi"), ("Hi Helper: no", "Hi Helper: no")):
        parser = Parser(format)
        events = parser.feed(output) + parser.finish()
        assert "".join(event.text for event in events if isinstance(event, Text)) == expected


FAMILIES_OF_THE_COLLECTION = {
    "Llama-3.2-pythonic": "keywords", "Llama-4-pythonic": "keywords", "GigaChat3.5": "tagged", "Phi-4-mini": "json",
    "Command-A-Reasoning": "command r7b", "Hunyuan": "json", "HyperCLOVAX": "blocks", "Inkling": "blocks",
    "xLAM": "json", "FunctionGemma": "braces",
    "Llama-3": "json", "Hermes": "json", "Qwen2.5": "json", "Mistral-Nemo": "json", "firefunction": "json", "QwQ": "json",
    "functionary-medium-v3.1": "named", "functionary-medium-v3.2": "functionary 3.2", "command-r7b": "command r7b",
    "DeepSeek-R1": "named", "deepseek-r1": "named", "DeepSeek-V3.1": "named", "DeepSeek-V3.2": "tagged",
    "DeepSeek-V4": "tagged", "Qwen3-0.6B": "json", "Qwen3-Coder": "tagged", "Qwen3.5": "tagged",
    "gpt-oss": "harmony", "GLM": "tagged", "Kimi-K2": "named", "Kimi-K3": "kimi k3", "MiniMax-M2": "tagged",
    "MiniMax-M3": "minimax m3", "MiniMax-M1": "json", "gemma-2": "generic", "gemma-4": "gemma 4",
    "granite-3.3": "granite 3.3", "granite-4": "json", "Nemotron-3": "tagged", "Nemotron-Nano-v2": "json",
    "LFM2": "lfm2", "Seed-OSS": "tagged", "Ministral": "named", "Mistral-Small": "named", "Devstral": "named",
    "Apertus": "json", "Apriel": "json", "GigaChat3-": "json", "GigaChat3.1": "json", "Phi": "generic",
    "SmolLM3": "generic", "Solar": "blocks", "MiMo": "json", "Laguna": "tagged", "Hy3": "tagged", "Bielik": "json",
    "command-r-plus": "json", "rwkv": "generic", "Cohere2MoE": "json", "ling-3": "tagged", "muse": "messages",
}  # fmt: skip


def test_every_template_of_the_collection_has_its_format(template_file):
    expected = [name for part, name in FAMILIES_OF_THE_COLLECTION.items() if part in template_file.stem]
    assert expected, "no family is expected for this template"
    assert template_of(template_file.read_text(encoding="utf-8"))[1].name == expected[0]
