"""Whatever a grammar lets a model write where a call must come is read back as that call."""

from __future__ import annotations

import json
import random

import pytest
from chat_samples import FAMILIES, family
from test_grammar import accepts, matcher
from vectors import message_of, template_of

from llamasrv.chat.grammar import constrain
from llamasrv.chat.parser import Parser
from llamasrv.chat.round_trip import probe_tools, round_trip
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Message, Tool

jsonschema = pytest.importorskip("jsonschema")

LIKELY = b"abc <\"'{}[]/|>\n:=,0"  # what marks are made of
FORCED = (
    Tool(
        "look_up",
        "look",
        {
            "type": "object",
            "required": ["at", "n", "on", "free"],
            "properties": {
                "at": {"type": "string", "enum": ["sea", "sky <b>"], "description": "where"},
                "n": {"type": "integer", "description": "how often"},
                "on": {"type": "boolean", "description": "whether"},
                "free": {"type": "string", "maxLength": 12, "description": "anything"},
            },
        },
    ),
    Tool("ping", "ping", {"type": "object", "properties": {}}),
)
SCHEMAS = {tool.name: tool.parameters for tool in FORCED}


def written_under(constraint, seed: int, before: str = "") -> str:
    """A text that the grammar allows and that is whole: bytes at random, those of marks first."""
    found, chance, text = matcher(constraint), random.Random(seed), bytearray(before.encode())
    assert found.try_consume_tokens(list(text)) == len(text)
    while not found.is_accepting():
        assert len(text) < 2000, "it does not end"
        mask = found.compute_bitmask()
        allowed = [n for n in range(256) if mask[n >> 3] >> (n & 7) & 1]
        assert allowed, f"nothing may follow {text!r}"
        token = chance.choice([n for n in allowed if n in LIKELY] or allowed)
        found.consume_token(token)
        text.append(token)
    return text.decode("utf-8", "replace")


def check_forced_calls(template: ChatTemplate) -> None:
    rendered = template.render(ChatPrompt((Message("user", "Hi"),), tools=FORCED))
    format, prompt = template.format, rendered.text
    constraint = constrain(format, prompt=prompt, tools=FORCED, must_call=True, thinking=False)
    thought, rows = format.reasoning, format.headers or format.blocks
    before = "Hm." + thought.end if thought is not None and not rows and thought.is_open(prompt) else ""
    for seed in range(3):
        text = written_under(constraint, seed, before)
        parser = Parser(format, prompt=prompt, tools=FORCED)
        message = message_of(parser.feed(text) + parser.finish())
        assert parser.calls == parser.complete_calls >= 1 and not message["content"].strip(), text
        for call in message["tool_calls"]:
            jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forced_call_of_a_template_of_our_own_comes_back(name):
    check_forced_calls(ChatTemplate(FAMILIES[name]))


def test_a_forced_call_of_a_template_of_the_collection_comes_back(template_file):
    check_forced_calls(template_of(template_file.read_text(encoding="utf-8"))[0])


@pytest.mark.parametrize("form", [{"maxLength": 12}, {"pattern": "^[a-z ]+$"}], ids=lambda form: next(iter(form)))
def test_a_text_of_a_given_form_ends_at_a_mark_on_a_line_of_its_own(form):
    """The line break before the mark was taken for a backslash and an n: nothing could follow such a value."""
    tool = Tool(
        "note", "", {"type": "object", "properties": {"text": {"type": "string", **form}}, "required": ["text"]}
    )
    format = ChatTemplate(FAMILIES["values on lines"]).format
    constraint = constrain(format, tools=(tool,), must_call=True)
    assert accepts(constraint, format.calls.write([("note", '{"text": "some words"}')]))
    assert not accepts(constraint, format.calls.write([("note", '{"text": "FAR TOO MANY WORDS"}')]))


SHOWN = {
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "the section of one call has no end",
}
"""Templates whose own writing of a call the grammar does not allow, although the parser reads it."""


def test_the_own_writing_of_a_call_of_the_collection_is_allowed(template_file):
    template = template_of(template_file.read_text(encoding="utf-8"))[0]
    format, trip = template.format, round_trip(template)["call"]
    thought, rows = format.reasoning, format.headers or format.blocks
    asked = template.render(ChatPrompt((Message("user", "zquser"),), tools=probe_tools())).text
    own = max(
        (n for n in range(len(trip.output)) if asked.endswith(trip.output[:n])), default=0
    )  # the prompt writes it
    is_open = (
        thought is not None and not rows and thought.is_open(trip.prompt) and thought.end.strip() not in trip.output
    )
    output = (thought.end if is_open else "") + trip.output[own:].lstrip("\n")
    found, whole = matcher(constrain(format, prompt=trip.prompt, tools=probe_tools(), must_call=True)), 0
    for place, byte in enumerate(output.encode(), 1):
        if not found.try_consume_tokens([byte]):
            break
        whole = place if found.is_accepting() else whole
    parser = Parser(format, prompt=trip.prompt, tools=probe_tools())
    message = message_of(parser.feed(output.encode()[:whole].decode()) + parser.finish())
    calls = [(call["name"], sorted(json.loads(call["arguments"]))) for call in message["tool_calls"]]
    assert (calls == [("zqtool", ["zqfirst", "zqsecond"])]) == (template_file.stem not in SHOWN)


def test_a_text_without_quotes_is_allowed_where_the_template_writes_it_so():
    call = "{{- '[' + f.name + '(' -}}{%- for k, v in f.arguments.items() -%}{{- k ~ '=' ~ v -}}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}{%- endfor -%}{{- ')]' -}}"
    format = ChatTemplate(family(call)).format
    constraint = constrain(format, tools=probe_tools(), must_call=True)
    assert accepts(constraint, "[zqtool(zqfirst=Old Town, zqsecond=7)]")
    assert accepts(constraint, "[zqtool(zqfirst=Old, Town, zqsecond=7)]")  # a comma before a key ends it
    assert accepts(constraint, '[zqtool(zqfirst="Old, Town", zqsecond=7)]')
    assert not accepts(constraint, "[zqtool(zqfirst=None, zqsecond=7)]")  # which is no text


def test_layout_inside_the_mark_of_all_calls_may_be_another():
    """A list that the template puts on lines of its own, and its model on one, or the other way round."""
    object = "{{- '{\"name\": \"' + f.name + '\", \"arguments\": ' + f.arguments | tojson + '}' -}}"
    source = family(object, before="{{- '<acts>[\n    ' -}}", after="{{- '\n]</acts>' -}}", between="{{- ',\n    ' -}}")
    constraint = constrain(ChatTemplate(source).format, tools=probe_tools(), must_call=True)
    one = '{"name": "zqnone", "arguments": {}}'
    for text in (
        f"<acts>[\n    {one},\n    {one}\n]</acts>",
        f"<acts>[{one},{one}]</acts>",
        f"<acts>[  {one}\n]</acts>",
    ):
        assert accepts(constraint, text)
    assert not accepts(constraint, f"<acts>{one}</acts>")


@pytest.mark.parametrize("thought", ["", "\n<think>Hm.</think>", "<think></think>"])
@pytest.mark.parametrize("lead", ["", "\n"])
def test_the_line_break_that_a_template_writes_before_a_call_may_come_first(thought, lead):
    """A forced call had to begin with its mark, where the model begins with a line break."""
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}"
        "{{ '\\n<think>' + (m.reasoning_content or '') + '</think>' }}{% endif %}"
        "{{ '\\n' + m.content if m.content else '' }}{% for c in m.tool_calls or [] %}"
        "{{ '\\n<call>' + c.function.name + '\\n' + c.function.arguments | tojson + '</call>' }}{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    template = ChatTemplate(source)
    prompt = template.render(ChatPrompt((Message("user", "Hi"),), tools=FORCED)).text
    constraint = constrain(template.format, prompt=prompt, tools=FORCED, must_call=True)
    assert accepts(constraint, thought + lead + "<call>ping\n{}</call>")
    assert not accepts(constraint, "\n\n\n\n\nHi")


@pytest.mark.parametrize(
    ("refuses", "allowed"),
    [("", True), ("{%- if c.id | length != 9 %}{{- raise_exception('id') }}{%- endif -%}", False)],
)
def test_an_id_has_nine_signs_only_where_the_template_refuses_another(refuses, allowed):
    object = (
        refuses
        + '{{- \'<do>{"id": "\' + c.id + \'", "name": "\' + f.name + \'", "arguments": \' + f.arguments | tojson + \'}</do>\' -}}'
    )
    constraint = constrain(ChatTemplate(family(object)).format, tools=probe_tools(), must_call=True)
    call = '<do>{"id": "ID", "name": "zqnone", "arguments": {}}</do>'
    assert accepts(constraint, call.replace("ID", "call_7f")) is allowed
    assert accepts(constraint, call.replace("ID", "abcdefgh1"))
