"""Responses in the words of Google's Interactions: states, thoughts, searches, media, and events one by one."""

from __future__ import annotations

import json

import pytest

from llamasrv.protocols.gemini.interaction_reply import frame, interaction
from llamasrv.protocols.openai.responses.ids import seal

CALL = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
SEARCH = {
    "id": "ts_1",
    "type": "tool_search_call",
    "call_id": None,
    "execution": "server",
    "arguments": {"paths": ["a"]},
}
THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": seal("Hm."),
}


def response(*output, **others):
    return {
        "id": "resp_1",
        "status": "completed",
        "model": "m",
        "created_at": 0,
        "completed_at": 1,
        "error": None,
        "previous_response_id": None,
        "usage": None,
        "output": list(output),
        **others,
    }


def framed(**event):
    lines = frame(json.dumps(event).encode()).decode().split("\n\n")[:-1]
    return [json.loads(line.partition("data: ")[2]) for line in lines]


@pytest.mark.parametrize(
    ("output", "status", "shown"),
    [
        ([], "completed", "completed"),
        ([CALL], "completed", "requires_action"),
        ([{**SEARCH, "execution": "client", "call_id": "c"}], "completed", "requires_action"),
        ([SEARCH], "completed", "completed"),
        ([CALL], "incomplete", "incomplete"),
        ([], "cancelled", "cancelled"),
    ],
)
def test_a_client_that_owes_a_result_is_asked_for_it(output, status, shown):
    assert interaction(response(*output, status=status))["status"] == shown


def test_items_are_steps():
    steps = interaction(response(THOUGHT, CALL, {"type": "compaction", "encrypted_content": "x"}))["steps"]
    assert steps == [
        {"type": "thought", "signature": seal("Hm.").rpartition(".")[2], "summary": [{"type": "text", "text": "Hm."}]},
        {"type": "function_call", "id": "c1", "name": "f", "arguments": {"a": 1}},
    ]
    cut = interaction(response({**CALL, "arguments": '{"a'}))["steps"]
    assert cut[0]["arguments"] == {}
    image = {"type": "input_image", "image_url": "data:image/png;base64,aa"}
    shown = interaction(response(), [{"type": "message", "role": "user", "content": [image]}])["steps"]
    assert shown == [{"type": "user_input", "content": [{"type": "image", "mime_type": "image/png", "data": "aa"}]}]


def test_a_failure_has_its_reason():
    error = {"code": "server_error", "message": "No."}
    failed = response(status="failed", error=error)
    assert interaction(failed)["errors"] == [error]
    first, last = framed(type="response.failed", sequence_number=4, response=failed)
    assert first == {"event_type": "error", "error": error}
    assert last["interaction"]["status"] == "failed" and last["event_id"] == "4"


def test_a_signature_comes_before_its_step_ends():
    delta, stop = framed(type="response.output_item.done", sequence_number=7, output_index=0, item=THOUGHT)
    assert delta["delta"]["type"] == "thought_signature" and "event_id" not in delta
    assert stop == {"event_type": "step.stop", "index": 0, "event_id": "7"}


def test_a_search_is_sent_whole():
    (start,) = framed(type="response.output_item.added", sequence_number=1, output_index=2, item=SEARCH)
    delta, _ = framed(type="response.output_item.done", sequence_number=2, output_index=2, item=SEARCH)
    assert start["step"] == {"type": "tool_search_call", "id": "ts_1", "arguments": {}}
    assert delta["delta"] == {"type": "tool_search_call", "arguments": {"paths": ["a"]}}


def test_events_without_a_counterpart_are_left_out():
    assert frame(b'{"type":"response.output_text.done","sequence_number":1}') == b""
    assert frame(b'{"type":"keepalive","sequence_number":1}') == b""
    (error,) = framed(type="error", code="x", message="No.")
    assert error == {"event_type": "error", "error": {"code": "x", "message": "No."}}
