"""Conversations beyond their threshold, in three dialects: a summary, then the answer, and later requests from there."""

from __future__ import annotations

import json

import pytest
from protocols.anthropic.wire_client import add_up
from serving import wait_until

MESSAGES, RESPONSES, CHAT = "/v1/messages", "/v1/responses", "/v1/chat/completions"
EDITS = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 700}}]}
THRESHOLD = [{"type": "compaction", "compact_threshold": 700}]
WORDS = "Please keep this very sentence."


@pytest.fixture
def running(start):
    running = start(context=4096)
    yield running
    wait_until(lambda: not running.engine.num_open, what="the end of what was computed ahead")


def talk(number):
    for n in range(number):
        yield {"role": "user", "content": f"Question {n}: {WORDS}"}
        yield {"role": "assistant", "content": f"Answer {n} " * 20}
    yield {"role": "user", "content": "The last one"}


def ask(running, messages, *, edits=EDITS, stream=False, **more):
    body = {"model": "fake", "max_tokens": 60, "messages": messages, "temperature": 0, "stream": stream, **more}
    if edits is not None:
        body["context_management"] = edits
    reply = running.client.post(MESSAGES, json=body)
    assert reply.status_code == 200, reply.get_data(as_text=True)
    if not stream:
        return reply.get_json()
    return add_up([line[6:] for line in reply.get_data(as_text=True).split("\n") if line.startswith("data: ")])


def whole_prompt(usage):
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_reply_begins_with_a_block_that_stands_for_what_was_before(running, stream):
    messages = list(talk(4))
    first = ask(running, messages, stream=stream)
    block, answer = first["content"]
    assert block["type"] == "compaction" and answer["text"] == "You said: The last one"
    assert block["content"].count(WORDS) == 4  # the user's own words
    kinds = [iteration["type"] for iteration in first["usage"]["iterations"]]
    assert kinds == ["compaction", "message"] and first["usage"]["iterations"][0]["output_tokens"] > 0
    assert first["stop_reason"] == "end_turn" and (stream or first["context_management"] == {"applied_edits": []})
    later = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": "And now?"}]
    short, whole = (ask(running, [*old, *later], edits=None)["usage"] for old in ([], messages))
    assert whole_prompt(short) == whole_prompt(whole)
    assert short["cache_read_input_tokens"] > 0.9 * whole_prompt(first["usage"])


def test_below_the_threshold_nothing_is_reported(running):
    message = ask(running, list(talk(0)))
    assert [block["type"] for block in message["content"]] == ["text"] and "iterations" not in message["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_it_can_pause_behind_the_summary(running, stream):
    edit = {**EDITS["edits"][0], "pause_after_compaction": True, "instructions": "Only the names"}
    message = ask(running, list(talk(4)), edits={"edits": [edit]}, stream=stream)
    (block,) = message["content"]
    assert block["content"].startswith("You said: Only the names") and message["stop_reason"] == "compaction"
    assert [iteration["type"] for iteration in message["usage"]["iterations"]] == ["compaction"]


def test_calls_and_results_behind_the_block_are_found_again(running):
    tools = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}]}
    first = ask(running, [*talk(4), call, result], tools=tools)
    block = first["content"][0]
    assert block["type"] == "compaction"
    reply = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": "Go on"}]
    second = ask(running, reply, tools=tools, edits=None)
    assert second["usage"]["cache_read_input_tokens"] > 0.9 * whole_prompt(first["usage"])


def test_a_block_that_was_changed_is_read_as_its_text(running):
    block = {"type": "compaction", "content": "All is well", "encrypted_content": "llamasrv-turns1.AAAA"}
    message = ask(running, [{"role": "assistant", "content": [block]}, {"role": "user", "content": "So?"}], edits=None)
    assert message["content"][0]["text"] == "You said: So?"


def test_a_response_begins_with_an_item_that_stands_for_what_was_before(running):
    body = {"model": "fake", "input": list(talk(4)), "context_management": THRESHOLD, "temperature": 0}
    reply = running.client.post(RESPONSES, json={**body, "stream": True})
    lines = [line[6:] for line in reply.get_data(as_text=True).split("\n") if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    kinds = [event["type"] for event in events]
    at = kinds.index("response.compaction.compacting")
    assert kinds[at - 1] == "response.output_item.added" and kinds[at + 1] == "response.output_item.done"
    first = events[-1]["response"]
    item, message = first["output"]
    assert item["type"] == "compaction" and message["content"][0]["text"] == "You said: The last one"
    replayed = running.client.get(f"{RESPONSES}/{first['id']}?stream=true").get_data(as_text=True)
    assert [line[6:] for line in replayed.split("\n") if line.startswith("data: ")] == lines
    more = [{"role": "user", "content": "And now?"}]
    chained = running.client.post(RESPONSES, json={**body, "input": more, "previous_response_id": first["id"]})
    short = running.client.post(RESPONSES, json={**body, "input": [item, message, *more]})
    counts = [reply.get_json()["usage"]["input_tokens"] for reply in (chained, short)]
    assert counts[0] == counts[1] and chained.get_json()["output"][0]["type"] == "message"
    cached = short.get_json()["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached > 0.9 * first["usage"]["input_tokens"]


def test_a_chat_goes_on_from_the_same_summary_although_it_sends_everything(running):
    messages = list(talk(4))
    sizes = []
    for _ in range(3):
        body = {"model": "fake", "messages": messages, "context_management": THRESHOLD, "max_tokens": 20}
        reply = running.client.post(CHAT, json=body)
        usage = reply.get_json()["usage"]
        assert reply.headers["x-llamasrv-edits"] == "summary=8"
        sizes.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
        answer = reply.get_json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on"}]
    assert all(later[1] > 0.9 * earlier[0] for earlier, later in zip(sizes, sizes[1:]))


def test_what_is_not_a_threshold_is_refused(running):
    for wrong, param in (
        ([{"type": "other"}], "context_management[0].type"),
        ([{"type": "compaction", "compact_threshold": 0}], "context_management[0].compact_threshold"),
    ):
        reply = running.client.post(CHAT, json={"messages": list(talk(0)), "context_management": wrong})
        assert reply.status_code == 400 and reply.get_json()["error"]["param"] == param


def test_near_the_threshold_the_summary_is_written_before_it_is_needed(running):
    """The turn that crosses it then only reads what is new."""
    messages = list(talk(1))
    body = {"model": "fake", "messages": messages, "max_tokens": 20}
    size = running.client.post(CHAT, json=body).get_json()["usage"]["prompt_tokens"]
    threshold = [{"type": "compaction", "compact_threshold": size + 40}]
    running.client.post(CHAT, json={**body, "context_management": threshold})
    summaries = running.service.pipeline.summaries
    wait_until(lambda: len(summaries) == 1 and not summaries.num_jobs, what="the summary")
    answer = {"role": "assistant", "content": "You said: The last one"}
    messages = [*messages, answer, {"role": "user", "content": "Next " * 20}]
    reply = running.client.post(CHAT, json={**body, "messages": messages, "context_management": threshold})
    usage = reply.get_json()["usage"]
    assert reply.headers["x-llamasrv-edits"] == "summary=3"
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.5 * usage["prompt_tokens"]
