"""The official openai SDK, sync and async, against the real worker process."""

from __future__ import annotations

import asyncio
import signal

import openai
import pytest
from clients.talk import figure, wait_for
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, **options):
    return client.chat.completions.create(**{"model": "gpt-4o", "messages": HELLO, **options})


# ---------------------------------------------------------------- replies


def test_a_chat_is_answered(client):
    reply = chat(client)
    assert type(reply) is ChatCompletion
    assert reply.choices[0].message.content == "You said: Hello"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.tool_calls is None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.system_fingerprint and reply._request_id


def test_the_reply_is_strictly_of_its_type(client):
    reply = chat(client, logprobs=True, top_logprobs=2, n=2)
    ChatCompletion.model_validate(reply.model_dump(), strict=True)
    entry = reply.choices[1].logprobs.content[0]
    assert bytes(entry.bytes).decode() == entry.token and len(entry.top_logprobs) == 2


def test_a_chat_is_streamed(client):
    chunks = list(chat(client, stream=True))
    assert all(type(chunk) is ChatCompletionChunk for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hello"
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_is_the_last_chunk_when_asked(client):
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.completion_tokens == len("You said: Hello") + 1
    assert all(chunk.usage is None for chunk in chunks)


def test_the_streaming_helper_adds_up_what_create_returns(client):
    options = {"temperature": 0, "n": 2, "logprobs": True, "top_logprobs": 1}
    with client.chat.completions.stream(model="fake", messages=HELLO, **options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    whole = chat(client, **options)
    for mine, theirs in zip(final.choices, whole.choices):
        assert mine.message.content == theirs.message.content
        assert mine.finish_reason == theirs.finish_reason
        assert [t.token for t in mine.logprobs.content] == [t.token for t in theirs.logprobs.content]
        assert mine.message.role == "assistant"


def test_a_text_is_completed(client):
    reply = client.completions.create(model="fake", prompt=["Once", "Twice"], max_tokens=4, echo=True, logprobs=1)
    assert type(reply) is Completion
    assert [choice.text for choice in reply.choices] == ["Once and", "Twice and"]
    assert reply.choices[1].logprobs.text_offset[:2] == [0, 1]
    chunks = client.completions.create(model="fake", prompt="Once", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == " and"


def test_models_are_listed_and_found(client):
    (model,) = client.models.list()
    assert type(model) is Model and model.id == "org/model:tag"
    for name in ("org/model:tag", "gpt-4o", "GPT-4o"):
        assert client.models.retrieve(name).id == model.id


def test_raw_responses_have_their_headers(client):
    raw = client.chat.completions.with_raw_response.create(
        model="fake", messages=HELLO, extra_headers={"X-Request-Id": "my-own-id"}
    )
    assert raw.headers["x-request-id"] == "my-own-id" == raw.parse()._request_id


def test_one_connection_serves_many_requests(client):
    before = figure_of(client, "/v1/models")
    for _ in range(20):
        client.models.list()
    assert figure_of(client, "/v1/models") == before + 20


def figure_of(client, route):
    from types import SimpleNamespace

    server = SimpleNamespace(url=str(client.base_url).removesuffix("/v1/"))
    return figure(server, "llamasrv_http_requests_total", route=route, status="200")


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_not_found(client, stream):
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="gpt-9", stream=stream)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_names_the_field(client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages=[{"role": "user", "content": 3}], stream=stream)
    assert (caught.value.param, caught.value.code) == ("messages[0].content", "invalid_type")


def test_a_prompt_that_is_too_long_is_reported_as_clients_expect(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages=[{"role": "user", "content": "x" * 9000}])
    assert caught.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 8192 tokens" in caught.value.message


def test_an_unknown_route_is_json(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.fine_tuning.jobs.list()
    assert caught.value.code == "unknown_url"


def test_keys_are_asked_for(serve):
    server = serve("--fake", "--api-key", "sesame")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
        assert [model.id for model in client.with_options(api_key="sesame").models.list()] == ["fake"]


def test_no_server_is_a_connection_error():
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
    with client, pytest.raises(openai.APIConnectionError):
        client.models.list()


# ---------------------------------------------------------------- many at once, ends


def run_async(server, main):
    async def go():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
            return await main(client)

    return asyncio.run(go())


def test_the_async_client_is_served(server):
    async def main(client):
        reply = await client.chat.completions.create(model="fake", messages=HELLO)
        assert reply.choices[0].message.content == "You said: Hello"
        text = ""
        async for chunk in await client.chat.completions.create(model="fake", messages=HELLO, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == "You said: Hello"

    run_async(server, main)


def test_64_streams_at_once_are_each_their_own(server):
    async def one(client, k):
        canary = f"canary {k} " + "é" * (k % 7)
        messages = [{"role": "user", "content": canary}]
        text = ""
        stream = await client.chat.completions.create(model="fake", messages=messages, stream=True, temperature=0)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text == "You said: " + canary

    async def main(client):
        return await asyncio.gather(*(one(client, k) for k in range(64)))

    assert all(run_async(server, main))
    wait_for(lambda: figure(server, "llamasrv_running") == 0)


def test_a_stream_that_is_closed_early_is_cancelled(server, client):
    before = figure(server, "llamasrv_finished_total", reason="cancelled")
    stream = client.completions.create(model="fake", prompt="x", stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_for(lambda: figure(server, "llamasrv_finished_total", reason="cancelled") == before + 1)


def test_a_running_stream_is_finished_while_the_server_ends(serve):
    server = serve("--fake")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        stream = client.completions.create(
            model="fake", prompt="x", stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
        )
        chunks = iter(stream)
        next(chunks)
        server.signal(signal.SIGTERM)
        last = list(chunks)[-1]
        assert last.choices[0].finish_reason == "length"
        with pytest.raises(openai.APIConnectionError):
            for _ in range(200):
                try:
                    client.models.list()
                except openai.InternalServerError:
                    pass  # refused politely while the notice lasts
    assert server.exit_code() == 0
