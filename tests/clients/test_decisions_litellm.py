"""Decisions by litellm against a real server: its two functions, as OpenAI, vLLM and Ollama."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it fetches a list of prices when it is imported
litellm = pytest.importorskip("litellm")
if not hasattr(litellm, "decisions"):
    pytest.skip("needs litellm with decisions", allow_module_level=True)
litellm.telemetry = False

QUESTIONS = [
    {"type": "predicate", "name": "refund", "instructions": "The customer asks for money back."},
    {
        "type": "choice",
        "name": "team",
        "instructions": "Who answers?",
        "choices": [{"value": "billing", "description": "Payments"}, {"value": "technical"}, {"value": True}],
    },
    {
        "type": "score",
        "name": "urgency",
        "instructions": "How soon?",
        "levels": [{"label": "later"}, {"label": "today"}],
    },
]
NOULS = {"refund": {"type": "noul", "instructions": "The customer asks for money back."}}


def test_decisions_pass_through_in_openais_dialect(deciding):
    made = litellm.decisions(
        model="openai/demo", input="I paid twice.", questions=QUESTIONS, api_base=deciding.url + "/v1", api_key="none"
    )
    refund, team, urgency = made.answers
    assert refund.name == "refund" and [row.value for row in team.probabilities] == ["billing", "technical", True]
    assert [row.label for row in urgency.probabilities] == ["later", "today"] and made.usage.input_tokens > 0


def test_openais_questions_in_system_ones_dialect(deciding):
    made = litellm.decisions(
        model="hosted_vllm/demo",
        input="I paid twice.",
        questions=QUESTIONS,
        api_base=deciding.url + "/v1",
        api_key="none",
    )
    assert len(made.answers) == 3 and made.usage.input_tokens > 0


@pytest.mark.parametrize(("provider", "base"), [("hosted_vllm", "/v1"), ("ollama", ""), ("openai", "/v1")])
def test_decisions_pass_through_in_typesafes_dialect(deciding, provider, base):
    made = litellm.systemone(
        model=f"{provider}/demo", state="I paid twice.", questions=NOULS, api_base=deciding.url + base, api_key="none"
    )
    assert 0 <= made.answers["refund"].noul <= 1


def test_a_model_that_is_not_there(deciding):
    with pytest.raises(litellm.NotFoundError):
        litellm.systemone(
            model="hosted_vllm/none", state="x", questions=NOULS, api_base=deciding.url + "/v1", api_key="none"
        )
