"""What models write, taken apart: whole, in pieces, cut off and spoilt."""

from __future__ import annotations

import json
import random
import time

import pytest
from chat_samples import FAMILIES, HERMES_APART, LEARNED_BY_MARKS
from vectors import message_of

from llamasrv.chat import families
from llamasrv.chat.families import GENERIC_CALLS, THINK
from llamasrv.chat.formats import Calls, ChatFormat, ReasoningMarks
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.tagged import Tagged
from llamasrv.chat.parser import Parser
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.events import Text
from llamasrv.domain.request import Tool

TOOLS = (
    Tool("weather", "", {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool(
        "note",
        "",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "meta": {"type": "object", "properties": {"n": {"type": "number"}}},
                "maybe": {"type": ["string", "null"]},
            },
        },
    ),
    Tool("ping", "", {}),
)
MADE = [
    ("weather", {"town": 'Zürich "Ost" <b>\n{x}', "days": 3}),
    ("note", {"text": "  two\nlines\\n", "tags": ["a", "b]"], "meta": {"n": 2.5}}),
    ("ping", {}),
]
PLAIN = ChatFormat("plain", reasoning=THINK, calls=GENERIC_CALLS)
TABLE = {family.format.name: family.format for family in families.TABLE}


def parse(format, *pieces, prompt="", tools=TOOLS, **kwargs):
    parser = Parser(format, prompt=prompt, tools=tools, **kwargs)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    message = message_of(events)
    for call in message["tool_calls"]:
        call["id"] = "set" if call["id"] else ""
    return message, parser


def outcome(format, text, **kwargs):
    """Content, reasoning and calls; checked to be the same for every cut."""
    whole, parser = parse(format, text, **kwargs)
    for cut in range(len(text) + 1):
        assert parse(format, text[:cut], text[cut:], **kwargs)[0] == whole, f"cut at {cut}"
    assert parse(format, *text, **kwargs)[0] == whole
    calls = [(call["name"], call["arguments"]) for call in whole["tool_calls"]]
    return whole["content"], whole["reasoning_content"], calls, parser.complete_calls


# -- every way of writing calls, written and read back


def all_formats():
    yield from TABLE.items()
    yield "generic", families.GENERIC
    for name, source in FAMILIES.items():
        yield name, ChatTemplate(source).format


@pytest.mark.parametrize("name, format", list(all_formats()))
def test_it_reads_back_what_a_model_would_write(name, format):
    made = MADE if format.calls.parallel else MADE[:1]
    text = format.calls.write([(n, json.dumps(a, ensure_ascii=False)) for n, a in made]).strip()
    content, reasoning, calls, complete = outcome(format, text)
    assert [(n, json.loads(a)) for n, a in calls] == made
    assert (content, reasoning, complete) == ("", "", len(made))


@pytest.mark.parametrize("name, format", list(all_formats()))
def test_words_before_a_call_are_content(name, format):
    if format.calls.bare or format.calls.notation.in_header:
        pytest.skip("this format has no free text before a call")
    text = format.calls.write([("ping", "{}")])
    content, _, calls, _ = outcome(format, "Let me look.\n" + text.lstrip("\n"))
    assert content.strip() == "Let me look." and calls == [("ping", "{}")]


CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    "text, content, calls",
    [
        ("Let me look.\n" + CALL, "Let me look.", 1),
        ("Let me look.\n\n" + CALL, "Let me look.\n", 1),
        ("Let me look." + CALL, "Let me look.", 1),
        ("Let me look. " + CALL, "Let me look. ", 1),
        ("One.\n" + CALL + "\nTwo.\n" + CALL, "One.Two.", 2),
        ("A list:\n- a\n- b\n" + CALL, "A list:\n- a\n- b", 1),
        ("It is written\n<tool_call> like this", "It is written\n<tool_call> like this", 0),
        ("It begins with\n<tool", "It begins with\n<tool", 0),
        ("Just a text.\n", "Just a text.\n", 0),
    ],
)
def test_the_line_break_between_a_text_and_a_call_belongs_to_neither(text, content, calls):
    """It came back as content: users saw an empty line, and as the template writes its own, the next prompt parted from
    what the model had written right behind the text, so that the call was computed again."""
    format = ChatTemplate(HERMES_APART).format
    assert format.calls.gap == "\n"
    found = outcome(format, text)
    assert (found[0], len(found[2])) == (content, calls)


def test_a_line_break_is_held_back_until_the_next_letter_only():
    parser = Parser(ChatTemplate(HERMES_APART).format, tools=TOOLS)
    parser.feed("One")
    assert parser.feed(" line\n") == [Text(0, " line")]
    assert parser.feed("t") == [Text(0, "\nt")]
    assert parser.feed("wo") == [Text(0, "wo")]


@pytest.mark.parametrize("name, format", list(all_formats()))
def test_without_tools_everything_is_content(name, format):
    if format.calls.notation.in_header:
        pytest.skip("channels are there without tools, too")
    text = "See: " + format.calls.write([("ping", "{}")])
    content, _, calls, _ = outcome(format, text, tools=())
    assert calls == []
    for mark in format.silent:
        text = text.replace(mark, "")
    assert content == text


@pytest.mark.parametrize("name, format", list(all_formats()))
def test_a_cut_off_call_is_never_complete(name, format):
    text = format.calls.write([("note", '{"text": "ab", "tags": ["x"]}')]).strip()
    whole = parse(format, text)[0]["tool_calls"][0]["arguments"]
    for cut in range(len(text)):
        message, parser = parse(format, text[:cut])
        for call in message["tool_calls"]:
            assert whole.startswith(call["arguments"]) or not parser.complete_calls
            assert (parser.complete_calls == 1) == (call["arguments"] == whole)


@pytest.mark.parametrize("name, format", list(all_formats()))
def test_the_beginning_of_a_mark_at_which_a_call_was_cut_off_is_dropped(name, format):
    """A forced call that was cut off inside its end mark showed `</tool_cal` as text."""
    made = [("note", '{"text": "ab", "tags": ["x"]}'), ("ping", "{}")][: 2 if format.calls.parallel else 1]
    text = format.calls.write(made).strip()
    whole = [call["arguments"] for call in parse(format, text)[0]["tool_calls"]]
    for cut in range(len(text)):
        parser = Parser(format, tools=TOOLS)
        events = [event for at in range(0, cut, 5) for event in parser.feed(text[at : min(at + 5, cut)])]
        message = message_of(events + parser.finish(cut=True))
        calls = message["tool_calls"]
        assert not calls or not message["content"], text[:cut]
        if not getattr(format.calls.notation, "elements", False):  # these stay as they are written while incomplete
            assert all(all_of.startswith(call["arguments"]) for all_of, call in zip(whole, calls)), text[:cut]


def test_what_was_cut_off_elsewhere_keeps_its_end():
    for text in ("a <", "<tool_cal", "I think that 1 </tool_call", '<tool_call>{"na', '<tool_call>{"x": 1} <'):
        parser = Parser(PLAIN, tools=TOOLS)
        assert message_of(parser.feed(text) + parser.finish(cut=True))["content"] == text
    parser = Parser(PLAIN, tools=TOOLS)
    assert message_of(parser.feed(CALL + " and <") + parser.finish(cut=True))["content"] == "and <"


@pytest.mark.parametrize("words", ["a>", "a > >", "line\n>>>>", ">", "", "<b>x</b>"])
def test_words_that_end_like_the_mark_of_a_call_keep_their_end_and_the_call(words):
    """`a>` before a call was `a` and a call of no tool, and both were text."""
    text = f'all\n{words}>>>note\n{{"text": "x"}}'
    assert outcome(families.FUNCTIONARY_32, text, prompt=">>>") == (words, "", [("note", '{"text": "x"}')], 1)
    quoted = f"all\n{words}>>>>> said >>>> x"
    assert outcome(families.FUNCTIONARY_32, quoted, prompt=">>>")[0] == quoted[4:]


# -- reasoning


def test_it_splits_reasoning_and_content():
    assert outcome(PLAIN, "<think>\nHm.\n\nYes.\n</think>\n\n42") == ("42", "Hm.\n\nYes.", [], 0)


def test_it_starts_inside_reasoning_that_the_prompt_has_opened():
    assert outcome(PLAIN, "Hm.\n</think>\n\n42", prompt="...<think>\n") == ("42", "Hm.", [], 0)


def test_reasoning_that_never_ends_stays_reasoning():
    assert outcome(PLAIN, "<think>Hm. <b") == ("", "Hm. <b", [], 0)


def test_reasoning_marks_in_the_middle_are_text():
    text = "The tag <think> opens a block, </think> ends it."
    assert outcome(PLAIN, text) == (text, "", [], 0)


def test_an_empty_block_leaves_no_reasoning():
    assert outcome(PLAIN, "<think>\n\n</think>\n\nHi") == ("Hi", "", [], 0)


def test_a_lone_end_mark_at_the_start_goes():
    assert outcome(PLAIN, "</think>Hi") == ("Hi", "", [], 0)


def test_without_splitting_the_block_stays_in_the_content():
    text = "<think>\nHm.\n</think>\n\n42"
    assert outcome(PLAIN, text, reasoning=False) == (text, "", [], 0)


@pytest.mark.parametrize("tools", [TOOLS, ()])
def test_the_start_of_a_thought_that_the_prompt_has_started_says_nothing(tools):
    text = "<think>\nHm <think>.\n</think>\n\n42"
    content, reasoning, _, _ = outcome(PLAIN, text, prompt="<think>\n", tools=tools)
    assert (content, reasoning.strip()) == ("42", "Hm <think>.")


def test_calls_inside_reasoning_are_reasoning():
    text = '<think>I could <tool_call>\n{"name": "ping"}\n</tool_call></think>No.'
    content, reasoning, calls, _ = outcome(PLAIN, text)
    assert (content, calls) == ("No.", []) and "<tool_call>" in reasoning


def test_a_call_at_the_very_start_ends_reasoning_that_the_prompt_opened():
    text = '\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert outcome(PLAIN, text, prompt="<think>\n") == ("", "", [("ping", "{}")], 1)


def test_some_formats_end_reasoning_with_a_call():
    text = '<|open|>think<|sep|>Go<|open|>tools<|sep|><|open|>call tool="ping" index="1"<|sep|><|close|>call<|sep|>'
    assert outcome(TABLE["kimi k3"], text) == ("", "Go", [("ping", "{}")], 1)


def test_words_of_the_prompt_can_belong_to_the_reasoning():
    format = ChatFormat("steps", reasoning=ReasoningMarks("", "\n[ANSWER]\n", opening="Steps:"))
    assert outcome(format, "one\n[ANSWER]\n42", prompt="<bot>Steps:\n") == ("42", "Steps:\none", [], 0)


def test_it_continues_a_message():
    assert outcome(PLAIN, " world <think>", continues="content") == (" world <think>", "", [], 0)
    assert outcome(PLAIN, " and so</think>42", continues="reasoning") == ("42", " and so", [], 0)


# -- content


@pytest.mark.parametrize(
    "text", ["", "Hi", " Hi \n", "\n\n", "a < b", "<", "<tool", "1 <t> 2", "{", "[]", "```\nx\n```"]
)
def test_content_is_untouched(text):
    assert outcome(PLAIN, text) == (text, "", [], 0)


def test_white_space_around_calls_is_no_content():
    text = '\n\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>\n\n'
    assert outcome(PLAIN, text)[0] == ""


def test_content_may_follow_calls():
    text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>\nDone, [1].'
    assert outcome(PLAIN, text) == ("Done, [1].", "", [("ping", "{}")], 1)


def test_wrappers_of_the_content_go():
    text = "<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>"
    assert outcome(TABLE["command r7b"], text) == ("Hi", "Hm", [], 0)


def test_a_code_fence_around_json_goes_where_json_was_asked_for():
    assert outcome(PLAIN, '```json\n{"a": 1}\n```', json_content=True)[0] == '{"a": 1}'
    assert outcome(PLAIN, '{"a": "```"}', json_content=True)[0] == '{"a": "```"}'
    assert outcome(PLAIN, "<think>x</think>\n```\n[1]\n```\n", json_content=True)[:2] == ("[1]", "x")


# -- objects


@pytest.mark.parametrize(
    "written, arguments",
    [
        ('{"name": "note", "arguments": {"text": "a"}}', '{"text": "a"}'),
        ('{"arguments": {"text": "a"}, "name": "note"}', '{"text": "a"}'),
        ('{ "name" : "note" ,\n "arguments" : { "text" : "a\\"}" } }', '{ "text" : "a\\"}" }'),
        ('{"name": "note", "arguments": "{\\"text\\": \\"a\\"}"}', '{"text": "a"}'),
        ('{"name": "note", "parameters": {"text": "a"}}', '{"text": "a"}'),
        ('{"id": 7, "type": "function", "name": "note", "arguments": {}}', "{}"),
        ('{"name": "note"}', "{}"),
        ('{"name": "note", "arguments": {}, "extra": [1, {"b": "}"}]}', "{}"),
    ],
)
def test_objects_may_be_written_in_many_ways(written, arguments):
    _, _, calls, complete = outcome(PLAIN, f"<tool_call>\n{written}\n</tool_call>")
    assert calls == [("note", arguments)] and complete == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>just words</tool_call> and more",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "two words", "arguments": {}}',
        "<tool_call>",
        '<tool_call>{"other": "x"}',
    ],
)
def test_what_is_no_call_is_content(text):
    assert outcome(PLAIN, text) == (text, "", [], 0)


def test_arguments_that_stop_being_json_are_passed_as_written_and_incomplete():
    text = '<tool_call>{"name": "note", "arguments": {text: \'a\'}}</tool_call>'
    content, _, calls, complete = outcome(PLAIN, text)
    assert calls == [("note", "{text: 'a'}}")] and complete == 0 and content == ""


def test_arguments_that_are_written_as_python_shows_them_are_read():
    text = '<tool_call>{"name": "note", "arguments": {\'text\': "it\'s", \'maybe\': None}}</tool_call>'
    content, _, calls, complete = outcome(PLAIN, text)
    assert calls == [("note", '{"text": "it\'s", "maybe": null}')] and complete == 1 and content == ""


def test_an_object_alone_is_a_call_only_with_the_name_of_a_tool():
    format = ChatFormat("bare", calls=Calls(JsonObject(arguments_key="parameters")))
    assert outcome(format, '{"name": "ping", "parameters": {}}')[2] == [("ping", "{}")]
    for text in (
        '{"name": "Ann", "parameters": {}}',
        '{"a": {"name": "ping"}}',
        'x {"name": "ping", "parameters": {}}',
    ):
        assert outcome(format, text) == (text, "", [], 0)


def test_forgotten_marks_make_no_difference_to_a_call_of_a_known_tool():
    assert outcome(PLAIN, '{"name": "ping", "arguments": {}}') == ("", "", [("ping", "{}")], 1)
    assert outcome(PLAIN, '{"name": "ping", "arguments": {}}\n</tool_call>') == ("", "", [("ping", "{}")], 1)
    text = '{"name": "Ann", "arguments": {}}'
    assert outcome(PLAIN, text) == (text, "", [], 0)


# -- values between tags

LINES = ChatFormat(
    "lines",
    calls=Calls(
        Tagged(name_end=">\n", key_start="<arg=", key_end=">\n", value_end="\n</arg>\n"),
        call_start="<call>\n<fn=",
        call_end="</fn>\n</call>",
        separator="\n",
    ),
)


def values(text, name="note"):
    _, _, calls, complete = outcome(LINES, f"<call>\n<fn={name}>\n{text}</fn>\n</call>")
    assert complete == 1
    return json.loads(calls[0][1])


@pytest.mark.parametrize(
    "key, written, value",
    [
        ("text", "a", "a"),
        ("text", "42", "42"),
        ("text", '"quoted"', '"quoted"'),
        ("text", "  indented\n\nlines\n", "  indented\n\nlines\n"),
        ("text", "</fn> <arg=x>", "</fn> <arg=x>"),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("tags", "not a list", "not a list"),
        ("maybe", "null", None),
        ("maybe", "nil", "nil"),
        ("maybe", "42", "42"),
        ("unknown", "42", 42),
        ("unknown", "{broken", "{broken"),
        ("unknown", "True", True),
        ("unknown", '"quoted"', "quoted"),
        ("meta", '{"n": 1}', {"n": 1}),
    ],
)
def test_values_follow_their_schema(key, written, value):
    assert values(f"<arg={key}>\n{written}\n</arg>\n") == {key: value}


def test_numbers_keep_their_digits():
    text = "<fn=note>\n<arg=x>\n1.50e999\n</arg>\n</fn>"
    assert outcome(LINES, text)[2] == [("note", '{"x": 1.50e999}')]


def test_an_end_mark_inside_json_is_part_of_it():
    assert values('<arg=tags>\n["a</arg>\\n", "</fn>"]\n</arg>\n') == {"tags": ["a</arg>\n", "</fn>"]}


@pytest.mark.parametrize("between", ["", "\n", " "])
def test_white_space_between_two_tags_of_one_mark_is_optional(between):
    """The template wrote none and the model some: the call came with empty arguments, and they were lost."""
    tagged = Tagged(name_end="\n", key_start="<k>", key_end="</k><v>", value_end="</v>\n")
    format = ChatFormat("tags", calls=Calls(tagged, call_start="<call>", call_end="</call>"))
    text = f"<call>note\n<k>text</k>{between}<v>a b</v>\n<k>x</k>{between}<v>7</v>\n</call>"
    assert outcome(format, text)[2:] == ([("note", '{"text": "a b", "x": 7}')], 1)


def test_a_broken_value_ends_at_its_mark_all_the_same():
    text = '<arg=tags>\n["a\n</arg>\n<arg=text>\nb\n</arg>\n'
    assert values(text) == {"tags": '["a', "text": "b"}


def test_a_call_may_start_with_its_inner_mark():
    text = "<fn=note>\n<arg=text>\nx\n</arg>\n</fn>\n</call>"
    assert outcome(LINES, text) == ("", "", [("note", '{"text": "x"}')], 1)


def test_types_said_in_the_text_win():
    format = ChatTemplate(LEARNED_BY_MARKS["kinds"]).format
    text = '<run="note"><p n="text" kind="text">7</p><p n="x" kind="data">7</p></run>'
    assert outcome(format, text)[2] == [("note", '{"text": "7", "x": 7}')]


def test_references_in_schemas_are_followed():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": "string"}}}
    message, _ = parse(LINES, "<fn=f>\n<arg=a>\n5\n</arg>\n</fn>", tools=(Tool("f", "", schema),))
    assert message["tool_calls"][0]["arguments"] == '{"a": "5"}'


# -- functions as in Python


@pytest.mark.parametrize(
    "written, arguments",
    [
        ("ping()", {}),
        ('note(text="a\\n\\"b\\"", maybe=None)', {"text": 'a\n"b"', "maybe": None}),
        ("note(text='it\\'s', tags=['a', \"b\"])", {"text": "it's", "tags": ["a", "b"]}),
        ("note(meta={'n': 1.5, \"m\": True}, tags=('x', y, ))", {"meta": {"n": 1.5, "m": True}, "tags": ["x", "y"]}),
        ('note(text="\\u00e9\\x41", maybe=-3e5)', {"text": "éA", "maybe": -3e5}),
    ],
)
def test_python_values_become_json(written, arguments):
    text = f"<|tool_call_start|>[{written}]<|tool_call_end|>"
    calls = outcome(TABLE["lfm2"], text)[2]
    assert json.loads(calls[0][1]) == arguments


# -- channels


def test_channels_tell_reasoning_content_and_calls():
    text = (
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary<|message|>I will.<|end|>"
        '<|start|>assistant to=functions.note<|channel|>commentary json<|message|>{"text": "a"}<|call|>'
    )
    assert outcome(families.HARMONY, text) == ("I will.", "Hm", [("note", '{"text": "a"}')], 1)


def test_text_without_a_channel_is_content():
    assert outcome(families.HARMONY, "Hi there") == ("Hi there", "", [], 0)


# -- names, ids, order


def test_ids_of_the_model_are_kept_and_others_made():
    format = ChatTemplate(FAMILIES["name and id, then object"]).format
    parser = Parser(format, tools=TOOLS, new_id=lambda: "mine")
    (start, *_) = parser.feed("[CALL]ping[ID]theirs[ARGS]{}")
    assert start.id == "theirs"
    (start, *_) = Parser(PLAIN, tools=TOOLS, new_id=lambda: "mine").feed('<tool_call>{"name": "ping", "arguments": {')
    assert start.id == "mine"


def test_made_ids_differ():
    text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>' * 2
    starts = [e for e in Parser(PLAIN, tools=TOOLS).feed(text) if hasattr(e, "id")]
    assert len({start.id for start in starts}) == 2


# -- streaming


def test_text_comes_at_once():
    parser = Parser(PLAIN, tools=TOOLS)
    assert parser.feed("Hel") == [Text(0, "Hel")]
    assert parser.feed("lo <to") == [Text(0, "lo ")]
    assert parser.feed("ast>") == [Text(0, "<toast>")]
    assert parser.finish() == []


def test_arguments_come_as_they_are_written():
    parser = Parser(PLAIN, tools=TOOLS, new_id=lambda: "i")
    parser.feed('<tool_call>\n{"name": "note", "arguments": ')
    assert [e.fragment for e in parser.feed('{"text": "on')] == ['{"text": "on']
    assert [e.fragment for e in parser.feed("ce upon")] == ["ce upon"]
    assert parser.in_call


def test_texts_between_tags_come_as_they_are_written():
    parser = Parser(LINES, tools=TOOLS)
    parser.feed("<fn=note>\n<arg=text>\n")
    assert [e.fragment for e in parser.feed('say "hi"\nand')] == ['say \\"hi\\"\\nand']


def test_it_tells_whether_it_is_inside_reasoning():
    parser = Parser(PLAIN, tools=TOOLS)
    assert not parser.in_reasoning
    parser.feed("<think>x")
    assert parser.in_reasoning
    parser.feed("</think>")
    assert not parser.in_reasoning


# -- whatever comes


def spoilt(random_source: random.Random, text: str) -> str:
    bits = ["<", ">", "{", "}", "[", "]", '"', "\\", "\n", " ", ",", ":", "</think>", "<think>", "```", "(", ")", "=", "'",
            "é", "<|", "|>", "\\u00", "<tool_call>", "</tool_call>", ">>>", "<|channel|>", "<|message|>"]  # fmt: skip
    for _ in range(random_source.randint(1, 4)):
        place = random_source.randint(0, len(text))
        kind = random_source.random()
        if kind < 0.3:
            text = text[:place] + text[place + random_source.randint(1, 12) :]
        elif kind < 0.8:
            text = text[:place] + random_source.choice(bits) + text[place:]
        else:
            text = text[:place]
    return text


@pytest.mark.parametrize("name, format", list(all_formats()))
def test_it_survives_whatever_a_model_writes_and_every_cut_gives_the_same(name, format):
    random_source = random.Random(name)
    made = [(n, json.dumps(a, ensure_ascii=False)) for n, a in (MADE if format.calls.parallel else MADE[:1])]
    thought = format.reasoning
    for _ in range(60):
        text = "Words. " * random_source.randint(0, 1) + format.calls.write(made)
        if thought is not None and random_source.random() < 0.5:
            text = thought.start + "thought" + thought.end + text
        text = spoilt(random_source, text)
        whole = parse(format, text)[0]
        cut = random_source.randint(0, len(text))
        assert parse(format, text[:cut], text[cut:])[0] == whole, text
        assert parse(format, *text)[0] == whole, text


@pytest.mark.parametrize("step", [1, 4, 1000, 10**6])
def test_its_work_is_linear(step):
    """100,000 characters in under 0.2 s of CPU in pieces of a token's size; some leave for slow machines. Single
    characters are tried with a quarter of them."""
    prose = ("The quick <b>brown</b> fox jumps over [1, 2] {dogs}.\n" * 2000)[:100_000]
    long_call = GENERIC_CALLS.write([("note", json.dumps({"text": prose}))])
    long_value = f"<fn=note>\n<arg=tags>\n{json.dumps(list(range(16000)))}\n</arg>\n</fn>"
    cases = [
        (PLAIN, prose),
        (PLAIN, "<think>" + prose),
        (PLAIN, long_call),
        (LINES, long_value),
        (PLAIN, "<" * 100_000),
        (PLAIN, "\n" * 100_000),
        (PLAIN, "<tool_cal" * 11_000),
        (LINES, f"<fn=note>\n<arg=text>\n{prose}\n</arg>"),
    ]
    for format, text in cases:
        text = text[: 25_000 if step == 1 else None]
        parser = Parser(format, tools=TOOLS)
        started = time.process_time()
        for place in range(0, len(text), step):
            parser.feed(text[place : place + step])
        parser.finish()
        assert time.process_time() - started < (0.3 if step == 1 else 0.4)
