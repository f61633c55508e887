"""Decisions by langchain-openai against a real server."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("langchain_openai.decisions", reason="needs langchain-openai with decisions")
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import OpenAIDecisions
from langchain_openai.decisions import Choice, Predicate, Score

QUESTIONS = {
    "refund": Predicate(instructions="The customer asks for money back."),
    "team": Choice(instructions="Who answers?", choices={"billing": "Payments", "technical": None}),
    "urgency": Score(instructions="How soon?", levels=["later", "this week", "today"]),
}


@pytest.fixture
def decisions(deciding):
    return OpenAIDecisions(model="demo", base_url=deciding.url + "/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize(
    "asked",
    [
        "I paid twice.",
        {"order": 1873},
        [SystemMessage("A shop."), HumanMessage("Twice!"), AIMessage("Sorry.")],
    ],
    ids=["text", "object", "conversation"],
)
def test_three_kinds_are_answered_by_name(decisions, asked):
    made = decisions.invoke({"input": asked, "questions": QUESTIONS})
    assert set(made.answers) == set(QUESTIONS) and made.request_id
    assert 0 <= made.answers["refund"].probability <= 1
    assert sum(made.answers["team"].probabilities.values()) == pytest.approx(1)
    assert set(made.answers["urgency"].legend.values()) == {"later", "this week", "today"}


def test_an_asynchronous_call_is_answered(decisions):
    made = asyncio.run(decisions.ainvoke({"input": "I paid twice.", "questions": QUESTIONS}))
    assert made.answers["refund"].type == "predicate"
