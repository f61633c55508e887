"""Anthropic's tool runner, sync and async, against a real server process on a small real model."""

from __future__ import annotations

import asyncio

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
    server = ServerProcess(["--port", "0"])
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
