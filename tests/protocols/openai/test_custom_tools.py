"""Custom tools in chat completions: what is read of them, and a call told as its text, whole and piece by piece."""

from __future__ import annotations

import json

import pytest
from protocols.openai.test_tools import asked, deltas, refused, whole

from llamasrv.domain.events import Finished, FinishReason, ToolCallArguments, ToolCallStart, Usage
from llamasrv.domain.request import Tool, ToolChoice
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.openai.custom import custom_input

PATCH = {"type": "custom", "custom": {"name": "patch", "description": "changes a file"}}
TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
PING = {"type": "function", "function": {"name": "ping"}}


def of(tool):
    return Tool(tool.name, tool.description, tool.parameters, tool.strict)


def with_format(form):
    return [{"type": "custom", "custom": {"name": "c", "format": form}}]


def test_a_custom_tool_is_a_function_of_one_text():
    custom, ping = asked(tools=[PATCH, PING]).prompts[0].tools
    assert of(custom) == Tool("patch", "changes a file", TEXT, strict=True)
    assert ping == Tool("ping")


@pytest.mark.parametrize("inner", [True, False])
def test_its_pattern_and_its_grammar_bind_it_and_are_reported(inner):
    def tool(syntax, definition):
        grammar = {"syntax": syntax, "definition": definition}
        form = {"type": "grammar", "grammar": grammar} if inner else {"type": "grammar", **grammar}
        return asked(tools=with_format(form)).prompts[0].tools[0]

    assert tool("regex", "[a-c]+").parameters["properties"]["input"]["pattern"] == "^(?:[a-c]+)$"
    lark = tool("lark", 'start: "x"')
    assert lark.input_grammar == 'start: "x"'
    assert lark.parameters == TEXT and lark.description.endswith('start: "x"')


@pytest.mark.parametrize(
    "given, choice",
    [
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice("required", ("patch",), parallel=False)),
        ({"type": "custom", "name": "patch"}, ToolChoice("required", ("patch",), parallel=False)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [PING, PATCH]}},
            ToolChoice("required", ("ping", "patch")),
        ),
    ],
)
def test_it_can_be_chosen(given, choice):
    assert asked(tools=[PATCH, PING], tool_choice=given).tool_choice == choice


@pytest.mark.parametrize(
    "tools, param",
    [
        ([{"type": "custom"}], "tools[0].custom"),
        ([{"type": "custom", "custom": {}}], "tools[0].custom.name"),
        ([{"type": "custom", "custom": {"name": "c", "description": 3}}], "tools[0].custom.description"),
        (with_format("text"), "tools[0].custom.format"),
        (with_format({"type": "json"}), "tools[0].custom.format.type"),
        (with_format({"type": "grammar"}), "tools[0].custom.format.syntax"),
        (with_format({"type": "grammar", "grammar": 3}), "tools[0].custom.format.grammar"),
        (with_format({"type": "grammar", "grammar": {"syntax": "peg"}}), "tools[0].custom.format.grammar.syntax"),
        (with_format({"type": "grammar", "grammar": {"syntax": "lark"}}), "tools[0].custom.format.grammar.definition"),
        ([PATCH, {"type": "function", "function": {"name": "patch"}}], "tools[1].function.name"),
    ],
)
def test_wrong_ones_are_named(tools, param):
    error = refused(tools=tools)
    assert error.status == 400 and error.param == param


def test_an_earlier_call_goes_back_to_the_model():
    call = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": 'a "b"\n'}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    (made,) = asked(messages=messages, tools=[PATCH]).prompts[0].messages[1].tool_calls
    assert (made.id, made.name, json.loads(made.arguments)) == ("c1", "patch", {"input": 'a "b"\n'})
    call["custom"].pop("input")
    assert refused(messages=messages).param == "messages[1].tool_calls[0].custom.input"


# ---------------------------------------------------------------- what is written

TEXT_SAID = 'a "b"\n\u00e9\U0001f600 end'
ARGUMENTS = json.dumps({"input": TEXT_SAID})  # with escapes, pairs of surrogates among them


def called(*fragments):
    return [
        ToolCallStart(0, 0, "call_1", "patch"),
        *(ToolCallArguments(0, 0, fragment) for fragment in fragments),
        ToolCallStart(0, 1, "call_2", "ping"),
        ToolCallArguments(0, 1, "{}"),
        Finished(0, FinishReason.TOOL_CALLS),
        Usage(),
    ]


CUSTOM = frozenset({"patch"})


def test_the_options_know_the_custom_ones():
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [PATCH, PING]}
    assert ChatCompletions(Limits()).parse(body)[1].custom == CUSTOM


def test_a_call_is_reported_as_its_text():
    custom, ping = whole(called(ARGUMENTS), custom=CUSTOM)["choices"][0]["message"]["tool_calls"]
    assert custom == {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": TEXT_SAID}}
    assert ping["type"] == "function"


@pytest.mark.parametrize("cut", range(0, len(ARGUMENTS), 3))
def test_the_pieces_of_its_text_add_up_wherever_it_is_cut(cut):
    told, _ = deltas(called(ARGUMENTS[:cut], ARGUMENTS[cut:]), custom=CUSTOM)
    calls = [call for delta in told for call in delta.get("tool_calls", [])]
    first = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert calls[0] == first
    assert "".join(call["custom"]["input"] for call in calls if call["index"] == 0) == TEXT_SAID
    assert [call["function"] for call in calls if call["index"] == 1][-1] == {"arguments": "{}"}


@pytest.mark.parametrize("end", [len('{"input": "a'), len(ARGUMENTS) - 1])
def test_a_call_that_was_cut_off_has_the_same_text_either_way(end):
    events = [*called(ARGUMENTS[:end])[:2], Finished(0, FinishReason.LENGTH), Usage()]
    (call,) = whole(events, custom=CUSTOM)["choices"][0]["message"]["tool_calls"]
    told, _ = deltas(events, custom=CUSTOM)
    pieces = [c["custom"]["input"] for delta in told for c in delta.get("tool_calls", [])]
    assert call["custom"]["input"] == "".join(pieces) == custom_input(ARGUMENTS[:end])
    assert TEXT_SAID.startswith(call["custom"]["input"])
