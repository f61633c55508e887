"""Decisions by the official openai SDK against the real worker process."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types import Decision

REFUND = {"type": "predicate", "name": "refund", "instructions": "The customer asks for money back."}
TEAM = {
    "type": "choice",
    "name": "team",
    "instructions": "Who answers?",
    "choices": [{"value": "billing", "description": "Payments"}, {"value": "technical"}, {"value": True}],
}
URGENCY = {"type": "score", "instructions": "How soon?", "levels": [{"label": "later"}, {"label": "today"}]}
TALK = [
    {"role": "user", "content": "Where is my order?"},
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "lost"},
    {"role": "user", "content": [{"type": "input_json", "data": {"order": 1873}}]},
]


@pytest.fixture
def client(deciding):
    with openai.OpenAI(base_url=deciding.url + "/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client


def decide(client, *questions, input="I paid twice.", **more):
    return client.decisions.create(model="demo", input=input, questions=questions, **more)


def test_three_kinds_are_answered_in_order(client):
    made = decide(client, REFUND, TEAM, URGENCY)
    Decision.model_validate(made.model_dump(), strict=True)
    refund, team, urgency = made.answers
    assert (refund.type, refund.name, urgency.name) == ("predicate", "refund", None)
    assert [row.value for row in team.probabilities] == ["billing", "technical", True]
    assert sum(row.probability for row in team.probabilities) == pytest.approx(1)
    assert [row.label for row in urgency.probabilities] == ["later", "today"]
    assert made.usage.input_tokens > 0 and made.usage.output_tokens == 0 and made._request_id


def test_a_conversation_with_a_call_is_decided_about(client):
    assert 0 <= decide(client, REFUND, input=TALK, prompt_cache_key="k").answers[0].probability <= 1


def test_many_at_once(client, deciding):
    async def ask():
        async with openai.AsyncOpenAI(base_url=deciding.url + "/v1", api_key="none", max_retries=0) as many:
            return await asyncio.gather(*(decide(many, REFUND, input=f"Order {n}.") for n in range(8)))

    alone = [decide(client, REFUND, input=f"Order {n}.").answers[0].probability for n in range(8)]
    assert [made.answers[0].probability for made in asyncio.run(ask())] == pytest.approx(alone, abs=1e-6)


def test_a_mistake_names_its_field(client):
    with pytest.raises(openai.BadRequestError) as caught:
        decide(client, REFUND, {**TEAM, "choices": [{"value": "one"}]})
    assert caught.value.param == "questions[1].choices"


def test_a_model_that_is_not_there(client):
    with pytest.raises(openai.NotFoundError):
        client.decisions.create(model="none", input="x", questions=[REFUND])
