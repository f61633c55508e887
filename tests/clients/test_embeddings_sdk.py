"""Embeddings by the official openai SDK, sync and async, against the real worker process."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types import CreateEmbeddingResponse


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_vector_for_each_input_in_order(client):
    """The SDK asks for base64 by itself."""
    reply = client.embeddings.create(model="gpt-4o", input=["abc", "xyz"])
    assert type(reply) is CreateEmbeddingResponse
    assert [one.index for one in reply.data] == [0, 1] and reply.usage.prompt_tokens == 6
    assert len(reply.data[0].embedding) == 32 and reply.data[0].embedding != reply.data[1].embedding


def test_floats_are_the_same_numbers(client):
    packed = client.embeddings.create(model="gpt-4o", input="abc").data[0].embedding
    floats = client.embeddings.create(model="gpt-4o", input="abc", encoding_format="float").data[0].embedding
    assert floats == pytest.approx(packed, rel=1e-6)


def test_tokens_and_dimensions(client):
    reply = client.embeddings.create(model="gpt-4o", input=[[97, 98], [99]], dimensions=8)
    assert [len(one.embedding) for one in reply.data] == [8, 8]
    assert sum(x * x for x in reply.data[0].embedding) == pytest.approx(1)


def test_a_bad_request_names_the_field(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model="gpt-4o", input="")
    assert error.value.param == "input"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="a")


def test_many_at_once(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            asked = [client.embeddings.create(model="gpt-4o", input=["abc"] * n) for n in range(1, 20)]
            return await asyncio.gather(*asked)

    replies = asyncio.run(run())
    assert [len(reply.data) for reply in replies] == list(range(1, 20))
    assert len({tuple(one.embedding) for reply in replies for one in reply.data}) == 1
