"""Responses as they are written: whole, as events, cut anywhere, and once more from what was stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocols.openai.responses_client import add_up
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
    ToolsFound,
    TopLogprob,
    Usage,
)
from llamasrv.errors import EngineFailure, InvalidRequest, QueueFull
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses import Responses
from llamasrv.protocols.openai.responses import reply as reply_module
from llamasrv.protocols.openai.responses.events import error_event, replay
from llamasrv.protocols.openai.responses.ids import unseal
from llamasrv.protocols.openai.responses.stored import Stored, page_body

DATA = Path(__file__).parent / "data"
ID = "resp_" + "0123456789abcdef" * 3
USAGE = Usage(prompt_tokens=20, cached_tokens=8, completion_tokens=7, reasoning_tokens=3)
STOP = Finished(0, FinishReason.STOP)
LENGTH = Finished(0, FinishReason.LENGTH)
endpoint = Responses(Limits())

TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "mcp", "description": "d", "tools": [{"type": "function", "name": "g"}]},
]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(reply_module.time, "time", lambda: 1_700_000_000)
    monkeypatch.setattr("llamasrv.protocols.openai.responses.new_response_id", lambda: ID)


def reply(keep=None, **body):
    _, options = endpoint.parse({"input": "Hi", "tools": TOOLS, **body})
    return started(endpoint.reply(options, keep), model="some-model")


def scored(text):
    return tuple(
        TokenLogprob(ord(c), c.encode(), -0.5, (TopLogprob(ord(c), c.encode(), -0.5), TopLogprob(1, b"?", -1.5)))
        for c in text
    )


def call(number, name, *fragments, id=None):
    start = ToolCallStart(0, number, id or f"call_{number}", name)
    return [start, *(ToolCallArguments(0, number, fragment) for fragment in fragments)]


TRANSCRIPTS = {
    "plain": ({}, [Text(0, "Hel"), Text(0, "lo"), STOP, USAGE]),
    "reasoning": (
        {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
        [Reasoning(0, "Let me"), Reasoning(0, " see."), Text(0, "42"), STOP, USAGE],
    ),
    "calls": (
        {},
        [
            Reasoning(0, "hm"),
            Text(0, "I call."),
            *call(0, "f", '{"x"', ":1}"),
            *call(1, "patch", '{"input":"a', '\\nb"}'),
            *call(2, "mcp__g"),
            Finished(0, FinishReason.TOOL_CALLS),
            USAGE,
        ],
    ),
    "logprobs": (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
        [Text(0, "Hé", scored("Hé")), Text(0, "y", scored("y")), STOP, USAGE],
    ),
    "length": ({}, [Reasoning(0, "a long"), LENGTH, USAGE]),
    "failed": ({}, [Text(0, "Hel"), Failed(0, EngineFailure("The model failed.")), USAGE]),
    "background": ({"background": True}, [Text(0, "Hi"), Finished(0, FinishReason.CANCELLED), USAGE]),
    "compaction": ({"input": [{"type": "compaction_trigger"}]}, [Text(0, "All of it."), STOP, USAGE]),
    "empty": ({}, [STOP, USAGE]),
}


def whole_of(reply, events):
    """What is told without streaming."""
    reply.fold(events)
    return reply.whole()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_it_writes_what_the_transcript_says(name):
    body, events = TRANSCRIPTS[name]
    golden = (DATA / f"responses_{name}.txt").read_text("utf-8")
    assert "".join(f"{chunk.decode()}\n" for chunk in reply(**body).chunks(events)) == golden


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stream_keeps_every_rule_and_ends_in_its_response(name):
    body, events = TRANSCRIPTS[name]
    made = reply(**body)
    final = add_up(made.chunks(events))
    assert final == json.loads(json.dumps(made.response))


@pytest.mark.parametrize("name", sorted(set(TRANSCRIPTS) - {"failed"}))
def test_a_stream_adds_up_to_the_whole(name):
    body, events = TRANSCRIPTS[name]
    assert add_up(reply(**body).chunks(events)) == json.loads(whole_of(reply(**body), events))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_it_does_not_matter_how_events_arrive(name):
    body, events = TRANSCRIPTS[name]
    one_by_one = reply(**body)
    assert [chunk for event in events for chunk in one_by_one.chunks([event])][: len(reply(**body).chunks(events))] == (
        reply(**body).chunks(events)
    )


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_what_was_stored_tells_the_same_events_once_more(name):
    """Byte for byte, so that a client can go on where its connection broke."""
    body, events = TRANSCRIPTS[name]
    kept = []
    made = reply(lambda stored: kept.append(stored.pack()) or True, **body)
    told = made.chunks(events)
    assert replay(Stored.unpack(kept[0])) == told


@pytest.mark.parametrize("background", [False, True])
def test_a_silence_is_an_event(background):
    """Only comments were sent, which Codex does not count: it gave up a prompt of more than five minutes and asked again,
    five times at most."""
    kept = []
    made = reply(lambda stored: kept.append(stored.pack()) or True, background=background)
    silent = [made.chunks([]) for _ in range(3)]
    begun = ["response.created", "response.queued" if background else "response.in_progress"]
    assert [[json.loads(chunk)["type"] for chunk in chunks] for chunks in silent] == [
        begun,
        ["keepalive"],
        ["keepalive"],
    ]
    assert silent[1] == [b'{"type":"keepalive","sequence_number":2}']
    told = [chunk for chunks in silent for chunk in chunks]
    for event in (Text(0, "a"), None, Text(0, "b"), Finished(0, FinishReason.STOP), USAGE, None):
        told += made.chunks([event] if event else [])
    assert add_up(told)["output"][0]["content"][0]["text"] == "ab", "numbers have no gap, nothing follows the end"
    assert sum(b'"keepalive"' in chunk for chunk in told) == 3
    assert replay(Stored.unpack(kept[0])) == told, "a client that goes on from a number finds the same events"


def test_a_break_off_after_a_silence_keeps_the_numbers():
    made = reply()
    told = made.chunks([]) + made.chunks([])
    made._events.keepalive()  # written, never sent
    assert add_up([*told, made.error(EngineFailure("no"))])["status"] == "failed"


PIECES = st.one_of(
    st.text(max_size=5).map(lambda text: Text(0, text)),
    st.text(max_size=5).map(lambda text: Text(0, text, scored(text))),
    st.text(max_size=5).map(lambda text: Reasoning(0, text)),
    st.sampled_from(["f", "patch", "mcp__g", "unknown"]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(PIECES, max_size=8),
    st.sampled_from(list(FinishReason)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_every_order_of_events_keeps_the_rules(pieces, reason, background, summary, same_ids):
    events, number = [], 0
    for piece in pieces:
        if isinstance(piece, str):
            events += call(number, piece, '{"input"', ':"x"}', id="call_same" if number < same_ids else None)
            number += 1
        else:
            events.append(piece)
    events += [Finished(0, reason), USAGE]
    body = {"background": background, "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}
    if summary:
        body["reasoning"] = {"summary": "detailed"}
    kept = []
    made = reply(lambda stored: kept.append(stored.pack()) or True, **body)
    told = made.chunks(events)
    final = add_up(told)
    text = "".join(part["text"] for item in final["output"] if item["type"] == "message" for part in item["content"])
    assert text == "".join(event.text for event in events if isinstance(event, Text))
    assert replay(Stored.unpack(kept[0])) == told
    for cut in range(len(told)):
        add_up(told[:cut], cut=True)


# ---------------------------------------------------------------- how it ends


def final(*events, **body):
    return add_up(reply(**body).chunks([*events, USAGE]))


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTEXT])
def test_cut_off_is_incomplete(reason):
    response = final(Text(0, "Hel"), Finished(0, reason))
    assert response["status"] == "incomplete" and response["completed_at"] is None
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete" and response["usage"]["total_tokens"] == 27


def test_a_call_that_was_cut_off_is_incomplete_and_a_whole_one_is_not():
    cut = final(*call(0, "f", '{"x":'), LENGTH)
    assert cut["output"][0]["status"] == "incomplete" and cut["output"][0]["arguments"] == '{"x":'
    whole = final(*call(0, "f", '{"x":1}'), LENGTH)
    assert whole["output"][0]["status"] == "completed" and whole["status"] == "incomplete"


def test_nothing_at_all_is_an_empty_message_but_not_when_it_was_cut():
    assert final(STOP)["output"][0]["content"][0]["text"] == ""
    assert final(LENGTH)["output"] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineFailure("x"), "server_error"),
        (QueueFull("x"), "rate_limit_exceeded"),
        (InvalidRequest("x"), "invalid_prompt"),
    ],
)
def test_a_failure_is_reported_in_the_response(error, code):
    made = reply()
    response = add_up(made.chunks([Reasoning(0, "hm"), Failed(0, error), USAGE]))
    assert made.failed and response["status"] == "failed" and response["error"] == {"code": code, "message": "x"}
    assert response["output"][0]["status"] == "incomplete"


def test_our_own_mistake_ends_the_stream_with_a_failed_response():
    made = reply()
    told = made.chunks([Text(0, "Hel")])
    with pytest.raises(TypeError):
        made.chunks([Text(0, "lo"), Text(0, 5)])
    last = json.loads(made.error(EngineFailure("ours")))
    assert last["type"] == "response.failed" and last["response"]["error"]["message"] == "ours"
    assert last["sequence_number"] == len(told)
    assert last["response"]["output"][0]["content"][0]["text"] == "Hello"


def test_our_own_mistake_before_anything_was_sent_is_flat():
    assert json.loads(reply().error(EngineFailure("ours")))["type"] == "error"


def test_an_error_without_a_response_is_flat():
    assert json.loads(error_event(EngineFailure("x", param="p"))) == {
        "type": "error",
        "sequence_number": 0,
        "code": "engine_failure",
        "message": "x",
        "param": "p",
    }


def test_it_is_stored_before_the_client_hears_of_the_end():
    """Nor does anybody who looks at it meanwhile."""
    told = []
    made = reply(lambda stored: told.append((stored.response["status"], made.response["status"])) or True)
    made.chunks([Text(0, "Hi"), STOP])
    assert told == []
    made.chunks([USAGE])
    assert told == [("completed", "in_progress")] and made.response["status"] == "completed"


def test_what_could_not_be_stored_says_so():
    assert add_up(reply(lambda stored: False).chunks([Text(0, "Hi"), STOP, USAGE]))["store"] is False


def test_it_stores_nothing_where_that_is_wanted():
    kept = []
    made = started(endpoint.reply(endpoint.parse({"input": "x", "store": False})[1], kept.append))
    add_up(made.chunks([Text(0, "Hi"), STOP, USAGE]))
    assert kept == []


# ---------------------------------------------------------------- items


def test_calls_are_answered_under_their_own_names():
    output = final(*call(0, "mcp__g", "{}"), *call(1, "patch", '{"input":"é"}'), *call(2, "other", "{}"), STOP)[
        "output"
    ]
    assert [(item["type"], item["name"], item.get("namespace")) for item in output] == [
        ("function_call", "g", "mcp"),
        ("custom_tool_call", "patch", None),
        ("function_call", "other", None),
    ]
    assert output[1]["input"] == "é"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input":"a"}', "a"), ('{"patch":"a"}', "a"), ('"a"', "a"), ("a b", "a b"), ('{"a":1}', '{"a":1}'), ("", "")],
)
def test_a_custom_calls_input_is_text(arguments, text):
    assert final(*call(0, "patch", arguments), STOP)["output"][0]["input"] == text


@pytest.mark.parametrize(
    "text", ["", "plain", 'a "b" \\ / \n\t\b\f\r', "é 🎈 \u2028 \0 \ud7ff \ue000", "\\", '"', "\\u12", "🎈" * 3]
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_custom_calls_input_is_reported_while_it_comes_wherever_it_is_cut(text, ascii_only):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    for size in (1, 2, 3, 5, 7, 100):
        fragments = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        told = reply().chunks([*call(0, "patch", *fragments), STOP, USAGE])
        assert add_up(told)["output"][0]["input"] == text
        deltas = [json.loads(chunk)["delta"] for chunk in told if b"input.delta" in chunk]
        assert all(deltas) and len(deltas) >= min(len(text) // (6 * size), 5)


@pytest.mark.parametrize("arguments", ['{"a":"x","b":"y"}', '{"a":"x', '{"a":"x\\q"}', "[1]", '{"a":"\\ud800"}', '{"a'])
def test_text_that_is_not_a_call_loses_nothing(arguments):
    for size in (1, 3, 100):
        fragments = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        for end in (STOP, LENGTH):
            assert add_up(reply().chunks([*call(0, "patch", *fragments), end, USAGE]))["output"][0]["input"]


def test_a_call_without_arguments_has_none_as_json():
    assert final(*call(0, "f"), STOP)["output"][0]["arguments"] == "{}"


def test_sealed_reasoning_is_the_trace():
    output = final(Reasoning(0, "hm"), Text(0, "x"), STOP, include=["reasoning.encrypted_content"])["output"]
    assert unseal(output[0]["encrypted_content"]) == "hm" and output[0]["summary"] == []
    assert "encrypted_content" not in final(Reasoning(0, "hm"), STOP)["output"][0]


def test_a_summary_of_the_conversation_is_one_item_even_when_it_was_cut():
    for end in (STOP, LENGTH):
        (item,) = final(Reasoning(0, "no"), Text(0, " All"), end, input=[{"type": "compaction_trigger"}])["output"]
        assert item["type"] == "compaction" and unseal(item["encrypted_content"]) == "All"


def test_a_compacted_conversation_is_the_users_words_and_the_summary():
    _, options = endpoint.parse_compact(
        {"input": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x"}]}
    )
    body = json.loads(whole_of(started(endpoint.reply(options)), [Text(0, "All."), STOP, USAGE]))
    assert set(body) == {"id", "object", "created_at", "output", "usage"} and body["object"] == "response.compaction"
    assert [item["type"] for item in body["output"]] == ["message", "compaction"]
    assert body["output"][0]["role"] == "user"


# ---------------------------------------------------------------- pages


def ids(n):
    return [{"id": f"i{k}"} for k in range(n)]


def test_pages_go_through_all_items_once():
    for descending in (False, True):
        seen, after = [], None
        while True:
            page = json.loads(page_body(ids(7), after=after, limit=3, descending=descending))
            seen += [item["id"] for item in page["data"]]
            after = page["last_id"]
            assert page["first_id"] == page["data"][0]["id"]
            if not page["has_more"]:
                break
        assert seen == [item["id"] for item in (ids(7)[::-1] if descending else ids(7))]


def test_a_page_of_nothing_has_no_more():
    assert json.loads(page_body([], after=None, limit=3, descending=True)) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_an_unknown_place_to_go_on_from_is_an_error():
    with pytest.raises(InvalidRequest) as caught:
        page_body(ids(3), after="other", limit=3, descending=True)
    assert caught.value.param == "after"


# ---------------------------------------------------------------- tools with items of their own

CLIENT_TOOLS = [
    {"type": "shell"},
    {"type": "local_shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
]


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "key"),
    [
        ("shell", {"commands": ["ls", "pwd"], "timeout_ms": 5}, "shell_call", "action"),
        ("local_shell", {"type": "exec", "command": ["ls"], "env": {}}, "local_shell_call", "action"),
        ("apply_patch", {"type": "delete_file", "path": "x"}, "apply_patch_call", "operation"),
        ("tool_search", {"goal": "crm"}, "tool_search_call", "arguments"),
    ],
)
def test_a_call_of_a_client_tool_is_an_item_of_its_type(name, arguments, kind, key):
    kept = []
    written = reply(lambda stored: not kept.append(stored), tools=CLIENT_TOOLS, stream=True)
    text = json.dumps(arguments)
    called = [ToolCallStart(0, 0, "call_1", name), ToolCallArguments(0, 0, text[:5]), ToolCallArguments(0, 0, text[5:])]
    chunks = written.chunks([*called, Finished(0, FinishReason.TOOL_CALLS), USAGE])
    events = [json.loads(chunk) for chunk in chunks]
    (item,) = events[-1]["response"]["output"]
    assert item["type"] == kind and item[key] == arguments and item["status"] == "completed"
    assert item["call_id"] == "call_1"
    assert [e["type"] for e in events if "output_item" in e["type"]] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    commands = [e["command"] for e in events if e["type"] == "response.shell_call_command.done"]
    assert commands == (arguments["commands"] if kind == "shell_call" else [])
    assert replay(kept[0]) == chunks


def test_a_search_that_the_server_ran_is_two_items():
    later = {"type": "function", "name": "crm_find", "description": "d", "parameters": {}, "defer_loading": True}
    kept = []
    tools = [later, {"type": "tool_search"}]
    request, options = endpoint.parse({"input": "Hi", "tools": tools})
    assert [tool.name for tool in request.prompts[0].tools] == ["tool_search"] and request.searches
    written = reply(lambda stored: not kept.append(stored), tools=tools, stream=True)
    found = ToolsFound(0, "call_1", "tool_search", '{"paths":["crm_find"]}', ("crm_find",))
    chunks = written.chunks([Text(0, "a"), found, Text(0, "b"), STOP, USAGE])
    output = json.loads(chunks[-1])["response"]["output"]
    assert [item["type"] for item in output] == ["message", "tool_search_call", "tool_search_output", "message"]
    assert output[1]["arguments"] == {"paths": ["crm_find"]} and output[1]["execution"] == "server"
    assert [tool["name"] for tool in output[2]["tools"]] == ["crm_find"]
    assert replay(kept[0]) == chunks
    again, _ = endpoint.parse({"input": [*output, {"role": "user", "content": "Go on"}], "tools": tools})
    assert "crm_find" in {tool.name for tool in again.prompts[0].offered}


def test_deferred_tools_are_shown_where_nothing_could_find_them():
    later = {"type": "function", "name": "later", "defer_loading": True}
    request, _ = endpoint.parse({"input": "Hi", "tools": [later]})
    assert [tool.name for tool in request.prompts[0].tools] == ["later"] and not request.searches


def test_a_configuration_update_wins_over_the_request():
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}, "text": {"format": schema}}
    user = {"role": "user", "content": "x"}
    request, _ = endpoint.parse({"input": [user, update, user], "reasoning": {"effort": "low"}})
    assert request.prompts[0].template_kwargs["reasoning_effort"] == "high" and request.content.kind == "json"
    plain = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    request, _ = endpoint.parse({"input": [user, update, user, plain]})
    assert request.content is None
