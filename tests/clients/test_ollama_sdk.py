"""The official ollama SDK, sync and async, against the real worker process."""

from __future__ import annotations

import asyncio

import ollama
import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, wait_for
from conftest import ServerProcess

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0}


@pytest.fixture
def client(server):
    return ollama.Client(server.url)


def get_weather(city: str) -> str:
    """The weather.

    Args:
        city: where
    """
    return f"fine in {city}"


# ---------------------------------------------------------------- answers


def test_a_chat_is_answered(client):
    reply = client.chat("gpt-4o", HELLO, options=GREEDY, tools=[get_weather], keep_alive="5m")
    assert type(reply) is ollama.ChatResponse
    assert reply.message.content == "You said: Hello" and reply.message.role == "assistant"
    assert (reply.model, reply.done, reply.done_reason) == ("gpt-4o", True, "stop")
    assert reply.prompt_eval_count > 0 and reply.eval_count == len("You said: Hello") + 1
    assert reply.total_duration >= reply.load_duration >= 0


def test_a_chat_is_streamed(client):
    *parts, last = client.chat("fake", HELLO, stream=True, options=GREEDY)
    assert "".join(part.message.content for part in parts) == "You said: Hello"
    assert not any(part.done for part in parts) and last.done


@pytest.mark.parametrize("words", ["Hellö wörld 🎈", "a\u2028b\u2029c\u0085d"])
def test_characters_of_all_kinds_survive(client, words):
    """The client cuts a stream at whatever Unicode takes for the end of a line."""
    said = [{"role": "user", "content": words}]
    assert client.chat("fake", said, options=GREEDY).message.content == f"You said: {words}"
    parts = client.chat("fake", said, stream=True, options=GREEDY)
    assert "".join(part.message.content for part in parts) == f"You said: {words}"


def test_a_prompt_is_answered_and_gone_on_with(client):
    reply = client.generate("fake", "Hello", options=GREEDY)
    assert type(reply) is ollama.GenerateResponse and reply.response == "You said: Hello"
    again = client.generate("fake", "More", context=reply.context, options=GREEDY)
    assert again.response == "You said: More"
    parts = client.generate("fake", "Once", raw=True, stream=True, options={"num_predict": 4, **GREEDY})
    assert "".join(part.response for part in parts) == " and"
    assert client.generate("fake", "a", suffix="b", options=GREEDY).response


def test_logprobs_come_when_asked(client):
    reply = client.chat("fake", HELLO, logprobs=True, top_logprobs=2, options=GREEDY)
    assert "".join(entry.token for entry in reply.logprobs) == "You said: Hello"
    assert all(len(entry.top_logprobs) == 2 for entry in reply.logprobs)


def test_a_turn_with_calls_can_be_sent_back(client):
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    messages = [
        *HELLO,
        ollama.Message(role="assistant", tool_calls=[call]),
        {"role": "tool", "tool_name": "get_weather", "content": "fine"},
        {"role": "user", "content": "And?"},
    ]
    assert client.chat("fake", messages, options=GREEDY).message.content == "You said: And?"


def test_a_request_for_nothing_loads(client):
    assert client.generate("fake", keep_alive=-1).done_reason == "load"


def test_async_answers_and_streams(server):
    async def talk():
        client = ollama.AsyncClient(server.url)
        said = ([{"role": "user", "content": f"n{i}"}] for i in range(8))
        replies = await asyncio.gather(*(client.chat("fake", messages, options=GREEDY) for messages in said))
        parts = [part async for part in await client.chat("fake", HELLO, stream=True, options=GREEDY)]
        return [reply.message.content for reply in replies], "".join(part.message.content for part in parts)

    replies, text = asyncio.run(talk())
    assert replies == [f"You said: n{i}" for i in range(8)] and text == "You said: Hello"


def test_closing_a_stream_cancels(server, client):
    def ended(reason):
        return figure(server, "llamasrv_finished_total", reason=reason)

    for _ in range(20):  # a quick model may be at its end before anybody hears of the leaving
        cancelled, before = ended("cancelled"), ended("cancelled") + ended("stop")
        stream = client.chat("fake", [{"role": "user", "content": "x" * 3000}], stream=True, options=GREEDY)
        next(stream)
        stream.close()
        wait_for(lambda before=before: ended("cancelled") + ended("stop") > before)
        if ended("cancelled") > cancelled:
            return
    raise AssertionError("no answer was cancelled")


def test_texts_become_vectors():
    server = ServerProcess(["--port", "0", "--fake", "--embeddings"])
    try:
        client = ollama.Client(wait_until_ready(server).url)
        reply = client.embed("fake", ["a", "b"], truncate=True)
        assert type(reply) is ollama.EmbedResponse and len(reply.embeddings) == 2
        assert sum(x * x for x in reply.embeddings[0]) == pytest.approx(1, abs=1e-5)
        assert len(client.embeddings("fake", "a").embedding) == len(reply.embeddings[0])
        assert client.embed("fake", []).embeddings == []
    finally:
        server.end()


# ---------------------------------------------------------------- what there is


def test_models_are_listed_and_shown(client):
    (model,) = client.list().models
    (loaded,) = client.ps().models
    assert model.model == loaded.model == "org/model:tag" and model.modified_at.year > 2000
    assert loaded.expires_at.year > 2000 and type(loaded.size) is type(model.size)
    page = client.show("gpt-4o")
    assert page.modelinfo["general.architecture"] == "fake" and "completion" in page.capabilities


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "options, status, words",
    [
        ({"model": "other"}, 404, "model 'other' not found"),
        ({"think": True}, 400, "does not support thinking"),
        ({"options": {"temperature": "hot"}}, 400, 'option "temperature" must be of type float32'),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, 400, "maximum context length"),
        ({"messages": [{"role": "user", "content": "x", "images": [b"png"]}]}, 400, "not an image"),
    ],
)
def test_errors_have_status_and_words(client, options, status, words, stream):
    with pytest.raises(ollama.ResponseError, match=words) as caught:
        reply = client.chat(**{"model": "fake", "messages": HELLO, "stream": stream, **options})
        list(reply)
    assert caught.value.status_code == status
