"""POST /v1/responses without a socket: what is read from a body, and what is refused."""

from __future__ import annotations

import pytest

from llamasrv.domain.request import ChatPrompt, Content, MediaPart, Message, TextPart, Tool, ToolCall, ToolChoice
from llamasrv.domain.summary import SUMMARISE, SUMMARY
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.common.headers import header_of
from llamasrv.protocols.common.schema import REFUSED, rows
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses import Earlier, Responses
from llamasrv.protocols.openai.responses.ids import (
    input_id,
    is_response_id,
    new_response_id,
    output_id,
    response_of,
    seal,
    unseal,
)
from llamasrv.protocols.openai.responses.schema import ResponsesSchema
from llamasrv.protocols.openai.responses.tools import Kind

LIMITS = Limits(messages=20, parts=4, tools=3)
endpoint = Responses(LIMITS)


def parse(earlier=None, **body):
    return endpoint.parse({"input": "Hello", **body}, earlier=earlier)


def asked(*items, earlier=None, **body):
    return parse(earlier, **({"input": list(items)} if items else {}), **body)[0]


def messages(*items, **body):
    (prompt,) = asked(*items, **body).prompts
    return prompt.messages


def refused(*items, earlier=None, **body):
    with pytest.raises(InvalidRequest) as caught:
        asked(*items, earlier=earlier, **body)
    return caught.value


def user(text):
    return {"role": "user", "content": text}


CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"x":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}


# ---------------------------------------------------------------- fields


def test_it_reads_the_least_body():
    request, options = parse()
    assert request.prompts == (ChatPrompt((Message("user", "Hello"),)),)
    assert request.max_tokens is None and not request.stream and not request.shorten and request.sampling == {}
    assert is_response_id(options.id) and options.store and not options.background


def test_null_is_absent():
    nothing = {row.field: None for row in rows(ResponsesSchema) if row.field != "input"}
    request, options = parse(**nothing)
    plain, plain_options = parse()
    assert request == plain and options.shown == plain_options.shown


def test_what_codex_sends_is_read():
    request, options = endpoint.parse(
        {
            "model": "m",
            "instructions": "You code.",
            "store": False,
            "stream": True,
            "include": [],
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "tools": [
                {"type": "function", "name": "shell", "description": "", "strict": False, "parameters": {}},
                {
                    "type": "custom",
                    "name": "apply_patch",
                    "description": "d",
                    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
                },
                {"type": "web_search", "external_web_access": True},
                {"type": "image_generation"},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "prompt_cache_key": "k",
            "client_metadata": {"x": "y"},
        }
    )
    (prompt,) = request.prompts
    assert prompt.messages == (Message("system", "You code."), Message("user", "Hi"))
    assert [tool.name for tool in prompt.tools] == ["shell", "apply_patch"]
    assert request.tool_choice == ToolChoice("auto", parallel=False) and request.stream
    assert prompt.template_kwargs["reasoning_effort"] == "medium"
    assert options.summary and not options.store and options.tools.left_out == ["web_search", "image_generation"]
    assert options.shown["prompt_cache_key"] == "k"


@pytest.mark.parametrize("empty", ["", []])
def test_a_probe_with_no_input_is_let_through(empty):
    request, options = endpoint.parse({"input": empty, "max_output_tokens": 1})
    assert request.prompts[0].messages == (Message("user", ""),) and options.input == []


def test_no_input_at_all_is_an_error_unless_there_is_an_earlier_response():
    with pytest.raises(InvalidRequest) as caught:
        endpoint.parse({"model": "m"})
    assert caught.value.param == "input" and caught.value.code == "missing_required_parameter"
    turn = {"id": "msg_1", "type": "message", "role": "user", "content": "earlier"}
    request, _ = endpoint.parse({"previous_response_id": "resp_1"}, earlier=Earlier((turn,)))
    assert request.prompts[0].messages == (Message("user", "earlier"),)


@pytest.mark.parametrize("row", [row for row in rows(ResponsesSchema) if row.verdict == REFUSED], ids=lambda r: r.field)
def test_it_refuses_what_it_cannot_honour(row):
    error = refused(**{row.field: {"id": "x"}})
    assert type(error) is Unsupported and error.param == row.field


@pytest.mark.parametrize("wrong", [3, [], {}, {"id": 3}, ""])
def test_a_conversation_is_an_id_or_has_one(wrong):
    if wrong == "":
        assert endpoint.references({"conversation": "conv_1"}).conversation == "conv_1"
        assert endpoint.references({"conversation": {"id": "conv_1"}}).conversation == "conv_1"
    else:
        assert refused(conversation=wrong).param == "conversation"
    assert refused(conversation="conv_1", previous_response_id="resp_1").param == "conversation"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"include": "all"}, "include"),
        ({"background": True, "store": False}, "background"),
        ({"instructions": ["x"]}, "instructions"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "user", "content": ""}] * 21}, "input"),
    ],
)
def test_it_names_the_field_that_is_wrong(body, param):
    assert refused(**body).param == param


def test_bounds_and_sampling_are_handed_on():
    request = asked(
        max_output_tokens=5,
        temperature=0,
        top_p=0.5,
        seed=7,
        min_p=0.1,
        stop=["x"],
        truncation="auto",
        lora=[{"id": 0, "scale": 0.5}],
        thinking_budget=9,
        cache_prompt=False,
    )
    assert request.adapters and request.thinking_budget == 9 and not request.cache_prompt
    assert request.max_tokens == 5 and request.shorten and request.stop == ("x",)
    assert request.sampling == {"temperature": 0.0, "top_p": 0.5, "seed": 7, "min_p": 0.1}


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Content("json")),
        ({"type": "json_schema", "name": "x", "schema": {"type": "object"}}, Content("json", {"type": "object"})),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, Content("json", {})),
    ],
)
def test_the_form_of_the_answer_is_read(form, content):
    request, options = parse(text={"format": form, "verbosity": "low"})
    assert request.content == content and options.shown["text"]["verbosity"] == "low"


def test_log_probabilities_are_given_when_they_are_asked_for():
    assert asked().logprobs is None
    assert asked(include=["message.output_text.logprobs"]).logprobs == 0
    assert asked(top_logprobs=3).logprobs == 3


def test_effort_switches_thinking():
    assert asked(reasoning={"effort": "none"}).prompts[0].template_kwargs == {
        "enable_thinking": False,
        "thinking": False,
    }
    assert asked(reasoning={"effort": "high"}).prompts[0].template_kwargs["reasoning_effort"] == "high"
    assert asked(reasoning={}).prompts[0].template_kwargs == {}


# ---------------------------------------------------------------- items


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
@pytest.mark.parametrize(
    "content", ["Hi", ["Hi"], [{"type": "input_text", "text": "Hi"}], [{"type": "output_text", "text": "Hi"}]]
)
@pytest.mark.parametrize("more", [{}, {"type": "message"}, {"type": "message", "id": "msg_1", "status": "completed"}])
def test_messages_come_in_many_forms(role, content, more):
    assert messages({"role": role, "content": content, **more}) == (Message(role, "Hi"),)


def test_several_parts_stay_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    assert messages(user(parts)) == (Message("user", (TextPart("a"), MediaPart("image", b"\0\0\0"))),)
    assert messages(user([{"type": "input_image", "image_url": "https://x/y.png", "detail": "low"}])) == (
        Message("user", (MediaPart("image", url="https://x/y.png", is_coarse=True),)),
    )


@pytest.mark.parametrize(
    ("part", "param", "kind"),
    [
        ({"type": "input_file"}, "input[0].content[0]", InvalidRequest),
        ({"type": "input_audio"}, "input[0].content[0].input_audio", InvalidRequest),
        (
            {"type": "input_image", "image_url": "data:image/png;base64,?"},
            "input[0].content[0].image_url",
            InvalidRequest,
        ),
        ({"type": "new"}, "input[0].content[0].type", InvalidRequest),
        ({"type": "input_text"}, "input[0].content[0].text", InvalidRequest),
        (7, "input[0].content[0]", InvalidRequest),
    ],
)
def test_parts_that_cannot_be_read_are_named(part, param, kind):
    error = refused(user([part]))
    assert error.param == param and type(error) is kind


def test_reasoning_text_and_calls_are_one_turn():
    items = [
        user("Go"),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I try"}]},
        CALL,
        {**CALL, "call_id": "call_2", "name": "g", "arguments": "{}"},
        {**OUTPUT, "call_id": "call_2", "output": "two"},
        OUTPUT,
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "Done"},
        user("Thanks"),
    ]
    assert messages(*items) == (
        Message("user", "Go"),
        Message(
            "assistant",
            "I try",
            reasoning="hm",
            tool_calls=(ToolCall("call_1", "f", '{"x":1}'), ToolCall("call_2", "g", "{}")),
        ),
        Message("tool", "two", name="g", tool_call_id="call_2"),
        Message("tool", "ok", name="f", tool_call_id="call_1"),
        Message("assistant", "Done", reasoning="so"),
        Message("user", "Thanks"),
    )


def test_two_answers_in_a_row_stay_two():
    assert messages({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}) == (
        Message("assistant", "a"),
        Message("assistant", "b"),
    )


def test_an_assistant_may_have_no_content():
    assert messages({"type": "message", "role": "assistant", "content": None, "annotations": []}, user("x"))[0] == (
        Message("assistant", "")
    )


def test_reasoning_without_anything_after_it_is_dropped():
    assert messages({"type": "reasoning", "summary": []}, user("x")) == (Message("user", "x"),)


def test_sealed_reasoning_is_opened():
    items = [{"type": "reasoning", "summary": [], "encrypted_content": seal("thought")}, CALL, OUTPUT]
    assert messages(*items)[0].reasoning == "thought"


@pytest.mark.parametrize("sealed", ["gAAAAABsomebodyElses", "llamasrv1.A", "llamasrv1./w==", "llamasrv1.é"])
def test_reasoning_that_another_server_sealed_is_unknown(sealed):
    items = [{"type": "reasoning", "summary": [], "encrypted_content": sealed}, CALL, OUTPUT]
    assert messages(*items)[0].reasoning is None


def test_a_custom_call_is_reported_as_a_call_with_one_text():
    items = [
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "fine"}]},
    ]
    assert messages(*items) == (
        Message("assistant", None, tool_calls=(ToolCall("c", "patch", '{"input":"a \\"b\\""}'),)),
        Message("tool", "fine", name="patch", tool_call_id="c"),
    )


def test_a_namespace_is_part_of_the_name_in_the_prompt():
    assert messages({**CALL, "namespace": "mcp"}, OUTPUT)[0].tool_calls[0].name == "mcp__f"


@pytest.mark.parametrize(
    ("call", "output", "name"),
    [
        (
            {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c", "output": "files"},
            "local_shell",
        ),
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "files"}]},
            "shell",
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "x"}},
            {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "files"},
            "apply_patch",
        ),
    ],
)
def test_tools_that_a_client_runs_are_reported_as_functions(call, output, name):
    first, second = messages(call, output)
    assert first.tool_calls[0].name == name and second.role == "tool" and "files" in second.content


@pytest.mark.parametrize(
    "kind",
    ["web_search_call", "image_generation_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"],
)
def test_items_of_other_services_tools_are_skipped(kind):
    assert messages({"type": kind, "id": "x"}, user("Hi")) == (Message("user", "Hi"),)


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([user("x"), {"type": "novelty"}], "input[1].type"),
        ([{"content": "x"}], "input[0].type"),
        ([{"role": "robot", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": ["x"] * 5}], "input[0].content"),
        ([{**CALL, "call_id": None}], "input[0].call_id"),
        ([{**CALL, "name": ""}], "input[0].name"),
        ([{**CALL, "arguments": 3}], "input[0].arguments"),
        ([CALL, {**OUTPUT, "output": None}], "input[1].output"),
        ([{"type": "reasoning", "content": "x"}], "input[0].content"),
        ([{"type": "compaction", "encrypted_content": "foreign"}], "input[0].encrypted_content"),
        ([{"type": "additional_tools", "tools": [{}]}], "input[0].tools[0].type"),
    ],
)
def test_it_names_the_item_that_is_wrong(items, param):
    assert refused(*items).param == param


def test_an_output_without_its_call_is_refused_in_openais_words():
    error = refused(user("x"), OUTPUT)
    assert "No tool call found for function call output with call_id call_1." in error.message
    assert error.param == "input[1].call_id"


def test_more_tools_may_come_with_the_input():
    extra = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}
    request = asked(
        user("x"), extra, tools=[{"type": "function", "name": "f"}], tool_choice={"type": "function", "name": "late"}
    )
    prompt = request.prompts[0]
    assert [tool.name for tool in prompt.tools] == ["f"]  # the head stays as it was
    assert [tool.name for tool in prompt.messages[-1].added_tools] == ["late"]
    assert [tool.name for tool in prompt.offered] == ["f", "late"]
    assert request.tool_choice == ToolChoice("required", ("late",), parallel=False)


# ---------------------------------------------------------------- earlier turns


def test_earlier_items_go_before_and_instructions_do_not_carry_over():
    earlier = Earlier(({"id": "msg_1", "role": "user", "content": "one", "type": "message"}, {"id": "fc_1", **CALL}))
    assert messages(OUTPUT, earlier=earlier, instructions="New.") == (
        Message("system", "New."),
        Message("user", "one"),
        Message("assistant", None, tool_calls=(ToolCall("call_1", "f", '{"x":1}'),)),
        Message("tool", "ok", name="f", tool_call_id="call_1"),
    )


@pytest.mark.parametrize("reference", [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}])
def test_a_reference_stands_for_its_item(reference):
    assert endpoint.references({"input": [reference, user("x")]}).items == ("msg_1",)
    earlier = Earlier((), {"msg_1": {"id": "msg_1", "type": "message", "role": "user", "content": "one"}})
    assert messages(reference, earlier=earlier) == (Message("user", "one"),)
    error = refused(reference)
    assert error.param == "input[0].id" and error.code == "item_not_found"


def test_items_are_shown_in_full_and_each_has_an_id_of_its_own():
    earlier = Earlier(({"id": "msg_1", "type": "message", "role": "user", "content": "one"},))
    items = [
        {**user("a"), "id": "msg_1"},
        {**user("b"), "id": "mine"},
        {**user("c"), "id": "mine"},
        {"role": "assistant", "content": "d"},
        CALL,
    ]
    _, options = parse(earlier, input=items)
    shown = options.input
    ids = [item["id"] for item in shown]
    assert len({"msg_1", *ids}) == 6 and ids[1] == "mine"
    assert shown[0]["content"] == [{"type": "input_text", "text": "a"}] and shown[0]["status"] == "completed"
    assert shown[3]["content"] == [{"type": "output_text", "annotations": [], "text": "d"}]
    assert response_of(ids[4]) == options.id and shown[4]["call_id"] == "call_1"


# ---------------------------------------------------------------- compaction


def test_a_trigger_asks_for_a_summary():
    request, options = parse(
        input=[user("Hi"), {"type": "compaction_trigger"}],
        tools=[{"type": "function", "name": "f"}],
        tool_choice="required",
        text={"format": {"type": "json_object"}},
    )
    assert request.prompts[0].messages == (Message("user", "Hi"), Message("user", SUMMARISE))
    assert request.tool_choice.mode == "none" and request.content is None and request.shorten
    assert request.prompts[0].template_kwargs["enable_thinking"] is False
    assert options.compact and options.users is None


def test_a_compact_request_is_answered_with_the_users_messages():
    earlier = Earlier(({"id": "m", "type": "message", "role": "user", "content": "one"}, {"id": "fc", **CALL}))
    body = {"model": "m", "input": "two", "previous_response_id": "resp_1", "stream": True, "background": True}
    request, options = endpoint.parse_compact(body, earlier=earlier)
    assert not request.stream and not options.store and not options.background
    assert [item["content"] for item in options.users] == ["one", [{"type": "input_text", "text": "two"}]]


def test_a_compaction_is_read_as_a_summary():
    assert messages({"type": "compaction", "encrypted_content": seal("all of it")}, user("x"))[0] == (
        Message("user", SUMMARY + "all of it")
    )


# ---------------------------------------------------------------- tools


def tool(**wire):
    return {"type": "function", "name": "f", **wire}


def test_a_function_is_read():
    schema = {"type": "object", "properties": {}}
    (prompt,) = asked(tools=[tool(description="d", parameters=schema, strict=True)]).prompts
    assert prompt.tools == (Tool("f", "d", schema, True),)
    assert asked(tools=[{"type": "function", "function": {"name": "f"}}]).prompts[0].tools == (Tool("f"),)


def test_a_custom_tool_has_one_text():
    request, options = parse(tools=[{"type": "custom", "name": "c", "description": "d"}])
    (only,) = request.prompts[0].tools
    assert only.parameters["required"] == ["input"] and only.parameters["properties"] == {"input": {"type": "string"}}
    assert options.tools.kind("c") == Kind("c", None, True)


def test_a_custom_tools_pattern_is_kept_to_and_its_grammar_reported():
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
    (only,) = asked(tools=[{"type": "custom", "name": "c", "format": form}]).prompts[0].tools
    assert only.parameters["properties"]["input"]["pattern"] == "^(?:[a-z]+)$"
    form = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    (only,) = asked(tools=[{"type": "custom", "name": "c", "format": form}]).prompts[0].tools
    assert "start: X" in only.description


def test_tools_of_a_namespace_carry_its_name():
    inner = [{"type": "function", "name": "a"}, {"type": "custom", "name": "b"}]
    request, options = parse(tools=[{"type": "namespace", "name": "ns", "description": "d", "tools": inner}])
    assert [tool.name for tool in request.prompts[0].tools] == ["ns__a", "ns__b"]
    assert options.tools.kind("ns__a") == Kind("a", "ns") and options.tools.kind("ns__b") == Kind("b", "ns", True)
    assert options.shown["tools"][0]["tools"][0]["name"] == "a"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0].name"),
        ([{"type": "function", "name": "with space"}], "tools[0].name"),
        ([{"name": "f"}], "tools[0].type"),
        ([tool(parameters=[])], "tools[0].parameters"),
        ([tool(strict=1)], "tools[0].strict"),
        ([{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "peg"}}], "tools[0].format.syntax"),
        ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}], "tools[0].tools[0].type"),
        ([tool(name=f"f{n}") for n in range(4)], "tools[3]"),
        ({}, "tools"),
    ],
)
def test_it_names_the_tool_that_is_wrong(tools, param):
    assert refused(tools=tools).param == param


NAMESPACE = {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "a"}]}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", ToolChoice("none")),
        ("auto", ToolChoice()),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", ("f",), False)),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("required", ("f",), False)),
        ({"type": "custom", "name": "c"}, ToolChoice("required", ("c",), False)),
        ({"type": "function", "name": "a", "namespace": "ns"}, ToolChoice("required", ("ns__a",), False)),
        ({"type": "function", "name": "ns__a"}, ToolChoice("required", ("ns__a",), False)),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, {"type": "mcp"}]},
            ToolChoice("auto", ("f",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "c"}]},
            ToolChoice("required", ("c",)),
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, ToolChoice("none")),
    ],
)
def test_a_choice_of_tools_is_read(choice, expected):
    tools = [tool(), {"type": "custom", "name": "c"}, NAMESPACE]
    assert asked(tools=tools, tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize(
    ("tools", "choice", "param", "kind"),
    [
        ([tool()], {"type": "function", "name": "g"}, "tool_choice", InvalidRequest),
        ([tool()], {"type": "web_search"}, "tool_choice.type", Unsupported),
        ([tool(), {"type": "web_search"}], {"type": "web_search"}, "tool_choice.type", Unsupported),
        ([{"type": "web_search"}], "required", "tool_choice", Unsupported),
        ([], "required", "tool_choice", InvalidRequest),
        ([tool()], "any", "tool_choice", InvalidRequest),
        ([tool()], {"type": "allowed_tools", "tools": []}, None, None),
        ([tool()], {"type": "allowed_tools", "mode": "required", "tools": []}, "tool_choice", InvalidRequest),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(tools, choice, param, kind):
    if param is None:
        assert asked(tools=tools, tool_choice=choice).tool_choice.mode == "none"
        return
    error = refused(tools=tools, tool_choice=choice)
    assert error.param == param and type(error) is kind


def test_tools_left_out_are_named_in_a_safe_alphabet():
    _, options = parse(tools=[{"type": "web_search"}, {"type": "evil\r\nheader: é"}])
    assert header_of(options.tools.left_out) == "web_search, evil??header???"


# ---------------------------------------------------------------- ids


def test_an_items_id_names_its_response():
    id = new_response_id()
    assert is_response_id(id) and new_response_id() != id
    assert response_of(output_id("msg", id, 3)) == response_of(input_id("fc", id, 70_000)) == id
    assert output_id("msg", id, 3) != input_id("msg", id, 3)
    for other in ("", "msg_1", "resp_" + "0" * 48, id, f"msg_{id[5:]}", f"MSG_{id[5:]}o0000", f"msg_{id[5:]}o0000\n"):
        assert response_of(other) is None


@pytest.mark.parametrize("text", ["", "é 🎈 \u2028", "x" * 100_000])
def test_what_is_sealed_can_be_opened(text):
    assert unseal(seal(text)) == text


def test_the_slot_that_a_request_names_reaches_it():
    """It did not: the field was accepted, and POST /slots found nothing to save."""
    assert parse(id_slot=3)[0].slot == 3
