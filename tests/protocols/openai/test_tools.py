"""Tools, their choice and the form of the answer: what is read, what is refused, what is written of calls."""

from __future__ import annotations

import json

import pytest
from started import started

from llamasrv.domain.events import Finished, FinishReason, Reasoning, Text, ToolCallArguments, ToolCallStart, Usage
from llamasrv.domain.request import Content, MediaPart, TextPart, Tool, ToolChoice
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions, ChatOptions, ChatReply

HELLO = [{"role": "user", "content": "Hello"}]
endpoint = ChatCompletions(Limits(tools=3))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "tells the time", "parameters": SCHEMA}}
PING = {"type": "function", "function": {"name": "ping"}}
NAMED = {"type": "function", "function": {"name": "ping"}}


def asked(**body):
    return endpoint.parse({"messages": HELLO, **body})[0]


def refused(**body):
    with pytest.raises(InvalidRequest) as caught:
        asked(**body)
    return caught.value


def test_tools_are_read():
    request = asked(tools=[CLOCK, {"type": "function", "function": {"name": "ping", "strict": True}}])
    assert request.prompts[0].tools == (Tool("clock", "tells the time", SCHEMA), Tool("ping", strict=True))
    assert request.tool_choice == ToolChoice()


@pytest.mark.parametrize(
    "given, choice",
    [
        ("none", ToolChoice("none")),
        ("auto", ToolChoice("auto")),
        ("required", ToolChoice("required")),
        (NAMED, ToolChoice("required", ("ping",), parallel=False)),
        ({"type": "function", "name": "ping"}, ToolChoice("required", ("ping",), parallel=False)),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, ToolChoice("auto", ("ping",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED, CLOCK]}},
            ToolChoice("required", ("ping", "clock")),
        ),
    ],
)
def test_the_choice_of_tools_is_read(given, choice):
    assert asked(tools=[CLOCK, PING], tool_choice=given).tool_choice == choice


def test_one_call_can_be_the_most():
    assert asked(tools=[PING], parallel_tool_calls=False).tool_choice == ToolChoice(parallel=False)


def test_functions_of_old_become_tools():
    request = asked(functions=[CLOCK["function"]], function_call={"name": "clock"})
    assert request.prompts[0].tools == (Tool("clock", "tells the time", SCHEMA),)
    assert request.tool_choice == ToolChoice("required", ("clock",), parallel=False)


@pytest.mark.parametrize(
    "body, param",
    [
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 129}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": 1}}]},
            "tools[0].function.description",
        ),
        ({"tools": [PING, PING]}, "tools[1].function.name"),
        ({"tools": [PING, CLOCK, PING, PING]}, "tools"),
        ({"tools": [PING], "functions": [PING["function"]]}, "functions"),
        ({"functions": [{"description": "x"}]}, "functions[0].name"),
        ({"functions": [PING["function"]], "function_call": {"name": "pong"}}, "function_call"),
        ({"functions": [PING["function"]], "function_call": {}}, "function_call.name"),
        ({"tools": [PING], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [PING], "tool_choice": {"type": "function", "function": {"name": "pong"}}}, "tool_choice"),
        ({"tools": [PING], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [PING], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (
            {"tools": [PING], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"reasoning_format": "deepseek-legacy"}, "reasoning_format"),
        ({"thinking_budget_tokens": -2}, "thinking_budget_tokens"),
        ({"think": 3}, "think"),
    ],
)
def test_wrong_tools_are_named(body, param):
    error = refused(**body)
    assert error.status == 400 and error.param == param
    assert f"'{param}'" in error.message


def test_tools_of_other_kinds_are_refused():
    error = refused(tools=[{"type": "web_search"}])
    assert isinstance(error, Unsupported) and error.param == "tools[0].type"


# ---------------------------------------------------------------- the form of the answer

FORM = Content("json", SCHEMA)


@pytest.mark.parametrize(
    "given, content",
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Content("json")),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, FORM),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, FORM),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, FORM),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, FORM),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "x", "schema": SCHEMA}}}, FORM),
        ({"response_format": {"type": "json", "value": SCHEMA}}, FORM),
        ({"response_format": {"type": "regex", "value": "[a-z]+"}}, Content("regex", "[a-z]+")),
        ({"regex": "[0-9]{3}"}, Content("regex", "[0-9]{3}")),
        ({"ebnf": 'root ::= "x"'}, Content("gbnf", 'root ::= "x"')),
        ({"json_schema": SCHEMA}, FORM),
        ({"guided_json": json.dumps(SCHEMA)}, FORM),
        ({"guided_regex": "[a-z]+"}, Content("regex", "[a-z]+")),
        ({"guided_choice": ["yes", "no", "yes"]}, Content("choice", ("yes", "no"))),
        ({"guided_grammar": 'start: "x"'}, Content("lark", 'start: "x"')),
        ({"grammar": 'root ::= "x"'}, Content("gbnf", 'root ::= "x"')),
        ({"grammar": ""}, None),
        ({"structured_outputs": {"json": SCHEMA}}, FORM),
        ({"structured_outputs": {"regex": "a", "choice": None}}, Content("regex", "a")),
        ({"structured_outputs": {"choice": ["a"]}}, Content("choice", ("a",))),
        ({"structured_outputs": {"grammar": 'root ::= "x"'}}, Content("gbnf", 'root ::= "x"')),
        ({"structured_outputs": {"json_object": True}}, Content("json")),
        ({"structured_outputs": {}}, None),
        ({"json_schema": SCHEMA, "guided_json": SCHEMA}, FORM),
    ],
)
def test_the_form_of_the_answer_is_read(given, content):
    assert asked(**given).content == content


@pytest.mark.parametrize(
    "body, param",
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object", "value": 3}}, "response_format.value"),
        ({"response_format": {"type": "json", "value": {}, "schema": {}}}, "response_format.value"),
        ({"response_format": {"type": "regex"}}, "response_format.value"),
        ({"json_schema": []}, "json_schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
        ({"grammar": 3}, "grammar"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {"format": {"type": "grammar"}}}},
         "structured_outputs.structural_tag.format.type"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format.structures"),
        ({"response_format": {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": 3, "end": "</a>"}],
                              "triggers": ["<a"]}}, "response_format.structures[0].schema"),
        ({"response_format": {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],
                              "triggers": ["<b"]}}, "response_format.structures[0].begin"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
)  # fmt: skip
def test_wrong_forms_are_named(body, param):
    error = refused(**body)
    assert error.status == 400 and error.param == param
    assert f"'{param}'" in error.message


@pytest.mark.parametrize(
    "field", ["guided_options", "format", "response_schema", "output_schema", "structured_output", "lark_grammar",
              "stop_regex", "json_mode"],
)  # fmt: skip
def test_an_unknown_field_that_asks_for_a_form_is_refused(field):
    """`regex` and `ebnf` were passed over silently once: the answer looked like what it was not."""
    error = refused(**{field: {"type": "object"}})
    assert isinstance(error, Unsupported) and error.param == field and f"'{field}'" in error.message
    for nothing in (None, False, "", {}, []):
        assert asked(**{field: nothing}).content is None


def test_other_unknown_fields_are_passed_over():
    assert asked(new_field=3, guided_decoding_backend="xgrammar", information="x").content is None


# ---------------------------------------------------------------- images


def test_images_are_read():
    url = "data:image/png;base64,aGk="
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
    prompt = asked(messages=[{"role": "user", "content": parts}]).prompts[0]
    assert prompt.messages[0].content == (TextPart("x"), MediaPart("image", b"hi", is_coarse=True))
    alone = asked(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]}])
    assert alone.prompts[0].messages[0].content == (MediaPart("image", url="http://x/y.png"),)


@pytest.mark.parametrize("url", [None, "data:image/png", "data:image/png;base64,a", "data:text/plain,hi"])
def test_images_that_cannot_be_read_are_named(url):
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    assert refused(messages=messages).param == "messages[0].content[0].image_url.url"


# ---------------------------------------------------------------- what is written

CALLED = [
    Reasoning(0, "Hm "),
    Reasoning(0, "\u2028."),
    ToolCallStart(0, 0, "call_1", "clock"),
    ToolCallArguments(0, 0, '{"city":'),
    ToolCallArguments(0, 0, '"Bern"}'),
    ToolCallStart(0, 1, "call_2", "ping"),
    ToolCallArguments(0, 1, "{}"),
    Finished(0, FinishReason.TOOL_CALLS),
    Usage(9, 0, 20, reasoning_tokens=4),
]


def whole(events, **options):
    made = started(ChatReply(ChatOptions(**options)))
    made.fold(events)
    return json.loads(made.whole())


def deltas(events, **options):
    chunks = [json.loads(chunk) for chunk in started(ChatReply(ChatOptions(**options))).chunks(events)]
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]], chunks


def test_calls_and_reasoning_are_reported_whole():
    reply = whole(CALLED)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "Hm \u2028.",
        "reasoning": "Hm \u2028.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"city":"Bern"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "ping", "arguments": "{}"}},
        ],
    }
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_calls_and_reasoning_are_reported_piece_by_piece():
    told, chunks = deltas(CALLED)
    assert told[1:] == [
        {"reasoning_content": "Hm ", "reasoning": "Hm "},
        {"reasoning_content": "\u2028.", "reasoning": "\u2028."},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "clock", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Bern"}'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "ping", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_legacy_call_is_reported_in_the_legacy_form():
    events = [*CALLED[2:5], *CALLED[7:]]
    choice = whole(events, legacy=True)["choices"][0]
    assert choice["message"]["function_call"] == {"name": "clock", "arguments": '{"city":"Bern"}'}
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "function_call"
    told, chunks = deltas(events, legacy=True)
    assert told[1:3] == [
        {"function_call": {"name": "clock", "arguments": ""}},
        {"function_call": {"arguments": '{"city":'}},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


def test_content_beside_calls_stays():
    events = [Text(0, "Let me see."), *CALLED[2:]]
    assert whole(events)["choices"][0]["message"]["content"] == "Let me see."


def test_an_answer_without_calls_has_no_list_of_them():
    message = whole([Finished(0, FinishReason.STOP), Usage()])["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "refusal": None}
