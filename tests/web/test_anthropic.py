"""Anthropic's routes over Flask's test client: replies, streams, counts, and errors in its own shape."""

from __future__ import annotations

import json

import pytest
from protocols.anthropic.wire_client import add_up
from serving import failing_midway

from llamasrv.domain.key import Key
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.engine import EngineOptions
from llamasrv.protocols.common.headers import LEFT_OUT
from llamasrv.web.service import WebOptions

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "Hello"}]
BODY = {"model": "fake", "max_tokens": 100, "messages": HELLO, "temperature": 0}
TOOLS = [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}]


def events(response):
    """The data of each event, whose name is its type."""
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"] == response.headers["x-request-id"]
    blocks = response.get_data(as_text=True).split("\n\n")
    assert blocks.pop() == ""
    out = []
    for block in blocks:
        name, data = block.split("\n")
        out.append(data.removeprefix("data: "))
        assert name == "event: " + json.loads(out[-1])["type"]
    return out


def error(response):
    assert response.headers["Content-Type"] == "application/json"
    body = response.get_json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    assert set(body["error"]) == {"type", "message"} and body["error"]["message"]
    return body["error"]


def whole_prompt(usage):
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


# ---------------------------------------------------------------- replies


@pytest.mark.parametrize("path", [MESSAGES, MESSAGES + "?beta=true"])
def test_it_answers(client, path):
    body = client.post(path, json=BODY).get_json()
    assert [block["text"] for block in body["content"]] == ["You said: Hello"]
    assert (body["stop_reason"], body["model"]) == ("end_turn", "fake")


@pytest.mark.parametrize(
    "more",
    [{}, {"max_tokens": 11}, {"max_tokens": 0}, {"stop_sequences": ["wör"]}, {"system": "S"}, {"max_tokens": 1 << 30}],
)
def test_streamed_is_collected(client, more):
    body = {**BODY, "messages": [{"role": "user", "content": "Hellö wörld 🎈"}], **more}
    streamed = add_up(events(client.post(MESSAGES, json={**body, "stream": True})))
    whole = client.post(MESSAGES, json=body).get_json()
    for message in (streamed, whole):
        message.pop("id")
        message["usage"] = whole_prompt(message["usage"]), message["usage"]["output_tokens"]
    assert streamed == whole


def test_a_stop_sequence_is_named(client):
    body = client.post(MESSAGES, json={**BODY, "stop_sequences": ["nothing", "said"]}).get_json()
    assert (body["content"][0]["text"], body["stop_reason"], body["stop_sequence"]) == ("You ", "stop_sequence", "said")


def test_more_tokens_than_there_is_room_for_are_no_error(start):
    running = start(context=64, num_cells=512)
    body = {**BODY, "max_tokens": 32_000, "messages": [{"role": "user", "content": "x" * 40}]}
    reply = running.client.post(MESSAGES, json=body).get_json()
    assert reply["stop_reason"] == "model_context_window_exceeded"


def test_no_tokens_at_all_only_warm_the_cache(client):
    body = {**BODY, "messages": [{"role": "user", "content": "A prompt to be warmed"}], "max_tokens": 0}
    reply = client.post(MESSAGES, json=body).get_json()
    assert (reply["content"], reply["stop_reason"]) == ([], "max_tokens")
    usage = client.post(MESSAGES, json={**body, "max_tokens": 1}).get_json()["usage"]
    assert usage["input_tokens"] == 1 and usage["cache_read_input_tokens"] > 20


def test_an_answer_goes_on_where_the_last_message_ends(client):
    body = {**BODY, "messages": [*HELLO, {"role": "assistant", "content": "You said: H"}]}
    assert client.post(MESSAGES, json=body).get_json()["content"][0]["text"] == "ello"


def test_a_key_may_come_either_way(start):
    client = start(web=WebOptions(keys=(Key.of("ann", "secret"),))).client
    for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
        headers |= {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
        assert client.post(MESSAGES, json=BODY, headers=headers).status_code == 200


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "S"}]},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "none"}},
        {"tools": TOOLS, "tool_choice": {"type": "any"}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"messages": [*HELLO, {"role": "assistant", "content": "You"}]},
        {
            "tools": TOOLS,
            "messages": [
                *HELLO,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": "b"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "c"}]},
            ],
        },
    ],
)
def test_what_is_counted_is_what_is_reported(client, more):
    body = {**BODY, "max_tokens": 3, **more}
    reported = whole_prompt(client.post(MESSAGES, json=body).get_json()["usage"])
    assert client.post(COUNT, json=body).get_json() == {"input_tokens": reported}
    del body["max_tokens"], body["temperature"]
    assert client.post(COUNT + "?beta=true", json=body).get_json() == {"input_tokens": reported}


def test_a_prompt_that_is_too_long_can_be_counted(client):
    body = {"model": "fake", "messages": [{"role": "user", "content": "x" * 2000}]}
    assert client.post(COUNT, json=body).get_json()["input_tokens"] > 2000


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body, status, kind, words",
    [
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 1024}]}, 400, "invalid_request_error", "prompt is too long: "),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]},
            400,
            "invalid_request_error",
            "image",
        ),
    ],
)
def test_what_is_known_before_the_first_token_is_an_error_and_no_stream(client, body, status, kind, words, stream):
    response = client.post(MESSAGES, json={**BODY, "stream": stream, **body})
    assert response.status_code == status
    told = error(response)
    assert told["type"] == kind and words in told["message"]


def test_invalid_json_is_reported_in_anthropics_words(client):
    assert error(client.post(MESSAGES, data=b"{"))["type"] == "invalid_request_error"
    assert error(client.post(MESSAGES, data=b" " * (5 << 20)))["type"] == "request_too_large"


def test_a_route_that_does_not_exist_is_reported_in_anthropics_words(client):
    assert error(client.post("/v1/messages/others", json={}))["type"] == "not_found_error"
    assert error(client.get("/v1/nothing", headers={"anthropic-version": "x"}))["type"] == "not_found_error"
    assert client.get(MESSAGES).status_code == 405 and error(client.get(MESSAGES))
    missing = client.get("/v1/models/other", headers={"anthropic-version": "2023-06-01"})
    assert error(missing)["type"] == "not_found_error"


def test_a_missing_key_is_reported_in_anthropics_words(start):
    client = start(web=WebOptions(keys=(Key.of("ann", "secret"),))).client
    response = client.post(MESSAGES, json=BODY, headers={"x-api-key": "wrong"})
    assert response.status_code == 401 and error(response)["type"] == "authentication_error"


def test_a_full_queue_is_an_overload(start):
    running = start(options=EngineOptions(parallel=1, queue_limit=0))
    body = {"prompt": "x", "ignore_eos": True, "stream": True, "max_tokens": 1000}
    busy = running.client.post("/v1/completions", json=body, buffered=False)
    response = running.client.post(MESSAGES, json=BODY)
    assert response.status_code == 529 and error(response)["type"] == "overloaded_error"
    assert float(response.headers["Retry-After"]) > 0
    busy.close()


def test_a_failure_before_the_first_event_is_a_real_error(start):
    running = start()
    for stream in (False, True):
        running.backend.fail_next = [DecodeFailed("secret reason")]
        response = running.client.post(MESSAGES, json={**BODY, "stream": stream})
        assert response.status_code == 500
        assert error(response)["type"] == "api_error" and b"secret" not in response.data


def test_a_failure_later_is_an_error_event_and_the_last(start):
    running = start()
    *said, last, empty = failing_midway(running, MESSAGES, {**BODY, "stream": True}).decode().split("\n\n")
    assert said[0].startswith("event: message_start")
    name, data = last.split("\n")
    assert (name, empty) == ("event: error", "")
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"


# ---------------------------------------------------------------- models


def test_a_list_of_models_serves_openais_and_anthropics_clients(client):
    page = client.get("/v1/models").get_json()
    assert page["object"] == "list" and page["has_more"] is False
    (model,) = page["data"]
    assert page["first_id"] == page["last_id"] == model["id"] == model["display_name"]
    assert (model["object"], model["type"]) == ("model", "model")


@pytest.mark.parametrize(
    "body, words",
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]},
            "unexpected `tool_use_id` found in `tool_result` blocks. ",
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}]},
            "`tool_use` ids were found without `tool_result` blocks immediately after. ",
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "thinking:?"}]}]},
            "Invalid `signature` in `thinking` block. ",
        ),
        ({"model": "other", "messages": HELLO}, "model: other. Model 'other' not found. Served here: fake"),
    ],
)  # fmt: skip
def test_errors_begin_with_the_words_that_claude_code_looks_for(client, body, words):
    """By them it repairs a conversation, or offers another model."""
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        told = client.post(path, json={"max_tokens": 5, **body}).get_json()["error"]["message"]
        assert told.startswith(words)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_were_left_out_are_reported(client, stream):
    search = {"type": "web_search_20250305", "name": "web_search"}
    with client.post(MESSAGES, json={**BODY, "tools": [search, *TOOLS, search], "stream": stream}) as reply:
        assert reply.status_code == 200 and reply.headers[LEFT_OUT] == "web_search_20250305"
    assert LEFT_OUT not in client.post(MESSAGES, json={**BODY, "tools": TOOLS}).headers
    refused = client.post(MESSAGES, json={**BODY, "tools": [search], "stream": stream})
    assert refused.status_code == 400 and "web_search_20250305" in refused.get_json()["error"]["message"]


# ---------------------------------------------------------------- context edits


def agent(number):
    yield {"role": "user", "content": "Read them"}
    for n in range(number):
        yield {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {"a": "x"}}]}
        yield {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"t{n}", "content": f"line {n} " * 20}],
        }


TRIGGER, KEEP = {"type": "tool_uses", "value": 2}, {"type": "tool_uses", "value": 1}
EDITS = {"edits": [{"type": "clear_tool_uses_20250919", "trigger": TRIGGER, "keep": KEEP}]}


@pytest.mark.parametrize("stream", [False, True])
def test_context_edits_are_done_and_reported(start, stream):
    client = start(context=4096).client
    body = {**BODY, "messages": list(agent(3)), "tools": TOOLS, "context_management": EDITS, "stream": stream}
    response = client.post(MESSAGES, json=body)
    if stream:
        reply = next(e for e in map(json.loads, events(response)) if e["type"] == "message_delta")
    else:
        reply = response.get_json()
    (edit,) = reply["context_management"]["applied_edits"]
    assert (edit["type"], edit["cleared_tool_uses"]) == ("clear_tool_uses_20250919", 2)
    counted = client.post(COUNT, json=body).get_json()
    saved = counted["context_management"]["original_input_tokens"] - counted["input_tokens"]
    assert saved == edit["cleared_input_tokens"] > 0
    if not stream:
        assert whole_prompt(reply["usage"]) == counted["input_tokens"]


def test_where_no_edit_was_needed_the_list_is_empty(start):
    client = start(context=4096).client
    body = {**BODY, "messages": list(agent(2)), "tools": TOOLS, "context_management": EDITS}
    assert client.post(MESSAGES, json=body).get_json()["context_management"] == {"applied_edits": []}
    assert "context_management" not in client.post(MESSAGES, json=BODY).get_json()


# ---------------------------------------------------------------- compaction

TALK = [*HELLO, {"role": "assistant", "content": "Hello"}]
SUMMARY = {**BODY, "messages": TALK, "compaction": {"type": "summarize", "instructions": "Sum up"}}


@pytest.mark.parametrize("stream", [False, True])
def test_the_reply_is_one_block_that_can_be_sent_back(client, stream):
    reply = client.post(MESSAGES, json={**SUMMARY, "stream": stream})
    if stream:
        lines = [line[6:] for line in reply.get_data(as_text=True).split("\n") if line.startswith("data: ")]
        kinds = [json.loads(line)["type"] for line in lines]
        assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
        message = add_up(lines)
    else:
        message = reply.get_json()
    (block,) = message["content"]
    assert block["type"] == "compaction" and block["content"] and block["signature"]
    assert message["stop_reason"] == "compaction"
    usage = message["usage"]
    assert usage["output_tokens"] == usage["input_tokens"] == 0
    (iteration,) = usage["iterations"]
    assert iteration["type"] == "compaction" and iteration["output_tokens"] > 0
    later = [{"role": "assistant", "content": [block]}, {"role": "user", "content": "And now?"}]
    answer = client.post(MESSAGES, json={**BODY, "messages": later}).get_json()
    assert answer["content"][0]["text"] == "You said: And now?"


def test_a_truncated_summary_is_not_used(client):
    message = client.post(MESSAGES, json={**SUMMARY, "max_tokens": 2}).get_json()
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
