"""Anthropic's tool runner and message threads, against a real server process on a small real model."""

from __future__ import annotations

import asyncio
import json

import anthropic
import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

from llamasrv.config import paths

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
OPTIONS = {"model": "claude-haiku-4-5", "max_tokens": 300, "extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def server():
    if paths.demo_model() is None:
        pytest.skip("there is no small chat model here")
    server = ServerProcess(["--port", "0", "--threads", "1"])
    yield wait_until_ready(server)
    server.end()


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """Tells the weather of a city.

    Args:
        city: its name
    """
    return f"It is sunny in {city}, 21 degrees."


@anthropic.beta_async_tool
async def get_weather_later(city: str) -> str:
    """Tells the weather of a city.

    Args:
        city: its name
    """
    return f"It is sunny in {city}, 21 degrees."


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_runner_comes_to_its_end(client, stream):
    """It sends a thread; that was ignored, and its second request, of results alone, was a 400."""
    runner = client.beta.messages.tool_runner(tools=[get_weather], messages=ASK, stream=stream, **OPTIONS)
    replies = [turn.get_final_message() if stream else turn for turn in runner]
    assert [reply.stop_reason for reply in replies] == ["tool_use", "end_turn"]
    assert "21" in replies[-1].content[-1].text


def test_an_async_tool_runner_comes_to_its_end(server):
    async def talk():
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            runner = client.beta.messages.tool_runner(tools=[get_weather_later], messages=ASK, **OPTIONS)
            return [message.stop_reason async for message in runner]

    assert asyncio.run(talk()) == ["tool_use", "end_turn"]


# ---------------------------------------------------------------- threads


@pytest.fixture
def sent(server):
    """A client, and what it sends."""
    bodies = []

    def hear(request):
        bodies.append(json.loads(request.content))

    http = anthropic.DefaultHttpxClient(event_hooks={"request": [hear]})
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, http_client=http) as client:
        yield client, bodies


def test_a_runner_sends_only_what_is_new(sent):
    client, bodies = sent
    runner = client.beta.messages.tool_runner(tools=[get_weather], messages=ASK, **OPTIONS)
    *_, last = runner
    assert "21" in last.content[-1].text
    assert [body["thread"]["type"] for body in bodies] == ["create", "continue"]
    assert [len(body["messages"]) for body in bodies] == [1, 1] and "tools" not in bodies[1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_thread_remembers(sent, stream):
    client, bodies = sent
    thread = client.beta.messages.thread(**OPTIONS)
    told = []
    for text in ("My name is Ann.", "What is my name?"):
        message = {"role": "user", "content": text}
        if stream:
            with thread.stream(message) as reply:
                told.append(reply.get_final_message().content[-1].text)
        else:
            told.append(thread.send(message).content[-1].text)
    assert "Ann" in told[1]
    assert thread.previous_message_id and [len(body["messages"]) for body in bodies] == [1, 1]


def test_a_thread_that_is_lost_is_sent_again(sent):
    client, bodies = sent
    thread = client.beta.messages.thread(**OPTIONS)
    first = thread.send({"role": "user", "content": "My name is Ann."})
    # Somebody else has gone on from there: this one cannot.
    go_on = {"type": "continue", "previous_message_id": first.id}
    client.beta.messages.create(messages=[{"role": "user", "content": "Hello"}], thread=go_on, **OPTIONS)
    assert "Ann" in thread.send({"role": "user", "content": "What is my name?"}).content[-1].text
    assert [body["thread"]["type"] for body in bodies[-2:]] == ["continue", "create"]


def test_errors_of_threads_are_of_their_class(client):
    lost = {"type": "continue", "previous_message_id": "msg_x"}
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.beta.messages.create(messages=ASK, thread=lost, **OPTIONS)
    assert caught.value.error_code == "thread_not_found"


def test_where_nothing_is_stored_a_runner_goes_on_without_a_thread(serve):
    server = wait_until_ready(serve("--store", "none", "--threads", "1"))
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(tools=[get_weather], messages=ASK, **OPTIONS)
        assert [reply.stop_reason for reply in runner] == ["tool_use", "end_turn"]
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.beta.messages.thread(**OPTIONS).send(ASK[0])
        assert caught.value.error_code == "thread_unsupported_request"
