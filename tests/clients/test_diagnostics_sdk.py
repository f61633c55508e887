"""Why a cache was missed, as the official anthropic SDK types it, against the real worker process."""

from __future__ import annotations

import anthropic
import pytest
from anthropic.types import CacheMissMessagesChanged, CacheMissPreviousMessageNotFound, Message

SYSTEM = "Be brief, and never say what is not so. " * 8


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def asked(text, previous):
    return {
        "model": "fake",
        "max_tokens": 8,
        "system": SYSTEM,
        "messages": [{"role": "user", "content": text}],
        "diagnostics": {"previous_message_id": previous},
    }


def test_a_conversation_hears_why_its_prompt_was_computed_again(client):
    first = client.messages.create(**asked("Hello there", None))
    assert type(first) is Message and first.diagnostics is None
    again = client.messages.create(**asked("Hello there", first.id))
    assert again.diagnostics is None and again.usage.cache_read_input_tokens > 0
    other = client.messages.create(**asked("Something else", again.id))
    reason = other.diagnostics.cache_miss_reason
    assert type(reason) is CacheMissMessagesChanged and reason.cache_missed_input_tokens > 0
    Message.model_validate(other.model_dump(), strict=True)


def test_a_stream_s_message_has_it_too(client):
    first = client.messages.create(**asked("Hello there", None))
    with client.messages.stream(**asked("A third", first.id)) as stream:
        message = stream.get_final_message()
    assert type(message.diagnostics.cache_miss_reason) is CacheMissMessagesChanged


def test_the_beta_s_client_hears_of_a_message_that_is_not_known(client):
    reply = client.beta.messages.create(**asked("Hello", "msg_none"), betas=["cache-diagnosis-2026-04-07"])
    assert reply.diagnostics.cache_miss_reason.type == "previous_message_not_found"
    plain = client.messages.create(**asked("Hello", "msg_none"))
    assert type(plain.diagnostics.cache_miss_reason) is CacheMissPreviousMessageNotFound


def test_the_header_is_there_for_whoever_reads_it(client):
    raw = client.messages.with_raw_response.create(**asked("Hello there", None))
    assert "prompt=" in raw.headers["x-llamasrv-cache"] and raw.parse().content
