"""OpenAI's routes over Flask's test client: replies, streams, errors before and after the first event."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from protocols.openai.wire_client import add_up_chat, add_up_completions, whole_chat, whole_completions
from serving import openai_error_keys

from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.engine import EngineOptions
from llamasrv.engine.sampling.grammar_compiler import GrammarCompiler

HELLO = [{"role": "user", "content": "Hello"}]


def events(response):
    """The data of each event of a stream; comments and [DONE] checked and left out."""
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    blocks = response.get_data(as_text=True).split("\n\n")
    assert blocks.pop() == ""
    assert all(block == ": ping" or block.startswith("data: ") for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks if block != ": ping"]
    assert data.pop() == "[DONE]"
    return data


def error(response):
    assert response.headers["Content-Type"] == "application/json"
    body = response.get_json()
    assert set(body) == {"error"} and set(body["error"]) == openai_error_keys(body["error"])
    return body["error"]


# ---------------------------------------------------------------- replies


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_it_answers_a_chat(client, path):
    response = client.post(path, json={"messages": HELLO})
    choices, usage = whole_chat(response.data)
    assert choices == [{"content": "You said: Hello", "logprobs": [], "finish_reason": "stop"}]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_it_completes_a_text(client):
    choices, _ = whole_completions(client.post("/v1/completions", json={"prompt": "x", "max_tokens": 4}).data)
    assert choices == [{"text": " and", "logprobs": None, "finish_reason": "length"}]


def test_a_bare_completions_route_is_not_openais(client):
    assert "choices" not in client.post("/completions", json={"prompt": "x", "n_predict": 1}).get_json()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 3},
        {"logprobs": True, "top_logprobs": 2},
        {"max_tokens": 11},
        {"stop": ["wör"]},
        {"stream_options": {"include_usage": True}},
        {"n": 2, "logprobs": True, "stream_options": {"include_usage": True}},
    ],
)
def test_streamed_is_collected_for_chats(client, more):
    body = {"messages": [{"role": "user", "content": "Hellö wörld 🎈"}], "temperature": 0, **more}
    response = client.post("/v1/chat/completions", json={**body, "stream": True})
    streamed, usage = add_up_chat(events(response), include_usage="stream_options" in more)
    body.pop("stream_options", None)
    whole, whole_usage = whole_chat(client.post("/v1/chat/completions", json=body).data)
    assert streamed == whole
    if usage:
        assert usage["completion_tokens"] == whole_usage["completion_tokens"]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Once"},
        {"prompt": ["Once", "Twice"], "n": 2},
        {"prompt": [72, 195, 169], "echo": True},
        {"prompt": [[72], [73, 74]], "logprobs": 1, "echo": True, "max_tokens": 0},
        {"prompt": "Oncé", "logprobs": 2, "echo": True, "max_tokens": 5},
        {"prompt": "a", "suffix": "b", "max_tokens": 5},
        {"prompt": ""},
        {},
    ],
)
def test_streamed_is_collected_for_completions(client, body):
    body = {"temperature": 0, "max_tokens": 9, **body}
    streamed, _ = add_up_completions(events(client.post("/v1/completions", json={**body, "stream": True})))
    whole, _ = whole_completions(client.post("/v1/completions", json=body).data)
    assert streamed == whole


def test_the_best_of_several_is_reported(client):
    response = client.post("/v1/completions", json={"prompt": "x", "n": 2, "best_of": 4, "max_tokens": 3})
    choices, usage = whole_completions(response.data)
    assert len(choices) == 2 and usage["completion_tokens"] == 12


def test_headers_of_a_stream_keep_proxies_from_collecting_it(client):
    for length in (1, 500):
        body = {"prompt": "x", "stream": True, "max_tokens": length, "ignore_eos": True}
        response = client.post("/v1/completions", json=body)
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        events(response)


def test_a_stream_that_is_complete_at_once_has_a_length(client):
    """One write, and no chunks: nothing more can come."""
    body = {"messages": HELLO, "stream": True, "max_tokens": 1}
    response = client.post("/v1/chat/completions", json=body)
    assert int(response.headers["Content-Length"]) == len(response.data)
    assert len(events(response)) == 3


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
def test_models_are_listed(client, path):
    (entry,) = client.get(path).get_json()["data"]
    assert (entry["id"], entry["object"], entry["aliases"]) == ("fake", "model", ["alias"])
    assert entry["created"] > 0 and entry["max_model_len"] == 1024


@pytest.mark.parametrize("name", ["fake", "FAKE:latest", "alias", "library%2Ffake"])
def test_a_model_is_shown(client, name):
    assert client.get(f"/v1/models/{name}").get_json()["id"] == "fake"


def test_the_reply_names_the_model_by_its_own_name(client):
    assert client.post("/v1/chat/completions", json={"messages": HELLO, "model": "ALIAS"}).get_json()["model"] == "fake"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_404(client, path, stream):
    response = client.post(path, json={"messages": HELLO, "model": "gpt-9", "stream": stream})
    assert response.status_code == 404
    assert error(response)["code"] == "model_not_found"
    assert error(client.get("/v1/models/org/gpt-9"))["code"] == "model_not_found"


@pytest.mark.parametrize(
    "path, body, param",
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1024}]}, "messages"),
        ("/v1/completions", {"prompt": "x" * 1024}, "prompt"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_400(client, path, body, param, stream):
    response = client.post(path, json={**body, "stream": stream})
    assert response.status_code == 400
    told = error(response)
    assert (told["code"], told["param"]) == ("context_length_exceeded", param)
    assert "This model's maximum context length is 1024 tokens. However, your messages resulted in" in told["message"]


def test_ids_outside_the_vocabulary_are_400(client):
    response = client.post("/v1/completions", json={"prompt": [1, 300]})
    assert response.status_code == 400 and error(response)["param"] == "prompt"


def test_a_sentence_of_the_template_is_400(start):
    running = start()
    model = running.service.registry.default
    template = "{{ raise_exception('Roles must alternate') }}"
    model.settings = replace(model.settings, chat_template=template)
    response = running.client.post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
    assert response.status_code == 400 and "Roles must alternate" in error(response)["message"]


def test_a_failure_before_the_first_event_is_a_real_error(start):
    running = start()
    for stream in (False, True):
        running.backend.fail_next = [DecodeFailed("secret reason")]
        response = running.client.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
        assert response.status_code == 500
        assert error(response)["type"] == "server_error" and b"secret" not in response.data


def test_a_failure_later_is_an_event_and_the_stream_ends(start):
    running = start()
    response = running.client.post(
        "/v1/completions", json={"prompt": "x", "ignore_eos": True, "stream": True}, buffered=False
    )
    writes = response.iter_encoded()
    first = next(writes)
    running.backend.fail_next = [DecodeFailed("secret reason")]
    rest = first + b"".join(writes)
    *_, last, done, empty = rest.decode().split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failure"


def test_a_full_queue_is_429_and_says_when_to_come_back(start):
    running = start(options=EngineOptions(parallel=1, queue_limit=0))
    body = {"prompt": "x", "ignore_eos": True, "stream": True, "max_tokens": 1000}
    busy = running.client.post("/v1/completions", json=body, buffered=False)
    response = running.client.post("/v1/completions", json=body)
    assert response.status_code == 429
    assert error(response)["code"] == "rate_limit_exceeded"
    assert 0 < float(response.headers["Retry-After"]) <= 120
    busy.close()


def test_a_request_over_its_time_is_504(start):
    from llamasrv.web.service import WebOptions

    running = start(web=WebOptions(timeout=1e-9))
    response = running.client.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 504
    assert error(response)["code"] == "deadline_exceeded"
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["a", "b"]},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "required",
        },
    ],
    ids=["a form", "tools"],
)
def test_without_keys_each_address_has_its_own_share_of_compilations(client, monkeypatch, fields):
    """All unnamed clients were one, without a bound: two of its connections kept the compilers from everybody else."""
    owners, compile = [], GrammarCompiler.compile
    monkeypatch.setattr(
        GrammarCompiler, "compile", lambda *a, owner, **k: [owners.append(owner), compile(*a, owner=owner, **k)][1]
    )
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **fields}
    reply = client.post("/v1/chat/completions", json=body, environ_base={"REMOTE_ADDR": "192.0.2.7"})
    assert reply.status_code == 200 and owners and set(owners) == {"192.0.2.7"}


def test_a_grammar_that_fails_during_the_answer_is_named_as_the_client_named_it(running):
    """The error named `content`, which no client sends."""
    grammar = 'start: "x" a b c "d"\n' + "\n".join(f"{name}: " + f'"{name}"? ' * 1900 for name in "abc")
    body = {"messages": [{"role": "user", "content": "x"}], "guided_grammar": grammar}
    reply = running.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == "guided_grammar"
    assert "too complex for what was written so far" in reply.get_json()["error"]["message"]
