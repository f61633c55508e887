"""The header `x-llamasrv-cache`, the same in the log and in the figures, whatever protocol a request came by."""

from __future__ import annotations

import json
import logging

import pytest

from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.web.service import WebOptions

SYSTEM = "Be brief, and never say what is not so. " * 8


def openai(text, **options):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 4, **options}


def anthropic(text, **options):
    return "/v1/messages", {
        "system": SYSTEM,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        **options,
    }


def responses(text, **options):
    return "/v1/responses", {"instructions": SYSTEM, "input": text, "max_output_tokens": 16, **options}


def ollama(text, **options):
    return "/api/chat", {**openai(text)[1], "model": "fake", "stream": False, **options}


def gemini(text, **options):
    path = "/v1beta/models/fake:" + ("streamGenerateContent?alt=sse" if options.get("stream") else "generateContent")
    return path, {
        "systemInstruction": {"parts": [{"text": SYSTEM}]},
        "contents": [{"role": "user", "parts": [{"text": text}]}],
        "generationConfig": {"maxOutputTokens": 4},
    }


PROTOCOLS = (openai, anthropic, responses, ollama, gemini)


@pytest.fixture
def ask(start):
    running = start()

    def ask(path, body, **options):
        with running.client.post(path, json=body, **options) as response:
            assert response.status_code == 200, response.get_data()
            text = response.get_data(as_text=True)
        return response, text

    ask.running = running
    return ask


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_tells_what_was_found_and_what_changed(ask, protocol, stream):
    first, _ = ask(*protocol("Hello there", stream=stream))
    assert first.headers["x-llamasrv-cache"].startswith("hit=0, prompt=")
    again, _ = ask(*protocol("Hello there", stream=stream))
    hit, prompt = again.headers["x-llamasrv-cache"].split(", ")
    assert int(hit[4:]) == int(prompt[7:]) - 1
    other, _ = ask(*protocol("Something else", stream=stream))
    hit, prompt, changed = other.headers["x-llamasrv-cache"].split(", ")
    assert changed == 'changed="messages[0]"' and len(SYSTEM) < int(hit[4:]) < int(prompt[7:])


def test_a_text_s_header_tells_its_tokens(ask):
    response, _ = ask("/v1/completions", {"prompt": "Once upon", "max_tokens": 4})
    assert response.headers["x-llamasrv-cache"].startswith("hit=0, prompt=")


def test_an_error_has_none(ask):
    with ask.running.client.post("/v1/chat/completions", json={"messages": "x"}) as response:
        assert response.status_code == 400 and "x-llamasrv-cache" not in response.headers


def test_the_line_in_the_log_tells_what_changed(ask, caplog):
    caplog.set_level(logging.INFO, logger="llamasrv.request")
    logging.getLogger("llamasrv").propagate = True
    for text in ("Hello there", "Hello there", "Something else"):
        ask(*openai(text))
    lines = [record.fields for record in caplog.records if record.name == "llamasrv.request"]
    assert [line.get("changed") for line in lines] == [None, None, "messages[0]"]


def test_changes_are_counted_by_reason(ask):
    for text in ("Hello there", "Something else"):
        ask(*openai(text))
    figures = ask.running.client.get("/metrics").get_data(as_text=True)
    assert 'llamasrv_cache_changes_total{model="fake",reason="messages"} 1.0' in figures


def test_pages_of_other_origins_may_read_it(start):
    running = start(web=WebOptions(origins=("https://chat.example",)))
    path, body = openai("Hello")
    with running.client.post(path, json=body, headers={"Origin": "https://chat.example"}) as response:
        assert "x-llamasrv-cache" in response.headers["Access-Control-Expose-Headers"]
        assert "x-llamasrv-cache" in response.headers


# ---------------------------------------------------------------- Anthropic's words


def reason_of(reply):
    diagnostics = reply.get("diagnostics", "absent")
    return diagnostics["cache_miss_reason"] if isinstance(diagnostics, dict) else diagnostics


def tell(ask, text, previous, **options):
    body = anthropic(text, diagnostics={"previous_message_id": previous}, **options)[1]
    return ask("/v1/messages", body)[0].get_json()


TOOLS = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]


def test_a_reply_has_no_diagnostics_unless_asked(ask):
    assert reason_of(ask(*anthropic("Hello"))[0].get_json()) == "absent"


def test_the_first_turn_opts_in_with_null(ask):
    assert reason_of(tell(ask, "Hello", None)) is None


@pytest.mark.parametrize(
    "options, reason",
    [
        ({}, None),
        ({"system": SYSTEM + "!"}, "system_changed"),
        ({"tools": TOOLS}, "tools_changed"),
        ({"messages": [{"role": "user", "content": "Other"}]}, "messages_changed"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, None),  # the same tokens with this template
        ({"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=2;"},
                     {"type": "text", "text": SYSTEM}]}, None),
    ],
)  # fmt: skip
def test_each_reason_for_a_miss_is_named(ask, options, reason):
    billed = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": SYSTEM}]
    first = tell(ask, "Hello", None, system=billed)
    told = reason_of(tell(ask, "Hello", first["id"], **options))
    assert (told and told["type"]) == reason
    if reason is not None:
        assert 0 < told["cache_missed_input_tokens"] <= 2 * len(SYSTEM)


def test_an_unknown_message_is_not_found(ask):
    for id in ("msg_nobody", "x" * 100_000):
        assert reason_of(tell(ask, "Hello", id)) == {"type": "previous_message_not_found"}


def test_what_was_evicted_is_unavailable(ask):
    first = tell(ask, "Hello", None)
    engine = ask.running.engine
    engine.ask(lambda core: [core.memory.drop(lane) for lane in list(core.memory.lanes.resident)])
    assert reason_of(tell(ask, "Hello", first["id"])) == {"type": "unavailable"}


def test_a_stream_s_first_event_tells_what_was_found(ask):
    """It said that nothing was, since the first token was sent before anybody asked the engine."""
    ask(*anthropic("Hello"))
    _, text = ask(*anthropic("Hello", stream=True))
    start = text.split("\n\n")[0]
    assert '"cache_read_input_tokens":0' not in start and '"input_tokens":1,' in start


@pytest.mark.parametrize("diagnostics", [[], "x", {"previous_message_id": 1}])
def test_diagnostics_of_another_type_are_refused(ask, diagnostics):
    body = anthropic("Hello", diagnostics=diagnostics)[1]
    with ask.running.client.post("/v1/messages", json=body) as response:
        assert response.status_code == 400 and "diagnostics" in response.get_json()["error"]["message"]


TOOL = {"name": "look", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}


@pytest.mark.parametrize(
    "headers, more",
    [
        ({}, {"prompt_cache_key": "k" * 300}),
        ({}, {"session_id": "s"}),
        ({}, {"session_params": {"id": "s", "replace": True}}),
        ({}, {"cache_salt": "s"}),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, {}),
        ({"session-id": "s", "thread-id": "t"}, {}),
        ({"x-session-affinity": "s"}, {}),
        ({"x-session-id": "s"}, {}),
    ],
)
def test_a_session_that_called_a_tool_finds_what_was_held_for_it(ask, headers, more):
    path, body = openai("Look", tools=[{"type": "function", "function": TOOL}], tool_choice="required", **more)
    body["max_tokens"] = 60
    first, text = ask(path, body, headers=headers)
    assert "held=" not in first.headers["x-llamasrv-cache"] and '"finish_reason":"tool_calls"' in text
    again, _ = ask(path, body, headers=headers)
    prompt = first.headers["x-llamasrv-cache"].split(", ")[1]
    assert again.headers["x-llamasrv-cache"].split(", ")[1:3] == [prompt, prompt.replace("prompt", "held")]
    other, _ = ask(path, body, headers={"x-session-id": "other"})
    assert "held=" not in other.headers["x-llamasrv-cache"]


@pytest.mark.parametrize(
    ("more", "is_held"),
    [
        ({"metadata": {"user_id": '{"device_id": "d", "session_id": "s1"}'}}, True),
        ({"metadata": {"user_id": "user_ab12_account__session_0123abcd-0123"}}, True),
        ({"metadata": {"user_id": "ann"}}, False),
        ({"metadata": {"user_id": '{"session_id": 5}'}}, False),
    ],
)
def test_a_session_is_named_in_anthropics_metadata(ask, more, is_held):
    tool = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
    path, body = anthropic("Look", tools=[tool], tool_choice={"type": "any"}, max_tokens=60, **more)
    first, text = ask(path, body)
    assert '"stop_reason":"tool_use"' in text.replace(": ", ":")
    assert ("user_id" in first.headers.get("x-llamasrv-ignored", "")) is not is_held
    again, _ = ask(path, body)
    assert ("held=" in again.headers["x-llamasrv-cache"]) is is_held


def test_a_conversation_and_a_thread_are_sessions(ask):
    client = ask.running.client
    tool = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
    path, body = anthropic("Look", tools=[tool], tool_choice={"type": "any"}, max_tokens=60, thread={"type": "create"})
    _, text = ask(path, body)
    message = json.loads(text)
    call = next(block["id"] for block in message["content"] if block["type"] == "tool_use")
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "7"}]}
    going_on = {"type": "continue", "previous_message_id": message["id"]}
    again, _ = ask(path, {"messages": [result], "max_tokens": 4, "thread": going_on})
    assert "held=" in again.headers["x-llamasrv-cache"]

    conversation = client.post("/v1/conversations", json={}).get_json()["id"]
    tools = [{"type": "function", **TOOL}]
    path, body = responses("Look", tools=tools, tool_choice="required", conversation=conversation)
    _, text = ask(path, body | {"max_output_tokens": 60})
    call = next(item["call_id"] for item in json.loads(text)["output"] if item["type"] == "function_call")
    result = [{"type": "function_call_output", "call_id": call, "output": "7"}]
    again, _ = ask(path, {**responses("")[1], "input": result, "tools": tools, "conversation": conversation})
    assert "held=" in again.headers["x-llamasrv-cache"]


def test_the_engine_hears_of_a_session_before_its_prompt_is_tokenised(ask, monkeypatch):
    heard, prepare_all = [], LoadedModel.prepare_all
    monkeypatch.setattr(ask.running.engine, "prefetch", lambda session, owner: heard.append(session))
    monkeypatch.setattr(LoadedModel, "prepare_all", lambda *args: (heard.append("tokens"), prepare_all(*args))[1])
    for headers in ({"x-session-id": "s"}, {}):
        ask(*openai("Look"), headers=headers)
    assert heard == ["s", "tokens", "tokens"]


@pytest.mark.parametrize(
    ("params", "field"), [({"id": "s", "rid": "r"}, "rid"), ({"id": "s", "offset": 3}, "offset"), ({}, "id")]
)
def test_what_sglang_would_continue_by_itself_is_refused(ask, params, field):
    path, body = openai("Look", session_params=params)
    reply = ask.running.client.post(path, json=body)
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == f"session_params.{field}"
