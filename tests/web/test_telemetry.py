"""llama.cpp's figures in chat and completions: timings, progress of the prompt, the prompt itself."""

from __future__ import annotations

import json
import threading

import pytest

from llamasrv.domain.defaults import ChatDefaults
from llamasrv.engine.base.options import EngineOptions
from llamasrv.web.service import WebOptions

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
NATIVE_CHAT = ("/chat/completions", CHAT[1])
TEXT = ("/v1/completions", {"prompt": "Hello"})
OPENAI = pytest.mark.parametrize("path, body", [CHAT, NATIVE_CHAT, TEXT])
ALL = pytest.mark.parametrize("path, body", [CHAT, NATIVE_CHAT, TEXT, ("/completion", {"prompt": "Hello"})])


def stream(client, path, body):
    text = client.post(path, json={**body, "max_tokens": 3, "stream": True}).get_data(as_text=True)
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: ")]  # no pings
    return [json.loads(event) for event in events if event != "[DONE]"]


@ALL
def test_a_whole_reply_has_its_timings(client, path, body):
    timings = client.post(path, json={**body, "max_tokens": 3}).get_json()["timings"]
    assert timings["predicted_n"] == 3 and timings["prompt_n"] + timings["cache_n"] > 0


@OPENAI
@pytest.mark.parametrize("usage", [False, True])
def test_the_last_chunk_has_the_timings(client, path, body, usage):
    more = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = stream(client, path, {**body, **more})
    assert ["timings" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["timings"]["predicted_n"] == 3


@ALL
def test_every_chunk_of_text_has_its_timings_on_request(client, path, body):
    chunks = stream(client, path, {**body, "timings_per_token": True})
    assert all("timings" in chunk for chunk in chunks[1:])
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks[1:]]
    assert counts == sorted(counts) and counts[-1] == 3


@ALL
def test_a_stream_reports_how_much_of_the_prompt_is_computed(client, path, body):
    body = {**body, "return_progress": True, "cache_prompt": False}
    told = [chunk["prompt_progress"] for chunk in stream(client, path, body) if "prompt_progress" in chunk]
    assert (told[0]["cache"], told[0]["processed"]) == (0, 0)
    assert told[-1]["processed"] == told[-1]["total"] > 0
    assert not any("prompt_progress" in chunk for chunk in stream(client, path, {**body, "return_progress": False}))


@OPENAI
def test_the_prompt_is_shown_where_that_is_asked_for(client, path, body):
    shown = client.post(path, json={**body, "max_tokens": 3, "verbose": True}).get_json()["__verbose"]
    assert "Hello" in shown["prompt"] and shown["generation_settings"]["n_predict"] == 3
    assert "Hello" in stream(client, path, {**body, "verbose": True})[-1]["__verbose"]["prompt"]
    assert "__verbose" not in client.post(path, json={**body, "max_tokens": 3}).get_json()


def test_llama_servers_own_path_begins_with_null_where_openais_begins_with_a_text(client):
    """Clients of llama-server take an empty text in a delta for an error."""
    begin = [stream(client, *chat)[0]["choices"][0]["delta"] for chat in (NATIVE_CHAT, CHAT)]
    assert begin == [{"role": "assistant", "content": None}, {"role": "assistant", "content": ""}]


def test_llama_servers_own_path_says_in_its_words_that_a_prompt_is_too_long(client):
    body = {"messages": [{"role": "user", "content": "x" * 2000}]}
    own, openai = (client.post(path, json=body).get_json()["error"] for path in (NATIVE_CHAT[0], CHAT[0]))
    assert own["type"] == "exceed_context_size_error" and openai["code"] == "context_length_exceeded"
    assert (own["n_prompt_tokens"], own["n_ctx"]) == (openai["n_prompt_tokens"], openai["n_ctx"])


@pytest.mark.parametrize("temperature, most", [(0.0, 1), (1.0, 4)])
def test_probabilities_after_sampling_add_up_to_one(client, temperature, most):
    body = {
        "prompt": "Hello",
        "n_predict": 2,
        "n_probs": 4,
        "post_sampling_probs": True,
        "temperature": temperature,
        "top_k": 4,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 1,
    }
    told = client.post("/completion", json=body).get_json()["completion_probabilities"]
    assert len(told) == 2
    for token in told:
        assert len(token["top_probs"]) <= most
        assert sum(other["prob"] for other in token["top_probs"]) == pytest.approx(1.0)
        assert token["prob"] in [other["prob"] for other in token["top_probs"]]


@OPENAI
def test_a_verbose_server_shows_the_prompt_unless_a_client_says_no(start, path, body):
    client = start(web=WebOptions(verbose=True)).client
    assert "Hello" in client.post(path, json={**body, "max_tokens": 3}).get_json()["__verbose"]["prompt"]
    assert "__verbose" not in client.post(path, json={**body, "max_tokens": 3, "verbose": False}).get_json()


def test_on_llama_servers_own_path_the_assistants_last_message_is_gone_on_with(client):
    """What it calls prefill; in OpenAI's protocol a turn of the assistant's is over."""
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "You said"}]
    asked = {"messages": messages, "max_tokens": 3, "verbose": True}
    ends = [client.post(path, json=asked).get_json()["__verbose"]["prompt"][-8:] for path in (NATIVE_CHAT[0], CHAT[0])]
    assert ends[0] == "You said" and ends[1] != "You said"
    shown = client.post("/apply-template", json={"messages": messages}).get_json()["prompt"]
    assert shown[-8:] == ends[1]  # it shows what OpenAI's route computes


CLOSES_UNLESS_TOLD = "{{ messages[-1].content }}<think>\n{% if not enable_thinking %}</think>\n{% endif %}"


@pytest.mark.parametrize(
    "defaults, native, openai",
    [
        ({}, "<think>\n", "</think>\n"),
        ({"enable_thinking": False, "thinking": False}, "</think>\n", "</think>\n"),
        ({"enable_thinking": True, "thinking": True}, "<think>\n", "<think>\n"),
    ],
    ids=["auto", "off", "on"],
)
def test_on_llama_servers_own_path_a_model_thinks_unless_switched_off(start, defaults, native, openai):
    """Templates that close the thought unless they are told otherwise never let the model think there. The prompt that
    is shown is the other path's."""
    model = {"chat_template": CLOSES_UNLESS_TOLD, "chat_defaults": ChatDefaults(defaults)}
    client = start(model=model).client
    asked = {**CHAT[1], "max_tokens": 3, "verbose": True}

    def prompts(body):
        chats = [client.post(path, json=body).get_json()["__verbose"]["prompt"] for path in (NATIVE_CHAT[0], CHAT[0])]
        return [client.post("/apply-template", json=body).get_json()["prompt"], *chats]

    ends = [prompt.endswith(end) for prompt, end in zip(prompts(asked), (openai, native, openai), strict=True)]
    assert ends == [True, True, True]
    told = prompts({**asked, "enable_thinking": False})
    assert all(prompt.endswith("</think>\n") for prompt in told)
    paths = [f"{path}/input_tokens" for path in (NATIVE_CHAT[0], CHAT[0])]
    counts = [client.post(path, json=CHAT[1]).get_json()["input_tokens"] for path in paths]
    assert (counts[0] == counts[1]) is (native == openai)


def test_a_response_has_them_in_its_events_and_a_replay_has_the_same_numbers(client):
    asked = {"input": "Hello", "stream": True, "timings_per_token": True, "return_progress": True, "store": True}
    text = client.post("/v1/responses", json=asked).get_data(as_text=True)
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    told = [event for event in events if "prompt_progress" in event]
    assert {event["type"] for event in told} == {"response.in_progress"}
    assert told[-1]["prompt_progress"]["processed"] == told[-1]["prompt_progress"]["total"]
    assert all("timings" in event for event in events if event["type"] == "response.output_text.delta")
    assert events[-1]["type"] == "response.completed" and events[-1]["timings"]["predicted_n"] > 0
    id = events[-1]["response"]["id"]
    again = client.get(f"/v1/responses/{id}?stream=true").get_data(as_text=True)
    last = [json.loads(line.removeprefix("data: ")) for line in again.splitlines() if line.startswith("data: ")][-1]
    assert last["sequence_number"] == events[-1]["sequence_number"]


OTHERS = [
    ("/v1/chat/completions", CHAT[1]),
    ("/v1/completions", TEXT[1]),
    ("/completion", TEXT[1]),
    ("/v1/responses", {"input": "Hello"}),
    ("/v1/messages", CHAT[1]),
    ("/api/chat", {**CHAT[1], "model": "fake"}),
    ("/api/generate", {"prompt": "Hello", "model": "fake"}),
]


@pytest.mark.parametrize("path, body", OTHERS, ids=[path for path, _ in OTHERS])
def test_a_stream_that_waits_says_why_and_then_how_far_its_prompt_is(start, path, body):
    """In every protocol that has a place for it, and in none of them unless it is asked for."""
    running = start(options=EngineOptions(parallel=1))
    decode, over = running.backend.decode, threading.Event()
    running.backend.decode = lambda: (over.wait(0.02), decode())  # slow while the first request is there
    first = running.client.post("/completion", json={"prompt": "x " * 50, "n_predict": 400, "stream": True})
    next(first.iter_encoded())
    asked = {**body, "max_tokens": 3, "stream": True, "return_progress": True, "cache_prompt": False}
    waits = running.client.post(path, json=asked)
    first.close()
    over.set()
    lines = waits.get_data(as_text=True).splitlines()
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("data: {", "{"))]
    queue = [chunk["prompt_queue"] for chunk in told if "prompt_queue" in chunk]
    assert queue[0] == {"reason": "place", "place": 1, "waiting": 1}
    progress = [chunk["prompt_progress"] for chunk in told if "prompt_progress" in chunk]
    assert set(progress[0]) == {"total", "cache", "processed", "time_ms"}
    assert progress[-1]["processed"] == progress[-1]["total"] > 0
    silent = running.client.post(path, json={**asked, "return_progress": False}).get_data(as_text=True)
    assert "prompt_queue" not in silent and "prompt_progress" not in silent
