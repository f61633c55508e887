"""Decisions by google-genai against a real server."""

from __future__ import annotations

import pytest

pytest.importorskip("google.genai")
from google import genai
from google.genai import types

QUESTIONS = {
    "refund": {"type": "noul", "instructions": "The customer asks for money back."},
    "team": {"type": "choice", "instructions": "Who answers?", "criteria": {"billing": "Payments", "technical": ""}},
    "urgency": {"type": "score", "instructions": "How soon?", "criteria": ["later", "this week", "today"]},
}


@pytest.fixture
def client(deciding):
    return genai.Client(api_key="none", http_options=types.HttpOptions(base_url=deciding.url))


@pytest.mark.parametrize("version", [None, "v1beta"])
def test_three_kinds_are_answered(client, version):
    more = {} if version is None else {"api_version": version}
    made = client.decisions.create(model="demo", input="I paid twice.", questions=QUESTIONS, **more)
    refund, team, urgency = (made.answers[name] for name in QUESTIONS)
    assert 0.01 <= refund.noul <= 0.99 and refund.confidence == pytest.approx(max(refund.noul, 1 - refund.noul))
    assert set(team.probabilities) == {"billing", "technical"} and team.confidence == max(team.probabilities.values())
    assert urgency.legend == {"0": "later", "1": "this week", "2": "today"}
    assert made.usage.total_input_tokens > 0 and made.usage.total_output_tokens == 0


def test_a_list_of_contents_is_read(client):
    content = [{"type": "text", "text": "I paid"}, {"type": "text", "text": "twice."}]
    made = client.decisions.create(model="models/demo", input=content, questions={"refund": QUESTIONS["refund"]})
    assert made.answers["refund"].type == "noul"


def test_a_mistake_names_its_field(client):
    with pytest.raises(Exception, match="questions.team.criteria") as caught:
        client.decisions.create(
            model="demo", input="x", questions={"team": {**QUESTIONS["team"], "criteria": {"one": ""}}}
        )
    assert "400" in str(caught.value) or getattr(caught.value, "status_code", None) == 400
