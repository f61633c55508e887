"""Fields of a request, and replies made of events by hand: whole, and as a stream cut at every place."""

from __future__ import annotations

import json

import pytest
from protocols.anthropic.wire_client import add_up
from started import started

from llamasrv.domain.events import (
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    ToolsFound,
    Usage,
)
from llamasrv.domain.request import Content, Tool, ToolChoice
from llamasrv.errors import EngineFailure, InvalidRequest, Unsupported
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.anthropic.reply import MessagesOptions
from llamasrv.protocols.anthropic.turns import sealed
from llamasrv.protocols.limits import Limits

ENDPOINT = MessagesEndpoint(Limits(tools=5))
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


def parse(**body):
    return ENDPOINT.parse({"model": "m", "max_tokens": 5, "messages": HELLO, **body})[0]


def refused(error=InvalidRequest, **body):
    with pytest.raises(error) as caught:
        ENDPOINT.parse({"model": "m", "max_tokens": 5, "messages": HELLO, **body})
    return caught.value.param


# ---------------------------------------------------------------- requests


def test_sampling_is_taken_over_and_what_is_absent_stays_so():
    assert parse().sampling == {}
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 3}
    assert parse(**given).sampling == given
    request = parse(stop_sequences=["a", "b"], stream=True)
    assert request.stop == ("a", "b") and request.stream and request.max_tokens == 5 and request.model == "m"


def test_max_tokens_is_required_but_not_for_counting():
    assert refused(max_tokens=None) == "max_tokens"
    assert ENDPOINT.parse_count({"model": "m", "messages": HELLO})[0].max_tokens is None


def test_tools_are_functions():
    assert parse(tools=[WEATHER]).prompts[0].tools == (Tool("get_weather", "The weather", SCHEMA),)
    assert parse(tools=[{**WEATHER, "type": "custom", "strict": True}]).prompts[0].tools[0].strict
    assert parse(tools=[]).prompts[0].tools == ()


def test_tools_that_the_client_runs_have_their_schemas():
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
    ]
    found = parse(tools=tools).prompts[0].tools
    assert [tool.name for tool in found] == ["bash", "str_replace_based_edit_tool", "memory"]
    assert all(tool.parameters["properties"]["command"] and tool.description for tool in found)


def test_tools_of_anthropics_servers_are_left_out_unless_one_is_forced():
    assert [tool.name for tool in parse(tools=[SEARCH, WEATHER]).prompts[0].tools] == ["get_weather"]
    assert refused(Unsupported, tools=[SEARCH, WEATHER], tool_choice={"type": "tool", "name": "web_search"}) == (
        "tool_choice.name"
    )
    assert refused(Unsupported, tools=[SEARCH], tool_choice={"type": "any"}) == "tool_choice"


@pytest.mark.parametrize("choice", [{}, {"tool_choice": {"type": "auto"}}, {"stream": True}])
def test_a_request_with_nothing_else_is_refused(choice):
    """Claude Code's WebSearch sends one: the model's imagination came back as the results of a search."""
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch"}
    with pytest.raises(Unsupported, match="web_search_20250305', 'web_fetch_20250910") as caught:
        parse(tools=[SEARCH, fetch], **choice)
    assert caught.value.param == "tools"
    assert ENDPOINT.parse_count({"messages": HELLO, "tools": [SEARCH]})[0].prompts[0].tools == (), (
        "counting does no harm"
    )


@pytest.mark.parametrize(
    "wire, choice",
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required", parallel=False)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "tool", "name": "get_weather"}, ToolChoice("required", ("get_weather",))),
    ],
)
def test_tool_choice_is_honoured(wire, choice):
    assert parse(tools=[WEATHER], tool_choice=wire).tool_choice == choice


@pytest.mark.parametrize(
    "field, value, param",
    [
        ("tools", "x", "tools"),
        ("tools", [3], "tools[0]"),
        ("tools", [{"name": "f"}], "tools[0].input_schema"),
        ("tools", [{"input_schema": {}}], "tools[0].name"),
        ("tools", [{"name": "", "input_schema": {}}], "tools[0].name"),
        ("tools", [WEATHER, WEATHER], "tools[1].name"),
        ("tools", [WEATHER] * 6, "tools"),
        ("tool_choice", "any", "tool_choice"),
        ("tool_choice", {"type": "some"}, "tool_choice.type"),
        ("tool_choice", {"type": "any"}, "tool_choice"),  # no tools
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", "5", "max_tokens"),
        ("temperature", 3, "temperature"),
        ("top_p", "high", "top_p"),
        ("stop_sequences", [""], "stop_sequences[0]"),
        ("stop_sequences", ["x"] * 100, "stop_sequences"),
        ("thinking", {"type": "loud"}, "thinking.type"),
        ("thinking", {"type": "enabled", "budget_tokens": 0}, "thinking.budget_tokens"),
        ("thinking", {"type": "enabled", "budget_tokens": "x"}, "thinking.budget_tokens"),
        ("thinking", {"type": "enabled", "display": "loud"}, "thinking.display"),
        ("output_config", {"effort": "huge"}, "output_config.effort"),
        ("output_config", {"format": {"type": "xml"}}, "output_config.format.type"),
        ("output_config", {"format": {"type": "json_schema"}}, "output_config.format.schema"),
    ],
)
def test_what_is_wrong_is_named(field, value, param):
    assert refused(**{field: value}) == param


def test_an_unknown_tool_cannot_be_forced():
    assert refused(tools=[WEATHER], tool_choice={"type": "tool", "name": "other"}) == "tool_choice.name"


def test_a_connector_that_is_not_there_is_refused():
    assert refused(Unsupported, mcp_servers=[{"type": "url", "url": "https://x"}]) == "mcp_servers"
    parse(
        mcp_servers=[], cache_control={"type": "ephemeral"}, context_management={"edits": []}, metadata={}, betas=["x"]
    )


def test_thinking_is_switched_and_bounded():
    assert "enable_thinking" not in parse().prompts[0].template_kwargs
    for kind in ("enabled", "adaptive", "between_tools"):
        assert parse(thinking={"type": kind}).prompts[0].template_kwargs["enable_thinking"] is True
    assert parse(thinking={"type": "disabled"}).prompts[0].template_kwargs["enable_thinking"] is False
    assert parse(thinking={"type": "enabled", "budget_tokens": 2048}).thinking_budget == 2048
    assert parse(output_config={"effort": "high"}).prompts[0].template_kwargs["reasoning_effort"] == "high"


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_an_answer_may_have_to_fit_a_schema(field):
    form = {"type": "json_schema", "schema": SCHEMA}
    body = {"output_config": {"format": form}} if field == "output_config" else {"output_format": form}
    assert parse(**body).content == Content("json", SCHEMA)


# ---------------------------------------------------------------- replies

END = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7, reasoning_tokens=2)
USAGE = {
    "input_tokens": 6,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 4,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 2},
    "service_tier": "standard",
}
EVERYTHING = [
    Reasoning(0, "Hm, "),
    Reasoning(0, "well."),
    Text(0, "Let me "),
    Text(0, "look \u2028 there."),
    ToolCallStart(0, 0, "call_a", "get_weather"),
    ToolCallArguments(0, 0, '{"city":'),
    ToolCallArguments(0, 0, '"Oslo"}'),
    ToolCallStart(0, 1, "call_b", "now"),
    Finished(0, FinishReason.TOOL_CALLS),
    END,
]
CONTENT = [
    {"type": "thinking", "thinking": "Hm, well."},
    {"type": "text", "text": "Let me look \u2028 there."},
    {"type": "tool_use", "id": "toolu_a", "name": "get_weather", "input": {"city": "Oslo"}},
    {"type": "tool_use", "id": "toolu_b", "name": "now", "input": {}},
]


def reply(**options):
    return started(ENDPOINT.reply(MessagesOptions(**options)))


def whole(events, **options):
    made = reply(**options)
    made.fold(events)
    return json.loads(made.whole())


def streamed(events, cuts=(), **options):
    """Added up as the official client does; `cuts` say which events come together."""
    writer = reply(**options)
    chunks = []
    for start, end in zip((0, *cuts), (*cuts, len(events))):
        chunks += writer.chunks(events[start:end])
    return add_up(chunks)


def unsigned(content):
    assert all(block.pop("signature") for block in content if block["type"] == "thinking")
    return content


def test_a_whole_reply_has_all_blocks():
    body = whole(EVERYTHING)
    assert body.pop("id").startswith("msg_")
    assert unsigned(body.pop("content")) == CONTENT
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
    }


@pytest.mark.parametrize("cut", range(1, len(EVERYTHING)))
def test_a_stream_adds_up_to_the_same(cut):
    message = streamed(EVERYTHING, [cut])
    expected = whole(EVERYTHING)
    message.pop("id"), expected.pop("id")
    assert message == expected


def test_a_stream_opens_one_block_at_a_time():
    types = [json.loads(chunk)["type"] for chunk in reply().chunks(EVERYTHING)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    start, delta, stop = block
    assert types == [
        "message_start",
        start,
        delta,
        delta,
        delta,
        stop,
        start,
        delta,
        delta,
        stop,
        start,
        delta,
        delta,
        stop,
        start,
        stop,
        "message_delta",
        "message_stop",
    ]


def test_the_first_event_tells_the_prompts_length():
    first = json.loads(reply().chunks(EVERYTHING[:1])[0])["message"]
    assert first["usage"]["input_tokens"] == 10 and first["content"] == [] and first["stop_reason"] is None


def test_every_event_begins_with_its_type_and_is_one_line_to_every_client():
    for chunk in reply().chunks(EVERYTHING):
        assert chunk.startswith(b'{"type":"') and len(chunk.decode().splitlines()) == 1


def test_silence_is_a_ping_after_the_message_has_started():
    writer = reply()
    assert [json.loads(chunk)["type"] for chunk in writer.chunks([])] == ["message_start", "ping"]
    assert writer.chunks([]) == [b'{"type":"ping"}']


def test_thinking_may_be_kept_back_and_comes_in_the_signature():
    for content in (whole(EVERYTHING, show_thinking=False), streamed(EVERYTHING, show_thinking=False)):
        block = content["content"][0]
        assert block == {"type": "thinking", "thinking": "", "signature": sealed("Hm, well.")}


@pytest.mark.parametrize(
    "reason, stop, told",
    [
        (FinishReason.STOP, None, ("end_turn", None)),
        (FinishReason.STOP_STRING, "END", ("stop_sequence", "END")),
        (FinishReason.STOP_STRING, None, ("end_turn", None)),
        (FinishReason.LENGTH, None, ("max_tokens", None)),
        (FinishReason.CONTEXT, None, ("model_context_window_exceeded", None)),
    ],
)
def test_it_says_why_it_ended(reason, stop, told):
    events = [Text(0, "x"), Finished(0, reason, stop), END]
    for body in (whole(events), streamed(events)):
        assert (body["stop_reason"], body["stop_sequence"]) == told


def test_an_answer_of_nothing_has_no_blocks():
    events = [Finished(0, FinishReason.LENGTH), END]
    assert whole(events)["content"] == streamed(events)["content"] == []


def test_a_call_that_was_cut_off_is_no_call():
    events = [
        ToolCallStart(0, 0, "call_a", "f"),
        ToolCallArguments(0, 0, '{"a":'),
        Finished(0, FinishReason.LENGTH),
        END,
    ]
    body = whole(events)
    assert (body["content"], body["stop_reason"]) == ([], "max_tokens")


def test_a_failure_is_an_error_event_and_the_last_one():
    writer = reply()
    chunks = writer.chunks([Text(0, "x"), Failed(0, EngineFailure("no")), END])
    assert writer.failed
    assert json.loads(chunks[-1]) == {"type": "error", "error": {"type": "api_error", "message": "no"}}


# ---------------------------------------------------------------- a tool search that the server ran

FOUND = ToolsFound(0, "call_1", "tool_search_tool_bm25", '{"query":"x"}', ("crm_find",))


def reply_to(*events):
    writer = started(ENDPOINT.reply(MessagesOptions()))
    return writer, [*events, Finished(0, FinishReason.STOP), Usage()]


def test_a_search_is_two_blocks_between_the_text():
    writer, events = reply_to(Text(0, "a"), FOUND, Text(0, "b"))
    writer.fold(events)
    content = json.loads(writer.whole())["content"]
    assert [block["type"] for block in content] == ["text", "server_tool_use", "tool_search_tool_result", "text"]
    assert content[1]["input"] == {"query": "x"} and content[1]["id"] == content[2]["tool_use_id"]
    assert content[2]["content"]["tool_references"] == [{"type": "tool_reference", "tool_name": "crm_find"}]


def test_a_stream_has_the_same_blocks():
    writer, events = reply_to(Text(0, "a"), FOUND, Text(0, "b"))
    streamed = [json.loads(chunk) for chunk in writer.chunks(events)]
    blocks = [e["content_block"]["type"] for e in streamed if e["type"] == "content_block_start"]
    assert blocks == ["text", "server_tool_use", "tool_search_tool_result", "text"]
    assert [e["index"] for e in streamed if e["type"] == "content_block_stop"] == [0, 1, 2, 3]


def test_a_search_that_failed_says_why():
    writer, events = reply_to(FOUND._replace(error="wrong"))
    writer.fold(events)
    result = json.loads(writer.whole())["content"][1]["content"]
    assert result["type"] == "tool_search_tool_result_error" and result["error_message"] == "wrong"
