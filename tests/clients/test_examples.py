"""Requests as they stand in the documents of the servers whose place this one takes: each works as it is written.

The model is the embedded one where this build carries it, else a trained one beside the checkout, else the fake.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

from llamasrv.config import paths

LINES = (Path(__file__).parent / "data" / "examples.sh").read_text("utf-8").splitlines()
TRAINED = Path(__file__).resolve().parents[2] / "../shared/models/trial-chat-4m-q8_0.gguf"


def model_flags():
    path = paths.demo_model() or (TRAINED if TRAINED.is_file() else None)
    return ["--model", str(path)] if path else ["--fake"]


@pytest.fixture(scope="module")
def server():
    server = ServerProcess(["--port", "0", *model_flags(), "--alias", "*", "--embeddings"])
    yield wait_until_ready(server)
    server.end()


def run(server, line):
    """Status and body of a curl command, host and port apart."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    for host in ("http://localhost:8080", "http://localhost:11434"):
        line = line.replace(host, server.url)
    command = [*shlex.split(line, comments=True), "-sS", "-m", "60", "-w", "\n%{http_code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


# What a reply must look like, by path


def is_chat(body):
    reply = json.loads(body)
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("stop", "length", "tool_calls")
    for call in choice["message"].get("tool_calls", []):
        assert call["type"] == "function" and call["function"]["name"] == "python"
        assert "code" in json.loads(call["function"]["arguments"])
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


def is_chat_stream(body):
    *events, last, rest = body.split("\n\n")
    assert last == "data: [DONE]" and not rest
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def is_completion(body):
    reply = json.loads(body)
    assert reply["object"] == "text_completion" and reply["choices"][0]["text"]


def is_embeddings(body):
    reply = json.loads(body)
    assert reply["object"] == "list" and reply["usage"]["prompt_tokens"] > 0
    for i, one in enumerate(reply["data"]):
        assert (one["object"], one["index"]) == ("embedding", i)
        assert sum(x * x for x in one["embedding"]) == pytest.approx(1, abs=1e-4)
    return len(reply["data"])


def is_message(body):
    reply = json.loads(body)
    assert (reply["type"], reply["role"]) == ("message", "assistant") and reply["content"][0]["type"] == "text"
    assert reply["stop_reason"] in ("end_turn", "max_tokens") and reply["usage"]["output_tokens"] > 0


def is_token_count(body):
    assert list(json.loads(body)) == ["input_tokens"] and json.loads(body)["input_tokens"] > 0


def is_ollama_chat(body):
    lines = [json.loads(line) for line in body.splitlines()]
    assert {line["model"] for line in lines} == {"llama3.3:70b"}
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(line["message"]["content"] for line in lines) and lines[-1]["eval_count"] > 0


def is_ollama_model(body):
    reply = json.loads(body)
    assert {"template", "details", "model_info", "capabilities"} <= set(reply)


def is_ollama_list(body):
    (model,) = json.loads(body)["models"]
    assert {"name", "model", "size", "digest", "details", "expires_at", "size_vram"} <= set(model)


def is_refused_pull(body):
    assert "--models-manage" in json.loads(body)["error"]


def is_model_list(body):
    reply = json.loads(body)
    assert reply["object"] == "list" and reply["data"][0]["object"] == "model" and reply["data"][0]["id"]


def is_healthy(body):
    assert json.loads(body) == {"status": "ok"}


def is_props(body):
    props = json.loads(body)
    assert props["default_generation_settings"]["n_ctx"] > 0 and props["total_slots"] > 0 and props["chat_template"]


def is_tokens(body):
    tokens = json.loads(body)["tokens"]
    assert tokens and all(type(token) is int for token in tokens)


SHAPES = {
    "/v1/chat/completions": is_chat, "/chat/completions": is_chat, "/v1/completions": is_completion,
    "/v1/embeddings": is_embeddings, "/v1/messages": is_message, "/v1/messages/count_tokens": is_token_count,
    "/api/chat": is_ollama_chat, "/api/pull": is_refused_pull, "/api/show": is_ollama_model, "/api/ps": is_ollama_list,
    "/v1/models": is_model_list, "/health": is_healthy, "/props": is_props, "/tokenize": is_tokens,
}  # fmt: skip


def path_of(line):
    (url,) = (word for word in shlex.split(line, comments=True) if word.startswith("http"))
    return urlsplit(url).path


@pytest.mark.parametrize("line", LINES, ids=lambda line: path_of(line))
def test_it_works_as_written(server, line):
    status, body = run(server, line)
    path = path_of(line)
    # Fetching models is the one thing that a server does not do unless its operator said so.
    assert status == (403 if path == "/api/pull" else 200), body
    shape = is_chat_stream if '"stream":true' in line else SHAPES[path]
    shape(body)


def test_several_inputs_give_several_vectors(server):
    (line,) = (line for line in LINES if "Goodbye" in line)
    assert is_embeddings(run(server, line)[1]) == 2


def test_every_request_of_the_collection_beside_the_checkout_is_here():
    collection = TRAINED.parents[1] / "examples.md"
    if not collection.is_file():
        pytest.skip("no collection here")
    assert [line for line in collection.read_text("utf-8").splitlines() if line.startswith("curl ")] == LINES


# The script that people try a server with


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="no-key", max_retries=0) as client:
        yield client


def test_models_a_short_chat_and_a_streamed_count(client):
    assert client.models.list().data[0].id
    hello = [{"role": "user", "content": "Hello"}]
    short = client.chat.completions.create(model="gpt-3.5-turbo", messages=hello, max_tokens=10)
    assert short.choices[0].message.content and short.usage.completion_tokens <= 10
    count = [{"role": "user", "content": "Count to three"}]
    stream = client.chat.completions.create(
        model="gpt-3.5-turbo", messages=count, stream=True, stream_options={"include_usage": True}, max_tokens=40
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0


PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "python"}}])
def test_a_tool_that_has_to_be_called_is_called(client, choice):
    if "--fake" in model_flags():
        pytest.skip("the fake calls nothing")
    reply = client.chat.completions.create(
        model="gpt-3.5-turbo",
        messages=[{"role": "user", "content": "Print a hello world message with python."}],
        tools=[PYTHON],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=200,
        temperature=0,
    )
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "python"
    if reply.choices[0].finish_reason != "length":
        assert type(json.loads(call.function.arguments)["code"]) is str


def test_a_response_streams_from_created_to_completed(client):
    kinds = [event.type for event in client.responses.create(model="llama", input="Hello", stream=True)]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds and "response.output_item.done" in kinds


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="llama", messages=[])
    assert isinstance(error.value, openai.APIStatusError) and error.value.type == "invalid_request_error"
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0) as nobody:
        with pytest.raises(openai.APIConnectionError):
            nobody.models.list()
