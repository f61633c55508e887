"""Conversations in, and answers made of events by hand: whole, and line by line."""

from __future__ import annotations

import json

import pytest
from started import started

from llamasrv.domain.events import (
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    TopLogprob,
    Usage,
)
from llamasrv.domain.request import Message, Tool, ToolCall
from llamasrv.errors import EngineFailure, InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.ollama.chat import OllamaChat
from llamasrv.protocols.ollama.generate import Generate
from llamasrv.protocols.ollama.reply import loaded_body

CHAT, GENERATE = OllamaChat(Limits(messages=50)), Generate(Limits())
HELLO = [{"role": "user", "content": "Hello"}]


def parse(messages, **body):
    return CHAT.parse({"model": "m", "messages": messages, **body})[0]


def read(*messages):
    return parse(list(messages)).prompts[0].messages


# ---------------------------------------------------------------- requests


def test_turns_are_read():
    found = read(
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "thinking": "t"},
        {"role": "user", "content": "c"},
    )
    assert found == (
        Message("system", "S"),
        Message("user", "a"),
        Message("assistant", "b", reasoning="t"),
        Message("user", "c"),
    )


def test_results_find_their_calls_by_id_by_name_and_in_order():
    def call(name, **more):
        return {"function": {"name": name, "arguments": {"a": 1}}, **more}

    found = read(
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call("f"), call("g"), call("f"), call("h", id="own")]},
        {"role": "tool", "content": "4", "tool_call_id": "own"},
        {"role": "tool", "content": "2", "tool_name": "g"},
        {"role": "tool", "content": "1", "tool_name": "f"},
        {"role": "tool", "content": "3"},
    )
    calls = found[1].tool_calls
    assert calls[0] == ToolCall(calls[0].id, "f", '{"a":1}') and len({one.id for one in calls}) == 4
    assert found[1].content is None
    answered = [(message.content, message.name, message.tool_call_id) for message in found[2:]]
    assert answered == [
        ("4", "h", "own"),
        ("2", "g", calls[1].id),
        ("1", "f", calls[0].id),
        ("3", "f", calls[2].id),
    ]


def test_tools_are_functions():
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    assert parse(HELLO, tools=[tool]).prompts[0].tools == (Tool("f", "d", {"type": "object"}),)
    assert parse(HELLO, tools=[]).prompts[0].tools == ()


def test_an_assistant_message_at_the_end_is_gone_on_with():
    assert parse([*HELLO, {"role": "assistant", "content": "You"}]).prompts[0].continue_final_message


def test_no_messages_are_no_prompt():
    assert parse([]).prompts == () and CHAT.parse({"model": "m"})[0].prompts == ()


def test_turns_that_are_too_old_may_be_left_out():
    assert parse(HELLO).shorten and not parse(HELLO, truncate=False).shorten


@pytest.mark.parametrize(
    "message, param",
    [
        ("x", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "assistant", "tool_calls": 3}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_is_wrong_is_named(message, param):
    with pytest.raises(InvalidRequest) as caught:
        read(message)
    assert caught.value.param == param


# ---------------------------------------------------------------- replies

END = Usage(
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=7,
    prefill_seconds=0.5,
    decode_seconds=0.25,
)
EVERYTHING = [
    Reasoning(0, "Hm."),
    Text(0, "Let me "),
    Text(0, "look."),
    ToolCallStart(0, 0, "call_a", "get_weather"),
    ToolCallArguments(0, 0, '{"city":'),
    ToolCallArguments(0, 0, '"Oslo"}'),
    ToolCallStart(0, 1, "call_b", "now"),
    Finished(0, FinishReason.TOOL_CALLS),
    END,
]
CALLS = [
    {"id": "call_a", "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Oslo"}}},
    {"id": "call_b", "function": {"index": 1, "name": "now", "arguments": {}}},
]


def reply(endpoint=CHAT, *, left_out=0, **body):
    given = {"messages": HELLO} if endpoint is CHAT else {"prompt": "Hello"}
    _, options = endpoint.parse({"model": "m", **given, **body})
    return started(
        endpoint.reply(options), model="other", left_out=left_out, whole_text=lambda answer: [1, 2, *answer.encode()]
    )


def whole(events, endpoint=CHAT, **body):
    made = reply(endpoint, **body)
    made.fold(events)
    return json.loads(made.whole())


def lines(events, endpoint=CHAT, **body):
    return [json.loads(chunk) for chunk in reply(endpoint, **body).chunks(events)]


def test_a_whole_answer_has_all_of_it():
    body = whole(EVERYTHING)
    assert body["model"] == "m" and body["created_at"].endswith("Z")
    assert body["message"] == {
        "role": "assistant",
        "content": "Let me look.",
        "thinking": "Hm.",
        "tool_calls": CALLS,
    }
    assert body["done"] is True and body["done_reason"] == "stop"
    assert (body["prompt_eval_count"], body["prompt_eval_cached_count"], body["eval_count"]) == (10, 4, 7)
    assert (body["prompt_eval_duration"], body["eval_duration"]) == (500_000_000, 250_000_000)
    assert type(body["total_duration"]) is type(body["load_duration"]) is int and body["total_duration"] > 0


@pytest.mark.parametrize("cut", range(1, len(EVERYTHING)))
def test_lines_add_up_to_the_same(cut):
    writer = reply()
    found = [json.loads(chunk) for part in (EVERYTHING[:cut], EVERYTHING[cut:]) for chunk in writer.chunks(part)]
    messages = [line["message"] for line in found]
    assert "".join(message["content"] for message in messages) == "Let me look."
    assert "".join(message.get("thinking", "") for message in messages) == "Hm."
    assert [call for message in messages for call in message.get("tool_calls", ())] == CALLS
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert found[-1].keys() == whole(EVERYTHING).keys()
    assert all(message["role"] == "assistant" for message in messages)


def test_silence_is_a_line_without_text():
    (line,) = lines([])
    assert (line["message"], line["done"]) == ({"role": "assistant", "content": ""}, False)


@pytest.mark.parametrize(
    "reason, told",
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.STOP_STRING, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTEXT, "length"),
    ],
)
def test_it_says_why_it_ended(reason, told):
    events = [Text(0, "x"), Finished(0, reason), END]
    assert whole(events)["done_reason"] == lines(events)[-1]["done_reason"] == told


def test_a_call_that_was_cut_off_is_no_call():
    events = [
        ToolCallStart(0, 0, "call_a", "f"),
        ToolCallArguments(0, 0, '{"a":'),
        Finished(0, FinishReason.LENGTH),
        END,
    ]
    assert "tool_calls" not in whole(events)["message"]
    assert not any("tool_calls" in line["message"] for line in lines(events))


def test_logprobs_come_with_their_text_when_asked():
    entry = TokenLogprob(1, b"x", -0.5, (TopLogprob(1, b"x", -0.5), TopLogprob(2, b"y", -1.5)))
    events = [Text(0, "x", (entry,)), Finished(0, FinishReason.STOP), END]
    asked = {"logprobs": True, "top_logprobs": 1}
    expected = [{"token": "x", "logprob": -0.5, "bytes": [120]}]
    expected[0]["top_logprobs"] = [dict(expected[0])]
    assert whole(events, **asked)["logprobs"] == lines(events, **asked)[0]["logprobs"] == expected
    assert "logprobs" not in whole(events) and "logprobs" not in lines(events)[0]
    with pytest.raises(InvalidRequest):
        reply(top_logprobs=1)


def test_turns_that_were_left_out_are_reported():
    assert whole(EVERYTHING, left_out=4)["left_out_messages"] == 4
    assert "left_out_messages" not in whole(EVERYTHING)


def test_a_failure_is_a_line_and_the_last():
    writer = reply()
    chunks = writer.chunks([Text(0, "x"), Failed(0, EngineFailure("no")), END])
    assert writer.failed and json.loads(chunks[-1]) == {"error": "no"}


def test_a_request_for_nothing_is_answered_as_loaded():
    body = json.loads(loaded_body("m", CHAT.shape, unload=False))
    assert body["message"] == {"role": "assistant", "content": ""}
    assert (body["done"], body["done_reason"], body["model"]) == (True, "load", "m")
    body = json.loads(loaded_body("m", GENERATE.shape, unload=True))
    assert (body["response"], body["done_reason"]) == ("", "unload")
