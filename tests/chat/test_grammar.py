"""Grammars: they compile, accept what a model would write, refuse what it must not, and yield valid calls."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter

import pytest
from chat_samples import FAMILIES
from vectors import message_of

from llamasrv.chat import families
from llamasrv.chat.families import THINK
from llamasrv.chat.formats import Calls, ChatFormat, ReasoningMarks
from llamasrv.chat.grammar import constrain
from llamasrv.chat.notations.tagged import Tagged
from llamasrv.chat.parser import Parser
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Content, Message, Tool
from llamasrv.errors import InvalidRequest

llguidance = pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

SPECIAL = {"<tool_call>": 257, "</tool_call>": 258, "</think>": 259, "<|im_end|>": 260}
TOOLS = (
    Tool(
        "clock",
        "",
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zone": {"type": "string", "enum": ["utc", "local"]}},
            "required": ["city"],
        },
    ),
    Tool(
        "magic",
        "",
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "x": {"type": ["string", "null"]},
                "f": {"type": "number"},
                "b": {"type": "boolean"},
            },
            "required": ["n", "b"],
        },
    ),
    Tool("ping", "", {"type": "object", "properties": {}}),
    Tool(
        "deep",
        "",
        {
            "type": "object",
            "properties": {
                "o": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "array", "items": {"type": "integer"}},
                        "s": {"type": "string", "maxLength": 5},
                    },
                    "required": ["a"],
                    "additionalProperties": False,
                },
                "l": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            },
            "required": ["o", "l"],
        },
    ),
    Tool(
        "many",
        "",
        {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(9)}, "required": ["p2", "p5"]},
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
MADE = [
    ("clock", '{"city": "Zürich \\"x\\" <b>", "zone": "utc"}'),
    ("magic", '{"n": -3, "x": "hello", "f": 2.5, "b": true}'),
    ("ping", "{}"),
    ("deep", '{"o": {"a": [1, 2], "s": "hi"}, "l": ["p", "q"]}'),
    ("many", '{"p0": 1, "p2": 2, "p5": 3}'),
]


class Bytes:
    """A vocabulary of single bytes and a few special tokens."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [bytes([n]) for n in range(256)] + [b"<|eos|>"] + [b"\xff" + name.encode() for name in SPECIAL]
    special_token_ids = [256, *SPECIAL.values()]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def matcher(constraint):
    assert llguidance.LLMatcher.validate_grammar(constraint.grammar, TOKENIZER) == ""
    return llguidance.LLMatcher(TOKENIZER, constraint.grammar)


def accepts(constraint, tokens):
    found = matcher(constraint)
    tokens = list(tokens.encode()) if isinstance(tokens, str) else tokens
    return found.try_consume_tokens(tokens) == len(tokens) and found.is_accepting()


def all_formats():
    yield from ((family.format.name, family.format) for family in families.TABLE)
    yield "generic", families.GENERIC
    for name, source in FAMILIES.items():
        yield name, ChatTemplate(source).format


FORMATS = list(dict(all_formats()).items())


@pytest.mark.parametrize("name, format", FORMATS)
@pytest.mark.parametrize("must_call", [True, False])
def test_it_accepts_what_a_model_would_write(name, format, must_call):
    made = MADE if format.calls.parallel else MADE[:1]
    constraint = constrain(format, tools=TOOLS, must_call=must_call)
    assert accepts(constraint, format.calls.write(made).lstrip("\n"))


@pytest.mark.parametrize("name, format", FORMATS)
def test_free_text_is_free_until_a_call_begins(name, format):
    constraint = constrain(format, tools=TOOLS)
    text = format.content_start + "Any <b>words</b>, [1], {x}.\n" + format.content_end
    assert accepts(constraint, text)
    if constraint.triggers:
        assert not accepts(constraint, "Words " + constraint.triggers[0] + " and words")


@pytest.mark.parametrize("name, format", FORMATS)
def test_a_required_call_leaves_no_other_way(name, format):
    constraint = constrain(format, tools=TOOLS, must_call=True)
    assert not accepts(constraint, "Words.")
    assert not accepts(constraint, "")
    wrong = format.calls.write([("unknown", "{}")]).lstrip("\n")
    assert not accepts(constraint, wrong)


@pytest.mark.parametrize("name, format", [row for row in FORMATS if row[1].calls.parallel])
def test_one_call_can_be_the_most(name, format):
    constraint = constrain(format, tools=TOOLS, must_call=True, parallel=False)
    assert accepts(constraint, format.calls.write(MADE[:1]).lstrip("\n"))
    assert not accepts(constraint, format.calls.write(MADE[:2]).lstrip("\n"))


@pytest.mark.parametrize("name, format", FORMATS)
def test_only_the_tools_that_are_allowed_can_be_called(name, format):
    constraint = constrain(format, tools=TOOLS[2:3], must_call=True)
    assert accepts(constraint, format.calls.write([("ping", "{}")]).lstrip("\n"))
    assert not accepts(constraint, format.calls.write(MADE[:1]).lstrip("\n"))


def walk(constraint, random_source, ends, limit=4000):
    """What a model would write that obeys nothing but the grammar; None where it finds no end."""
    found, out = matcher(constraint), bytearray()
    while len(out) < limit and not found.is_stopped():
        allowed = [token for token, bias in enumerate(found.compute_logit_bias()) if bias]
        assert allowed, f"a dead end behind {bytes(out[-60:])!r}"
        if Bytes.eos_token_id in allowed and random_source.random() < 0.5:
            break
        plain = [token for token in allowed if token < 256]
        if not plain:
            break
        end = list(random_source.choice(ends).encode())
        if random_source.random() < 0.2 and found.validate_tokens(end) == len(end):
            assert found.consume_tokens(end)
            out += bytes(end)
            continue
        likely = [token for token in plain if token in b'"}]>)<|,:\n/']
        visible = [token for token in plain if 32 <= token < 127]
        token = random_source.choice(likely if likely and random_source.random() < 0.6 else visible or plain)
        assert found.consume_token(token)
        out.append(token)
    return bytes(out).decode() if found.is_accepting() else None


@pytest.mark.parametrize("name, format", FORMATS)
def test_whatever_the_grammar_lets_through_is_a_valid_call(name, format):
    random_source = random.Random(name)
    constraint = constrain(format, tools=TOOLS, must_call=True, thinking=False)
    finished = 0
    keys = [key for tool in TOOLS for key in tool.parameters["properties"]] + ["item", "a", "s"]
    ends = [
        '<|"|>',
        '"',
        *(getattr(format.calls.notation, "value_end", "").replace("{key}", key) or "}" for key in keys),
    ]
    for _ in range(6):
        text = walk(constraint, random_source, ends)
        if text is None:
            continue
        finished += 1
        parser = Parser(format, tools=TOOLS)
        message = message_of(parser.feed(text) + parser.finish())
        assert message["content"].strip() == "" and parser.complete_calls == len(message["tool_calls"]) > 0, text
        for call in message["tool_calls"]:
            jsonschema.validate(json.loads(call["arguments"]), BY_NAME[call["name"]].parameters)
    assert finished


# -- thinking

PLAIN = ChatFormat("plain", reasoning=THINK, calls=families.GENERIC_CALLS)
CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


def test_an_answer_that_is_continued_does_not_close_a_thinking_block():
    """`</think>` stood before the JSON, and clients took it for a part of the text."""
    form = Content("json", None)
    closed = f"{THINK.end.strip()}\n\n{{}}"
    assert accepts(constrain(PLAIN, content=form), closed)
    going_on = constrain(PLAIN, continues="content", content=form)
    assert accepts(going_on, "{}") and not accepts(going_on, closed)


def test_thinking_may_come_before_a_required_call():
    constraint = constrain(PLAIN, tools=TOOLS, must_call=True)
    assert accepts(constraint, "<think>Hm <tool_call> hm</think>\n\n" + CALL)
    assert accepts(constraint, CALL)


def test_thinking_that_the_prompt_opened_is_ended_first():
    constraint = constrain(PLAIN, prompt="<think>\n", tools=TOOLS, must_call=True)
    assert accepts(constraint, "Hm</think>\n\n" + CALL)
    assert not accepts(constraint, "Hm" + CALL)


@pytest.mark.parametrize("special_tokens", [None, SPECIAL])
@pytest.mark.parametrize("must_call", [True, False])
def test_a_call_may_come_at_once_where_the_prompt_opened_a_block(special_tokens, must_call):
    constraint = constrain(PLAIN, prompt="<think>\n", tools=TOOLS, must_call=must_call, special_tokens=special_tokens)
    call = [*b"\n", 257, *b'\n{"name": "ping", "arguments": {}}\n', 258] if special_tokens else "\n" + CALL
    assert accepts(constraint, call)


def test_a_call_ends_a_block_that_calls_end():
    format = ChatFormat(
        "x", reasoning=ReasoningMarks("<think>", "</think>", ended_by_calls=True), calls=families.GENERIC_CALLS
    )
    constraint = constrain(format, prompt="<think>", tools=TOOLS)
    assert accepts(constraint, "Hm, " + CALL) and accepts(constraint, "Hm.</think>" + CALL)
    assert not accepts(constraint, "Hm, words")


def test_the_start_of_the_content_ends_such_a_block():
    constraint = constrain(families.KIMI_K3, prompt="<|open|>think<|sep|>", tools=TOOLS)
    assert accepts(constraint, "Hm<|open|>response<|sep|>Hello.<|close|>response<|sep|>")
    assert accepts(constraint, "Hm" + families.KIMI_K3.calls.write(MADE[:1]))


def test_no_block_is_opened_where_thinking_is_off_or_only_assumed():
    assert not accepts(constrain(PLAIN, tools=TOOLS, must_call=True, thinking=False), "<think>Hm</think>" + CALL)
    assumed = ChatFormat(
        "plain", reasoning=ReasoningMarks("<think>", "</think>", assumed=True), calls=families.GENERIC_CALLS
    )
    assert not accepts(constrain(assumed, tools=TOOLS, must_call=True), "<think>Hm</think>" + CALL)


# -- content of a form

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "content, good, bad",
    [
        (Content("json", SCHEMA), '{"a": 1}', '{"a": "x"}'),
        (Content("json"), '{"any": [1, null]}', "[1]"),
        (Content("regex", "[a-c]{2}/[0-9]"), "ab/7", "ad/7"),
        (Content("choice", ["yes", 'n"o']), 'n"o', "maybe"),
        (Content("choice", ["a\x7f", "\x00\x1f"]), "a\x7f", "a"),  # the library reads no raw delete in a string
        (Content("choice", ["a\x7f", "\x00\x1f"]), "\x00\x1f", "\x00"),
        (Content("lark", 'start: "start" DIGIT+\nDIGIT: /[0-9]/'), "start42", "content_start42"),
    ],
)
def test_content_takes_the_form_that_was_asked_for(content, good, bad):
    constraint = constrain(PLAIN, content=content)
    assert constraint.triggers == ()
    assert accepts(constraint, good) and not accepts(constraint, bad)
    assert accepts(constraint, "<think>Hm</think>\n\n" + good)


def test_content_of_a_form_and_calls_go_together():
    constraint = constrain(PLAIN, tools=TOOLS, content=Content("json", SCHEMA))
    assert accepts(constraint, '{"a": 1}') and accepts(constraint, CALL)
    assert not accepts(constraint, "words")


def test_content_of_a_form_keeps_its_wrapper():
    constraint = constrain(families.HARMONY, content=Content("json", SCHEMA))
    assert accepts(constraint, '<|channel|>final<|message|>{"a": 1}')
    assert accepts(
        constraint, '<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>{"a":1}'
    )


def test_harmony_may_say_something_before_a_call():
    constraint = constrain(families.HARMONY, tools=TOOLS)
    said = "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
    assert accepts(constraint, said + families.HARMONY.calls.write(MADE[:1]))
    assert accepts(constraint, said + "<|channel|>final<|message|>Nothing found.")
    assert not accepts(constrain(families.HARMONY, tools=TOOLS, must_call=True), said)


@pytest.mark.parametrize("must_call", [True, False])
def test_a_recipient_may_stand_before_its_channel(must_call):
    """The template writes earlier calls so, and its models write both."""
    constraint = constrain(families.HARMONY, tools=TOOLS, must_call=must_call)
    name, arguments = MADE[0]
    call = f" to=functions.{name}<|channel|>commentary json<|message|>{arguments}"
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert accepts(constraint, call) and accepts(constraint, thought + call)
    assert not accepts(constraint, call.replace(name, "other"))


def test_going_on_needs_no_wrapper():
    constraint = constrain(families.HARMONY, continues="content", content=Content("choice", ["a"]))
    assert accepts(constraint, "a")


def test_an_unsupported_keyword_is_named():
    constraint = constrain(PLAIN, content=Content("json", {"type": "array", "uniqueItems": True}))
    assert "uniqueItems" in llguidance.LLMatcher.validate_grammar(constraint.grammar, TOKENIZER)


def test_a_tools_unsupported_keyword_does_no_harm_unless_it_is_strict():
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "of-my-own"}}}
    constraint = constrain(PLAIN, tools=(Tool("f", "", schema),), must_call=True)
    assert accepts(constraint, '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>')
    strict = constrain(PLAIN, tools=(Tool("f", "", schema, strict=True),), must_call=True)
    assert llguidance.LLMatcher.validate_grammar(strict.grammar, TOKENIZER) != ""


# -- nothing to constrain


def test_without_tools_and_form_there_is_no_constraint():
    assert constrain(PLAIN) is None


def test_a_required_call_needs_a_tool():
    with pytest.raises(InvalidRequest):
        constrain(PLAIN, must_call=True, content=Content("json"))


# -- special tokens


def test_marks_that_are_special_tokens_are_named_by_number():
    constraint = constrain(PLAIN, tools=TOOLS, must_call=True, special_tokens=SPECIAL)
    inside = list(b'\n{"name": "ping", "arguments": {}}\n')
    assert accepts(constraint, [257, *inside, 258])
    assert not accepts(constraint, CALL)


def test_free_text_ends_at_a_special_token():
    constraint = constrain(PLAIN, prompt="<think>", tools=TOOLS, special_tokens=SPECIAL)
    inside = list(b'\n{"name": "ping", "arguments": {}}\n')
    assert accepts(constraint, [*b"Hm", 259, *b"Words ", 257, *inside, 258])
    assert not accepts(constraint, [*b"Hm", 259, 260])


def test_text_between_tags_ends_at_a_special_token():
    calls = Calls(
        Tagged(name_end="\n", key_start="<k>", key_end="=", value_end="</think>"),
        call_start="<tool_call>",
        call_end="</tool_call>",
    )
    constraint = constrain(ChatFormat("x", calls=calls), tools=TOOLS[:1], must_call=True, special_tokens=SPECIAL)
    assert accepts(constraint, [257, *b"clock\n<k>city=Bern </th", 259, 258])


# -- many arguments


@pytest.mark.parametrize("name, format", FORMATS)
def test_hundreds_of_arguments_keep_their_order_and_the_required_ones(name, format):
    names = [f"p{n}" for n in range(200)]
    schema = {"type": "object", "properties": {n: {"type": "integer"} for n in names}, "required": ["p7", "p150"]}
    constraint = constrain(format, tools=(Tool("f", "", schema),), must_call=True)

    def call(*given):
        return format.calls.write([("f", json.dumps(dict.fromkeys(given, 1)))]).lstrip("\n")

    assert accepts(constraint, call("p0", "p7", "p150", "p199")) and accepts(constraint, call("p7", "p150"))
    assert not accepts(constraint, call("p0", "p150")) and not accepts(constraint, call("p150", "p7"))


@pytest.mark.parametrize("name, format", FORMATS)
def test_many_arguments_come_in_any_order_each_once(name, format):
    names = [f"p{n}" for n in range(40)]
    schema = {"type": "object", "properties": {n: {"type": "integer"} for n in names}, "required": ["p7", "p30"]}
    constraint = constrain(format, tools=(Tool("f", "", schema),), must_call=True)

    def call(given):
        return format.calls.write([("f", json.dumps(dict.fromkeys(given, 1)))]).lstrip("\n")

    assert accepts(constraint, call(["p39", "p30", "p8", "p7", "p0"])) and accepts(constraint, call(reversed(names)))
    assert not accepts(constraint, call(["p39", "p30", "p8"]))
    twice = call(["p7", "p30", "p8"]).replace("p8", "p7")
    assert not accepts(constraint, twice)


@pytest.mark.parametrize("name, format", FORMATS)
def test_arrays_have_as_many_items_as_they_may(name, format):
    def accepted(given, **bounds):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "integer"}, **bounds}},
            "required": ["a"],
        }
        constraint = constrain(format, tools=(Tool("f", "", schema),), must_call=True)
        return accepts(constraint, format.calls.write([("f", json.dumps({"a": given}))]).lstrip("\n"))

    assert accepted([1, 2], minItems=2, maxItems=2) and accepted([1, 2, 3], minItems=1) and accepted([], maxItems=0)
    assert not accepted([1], minItems=2) and not accepted([1, 2, 3], maxItems=2) and not accepted([1], maxItems=0)


# -- schemas that nothing satisfies

LOOP = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/x"}},
    "required": ["a"],
    "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"allOf": [{"$ref": "#/$defs/x"}]}},
}
ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
LIST = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}


@pytest.mark.parametrize("schema", [LOOP, ENDLESS, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}])
@pytest.mark.parametrize("strict", [True, False])
def test_a_schema_without_an_end_is_refused(schema, strict):
    with pytest.raises(InvalidRequest, match="Nothing satisfies"):
        constrain(PLAIN, content=Content("json", schema))
    with pytest.raises(InvalidRequest) as caught:
        constrain(PLAIN, tools=(Tool("f", "", schema, strict),))
    assert caught.value.param == "tools"


@pytest.mark.parametrize("schema", [LIST, {"type": "array", "items": {"$ref": "#"}}, {"$ref": "http://x/y"}, {}, True])
def test_a_schema_may_refer_to_itself_where_there_is_a_way_out(schema):
    assert constrain(PLAIN, content=Content("json", schema)) is not None


def test_a_long_chain_of_references_costs_no_more_per_part_than_a_short_one():
    def calls(parts):
        """How many functions are called to refuse a chain of this length that ends in itself."""
        chain = {
            f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}, "required": ["a"]}
            for n in range(parts)
        }
        counts = Counter()
        sys.setprofile(lambda frame, event, argument: counts.update((event,)))
        try:
            with pytest.raises(InvalidRequest, match="Nothing satisfies"):
                constrain(
                    PLAIN,
                    content=Content(
                        "json", {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{parts}": {"$ref": "#/$defs/d7"}}}
                    ),
                )
        finally:
            sys.setprofile(None)
        return counts["call"] + counts["c_call"]

    assert calls(400) < 6 * calls(100)


@pytest.mark.parametrize("kind", ["array", "string", ["string", "null"], None])
def test_a_tools_parameters_are_an_object(kind):
    with pytest.raises(InvalidRequest, match="object"):
        constrain(PLAIN, tools=(Tool("f", "", {"type": kind}),))


@pytest.mark.parametrize("name, format", FORMATS)
def test_a_required_argument_without_a_schema_can_be_anything(name, format):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}
    constraint = constrain(format, tools=(Tool("f", "", schema),), must_call=True)
    assert accepts(constraint, format.calls.write([("f", '{"a": 1, "b": "x"}')]).lstrip("\n"))
    assert not accepts(constraint, format.calls.write([("f", '{"a": 1}')]).lstrip("\n"))


# -- the collection


def test_every_template_of_the_collection_yields_a_working_grammar(template_file):
    template = ChatTemplate(template_file.read_text(), "<s>", "</s>")
    prompt = ChatPrompt((Message("user", "Hi"),), tools=TOOLS, template_kwargs={"enable_thinking": False})
    rendered = template.render(prompt)
    format = template.format
    made = MADE if format.calls.parallel else MADE[:1]
    text = format.calls.write(made).lstrip("\n")
    if rendered.text.endswith(format.calls.call_start.strip() or "\0"):
        text = text[len(format.calls.call_start) :]
    if format.reasoning.is_open(rendered.text) if format.reasoning else False:
        text = "thought" + format.reasoning.end + text
    for must_call in (True, False):
        assert accepts(constrain(format, prompt=rendered.text, tools=TOOLS, must_call=must_call), text)
    parser = Parser(format, prompt=rendered.text, tools=TOOLS)
    calls = message_of(parser.feed(text) + parser.finish())["tool_calls"]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [(n, json.loads(a)) for n, a in made]


@pytest.mark.parametrize("name, format", FORMATS)
def test_fifty_tools_make_a_grammar_fast(name, format):
    tools = [
        Tool(
            f"tool_{n}",
            "",
            {
                "type": "object",
                "properties": {f"t{n}_{k}": {"type": ["string", "integer", "boolean"][k % 3]} for k in range(5)},
            },
        )
        for n in range(50)
    ]
    started = time.process_time()
    constraint = constrain(format, tools=tools)
    matcher(constraint)
    assert time.process_time() - started < 1.0
