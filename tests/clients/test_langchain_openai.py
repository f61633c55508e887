"""langchain-openai pointed at a real server: chats, streams, tools, structured output, Responses, embeddings."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

pytest.importorskip("langchain_openai")
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class City(BaseModel):
    """A city. The fake model never ends a text of its own: it has to be one of these."""

    name: Literal["Oslo", "Paris"]


@pytest.fixture
def model(server):
    return ChatOpenAI(model="fake", base_url=server.url + "/v1", api_key="none", max_retries=0, temperature=0)


def test_a_chat_is_answered_with_its_usage(model):
    reply = model.invoke([SystemMessage("Be brief."), HumanMessage("Hello")])
    assert reply.content == "You said: Hello"
    assert reply.usage_metadata["output_tokens"] == len("You said: Hello") + 1
    assert reply.response_metadata["finish_reason"] == "stop"


def test_a_chat_is_streamed_with_its_usage(model):
    *chunks, last = model.stream("Hello", stream_usage=True)
    assert "".join(chunk.content for chunk in chunks) == "You said: Hello"
    whole = chunks[0]
    for chunk in (*chunks[1:], last):
        whole += chunk
    assert whole.usage_metadata["total_tokens"] > 0


def test_async_is_answered_side_by_side(model):
    async def talk():
        return await asyncio.gather(*(model.ainvoke(f"n{i}") for i in range(8)))

    assert [reply.content for reply in asyncio.run(talk())] == [f"You said: n{i}" for i in range(8)]


def test_a_talk_with_calls_goes_on(model):
    call = {"name": "get_weather", "args": {"city": "Oslo"}, "id": "call_1", "type": "tool_call"}
    turns = [HumanMessage("?"), AIMessage("", tool_calls=[call]), ToolMessage("fine", tool_call_id="call_1")]
    reply = model.bind_tools([City]).invoke([*turns, HumanMessage("And?")])
    assert reply.content == "You said: And?" and not reply.tool_calls


def test_a_tool_is_called_when_it_must_be(model):
    reply = model.bind_tools([City], tool_choice="City").invoke("Where?")
    (call,) = reply.tool_calls
    assert call["name"] == "City" and call["args"]["name"] in ("Oslo", "Paris") and call["id"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_fits_its_schema(model, method):
    found = model.with_structured_output(City, method=method).invoke("Where?")
    assert type(found) is City


def test_responses_are_spoken_too(server):
    model = ChatOpenAI(
        model="fake", base_url=server.url + "/v1", api_key="none", max_retries=0, use_responses_api=True, temperature=0
    )
    reply = model.invoke("Hello")
    assert reply.text == "You said: Hello" and reply.usage_metadata["input_tokens"] > 0
    assert "".join(chunk.text for chunk in model.stream("Hello")) == "You said: Hello"


def test_texts_become_vectors():
    server = ServerProcess(["--port", "0", "--fake", "--embeddings"])
    try:
        url = wait_until_ready(server).url + "/v1"
        embeddings = OpenAIEmbeddings(model="fake", base_url=url, api_key="none", check_embedding_ctx_length=False)
        first, second = embeddings.embed_documents(["a", "b"])
        assert len(first) == len(second) > 0 and first == pytest.approx(embeddings.embed_query("a"), abs=1e-6)
    finally:
        server.end()
