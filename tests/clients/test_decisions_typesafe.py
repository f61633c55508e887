"""System One by typesafe-sdk against a real server, within its own time limit."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("typesafe_sdk")
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Noul,
    Score,
    TypeSafeClient,
    TypeSafeNotFoundError,
    TypeSafeUnprocessableEntityError,
)

QUESTIONS = {
    "refund": Noul(instructions="The customer asks for money back."),
    "team": Choice(instructions="Who answers?", criteria={"billing": "Payments", "technical": None}),
    "urgency": Score(instructions="How soon?", criteria=["later", "this week", "today"]),
}


@pytest.fixture
def client(deciding):
    return TypeSafeClient(api_key="none", base_url=deciding.url)


def test_three_kinds_are_answered(client):
    made = client.system_one(state={"body": "I paid twice."}, questions=QUESTIONS, model="demo")
    refund, team, urgency = (made.answers[name] for name in QUESTIONS)
    assert 0 <= refund.noul <= 1
    assert set(team.probabilities) == {"billing", "technical"} and team.choice in team.probabilities
    assert sum(urgency.probabilities.values()) == pytest.approx(1)
    assert made.usage.input_tokens > 0 and made.request_id


def test_a_long_body_comes_compressed_and_has_the_same_answer(deciding):
    """From 1,024 bytes on, where Python has zstd: 3.14, or the SDK's extra."""
    ask = {"state": "I paid twice. " * 100, "questions": QUESTIONS, "model": "demo"}
    packed, plain = (
        TypeSafeClient(api_key="none", base_url=deciding.url, compression=how).system_one(**ask)
        for how in ("zstd", False)
    )
    assert packed.answers["refund"].noul == pytest.approx(plain.answers["refund"].noul, abs=1e-6)


def test_an_asynchronous_call_is_answered(deciding):
    async def ask():
        async with AsyncTypeSafeClient(api_key="none", base_url=deciding.url) as client:
            return await client.system_one(state="I paid twice.", questions=QUESTIONS, model="demo")

    assert set(asyncio.run(ask()).answers) == set(QUESTIONS)


def test_models_are_listed(client):
    assert "demo" in [model.name for model in client.models.list().models]


def test_a_mistake_is_named(client):
    with pytest.raises(TypeSafeUnprocessableEntityError, match="team"):
        client.system_one(state="x", questions={"team": {"type": "box", "instructions": "Where?"}}, model="demo")


def test_a_model_that_is_not_there(client):
    with pytest.raises(TypeSafeNotFoundError):
        client.system_one(state="x", questions=QUESTIONS, model="none")
