"""The official anthropic SDK, sync and async, against the real worker process."""

from __future__ import annotations

import asyncio

import anthropic
import pytest
from anthropic.types import Message, ModelInfo
from clients.talk import figure, wait_for

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}]


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def create(client, **options):
    return client.messages.create(**{"model": "fake", "max_tokens": 100, "messages": HELLO, **options})


def whole_prompt(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


# ---------------------------------------------------------------- replies


def test_it_answers(client):
    message = create(client, system="Be brief.", tools=TOOLS, thinking={"type": "adaptive"})
    assert type(message) is Message
    Message.model_validate(message.model_dump(), strict=True)
    assert [block.text for block in message.content] == ["You said: Hello"]
    assert message.stop_reason == "end_turn" and message._request_id


def test_a_text_has_no_key_for_citations_where_there_are_none(client):
    """`"citations": null` broke clients whose schema lets the key be absent, not null."""
    assert "citations" not in create(client).content[0].model_fields_set
    with client.messages.stream(model="fake", max_tokens=100, messages=HELLO) as stream:
        starts = [event.content_block for event in stream if event.type == "content_block_start"]
    assert ["citations" in block.model_fields_set for block in starts] == [False]


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/"])
def test_a_base_url_with_a_v1_too_many_is_answered(server, path):
    """It asked for /v1/v1/messages and heard of a model that does not exist."""
    with anthropic.Anthropic(base_url=server.url + path, api_key="none", max_retries=0) as client:
        assert create(client).content[0].text == "You said: Hello"
        assert client.messages.count_tokens(model="fake", messages=HELLO).input_tokens > 0


def test_a_prompt_is_warmed_and_kept(client, server):
    """No token is written; the next request finds the system prompt, and says so."""
    rules = [{"type": "text", "text": "Rules. " * 40, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    warm = create(client, system=rules, max_tokens=0)
    assert warm.content == [] and warm.stop_reason == "max_tokens" and warm.usage.output_tokens == 0
    kept = warm.usage.cache_creation.ephemeral_1h_input_tokens
    assert (
        280 <= kept == warm.usage.cache_creation_input_tokens
        and warm.usage.cache_creation.ephemeral_5m_input_tokens == 0
    )
    message = create(client, system=rules, messages=[{"role": "user", "content": "Something else"}])
    assert message.usage.cache_read_input_tokens >= kept and not message.usage.cache_creation_input_tokens
    assert whole_prompt(message.usage) > kept
    assert figure(server, "llamasrv_pins_total") >= 1 and figure(server, "llamasrv_pinned_bytes") > 0


def test_it_streams(client):
    kinds = [event.type for event in create(client, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_streaming_helper_adds_up_what_create_returns(client):
    with client.messages.stream(model="fake", max_tokens=100, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = create(client)
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert whole_prompt(final.usage) == whole_prompt(whole.usage)


def test_the_progress_of_a_prompt_is_in_pings_that_the_helper_passes_over(client):
    with client.messages.stream(
        model="fake", max_tokens=100, messages=HELLO, extra_body={"return_progress": True}
    ) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_message().content[0].text == "You said: Hello"
    assert "ping" not in kinds


def test_a_stop_sequence_is_named(client):
    message = create(client, stop_sequences=["Hel"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Hel")


def test_a_turn_can_be_sent_back(client):
    first = create(client)
    again = create(client, messages=[*HELLO, first.to_param(), {"role": "user", "content": "More"}])
    assert again.content[0].text == "You said: More"
    assert again.usage.cache_read_input_tokens > 0


def test_what_is_counted_is_what_is_reported(client):
    count = client.messages.count_tokens(model="fake", messages=HELLO, tools=TOOLS, system="S")
    assert count.input_tokens == whole_prompt(create(client, tools=TOOLS, system="S").usage)


def test_the_beta_client_is_served_too(client):
    message = client.beta.messages.create(model="fake", max_tokens=100, messages=HELLO, betas=["context-1m"])
    assert message.content[0].text == "You said: Hello"
    assert client.beta.messages.count_tokens(model="fake", messages=HELLO).input_tokens > 0


def test_models_are_listed_to_the_end_and_found(client):
    (model,) = client.models.list()
    assert type(model) is ModelInfo and model.created_at.year > 2000
    ModelInfo.model_validate(model.model_dump(), strict=True)
    assert client.models.retrieve("org/model:tag").id == client.models.retrieve("gpt-4o").id == model.id


def test_async_answers_and_streams(server):
    async def talk():
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token="none", max_retries=0) as client:
            texts = [
                message.content[0].text
                for message in await asyncio.gather(*(create(client, messages=say(f"n{i}")) for i in range(8)))
            ]
            async with client.messages.stream(model="fake", max_tokens=100, messages=HELLO) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                final = await stream.get_final_message()
        return texts, text, final

    def say(words):
        return [{"role": "user", "content": words}]

    texts, text, final = asyncio.run(talk())
    assert texts == [f"You said: n{i}" for i in range(8)]
    assert text == final.content[0].text == "You said: Hello"


def test_closing_a_stream_cancels(server, client):
    before = figure(server, "llamasrv_finished_total", reason="cancelled")
    with create(client, stream=True, max_tokens=8000, messages=[{"role": "user", "content": "x" * 3000}]) as stream:
        next(iter(stream))
    wait_for(lambda: figure(server, "llamasrv_finished_total", reason="cancelled") == before + 1)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "options, error, kind",
    [
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, anthropic.BadRequestError, "invalid_request_error"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
    ],
)
def test_errors_are_of_their_class_with_message_and_id(client, options, error, kind, stream):
    with pytest.raises(error) as caught:
        create(client, stream=stream, **options)
    assert caught.value.body["error"]["type"] == kind
    assert caught.value.body["error"]["message"] in caught.value.message
    assert caught.value.request_id == caught.value.body["request_id"]


def test_too_long_is_reported_in_the_words_that_agents_wait_for(client):
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8192 maximum"):
        create(client, messages=[{"role": "user", "content": "x" * 9000}])


def test_a_route_that_is_not_there_is_an_error_of_its_class(client):
    with pytest.raises(anthropic.NotFoundError):
        client.get("/v1/organizations", cast_to=object)
