"""Which prompts are long enough for a thread of their own."""

import pytest

from llamasrv.domain.request import ChatPrompt, InfillPrompt, Message, MixedPrompt, TextPrompt, Tool
from llamasrv.pipeline.sizes import LONG_TEXT, is_long

LONG = "x" * (LONG_TEXT + 1)


def chat(**fields):
    return ChatPrompt((Message("user", "Hello"), Message("assistant", "Hi", **fields)))


@pytest.mark.parametrize("prompt", [
    TextPrompt(LONG), TextPrompt("", suffix=LONG), MixedPrompt((1, LONG)), InfillPrompt("", LONG),
    chat(reasoning=LONG), ChatPrompt((Message("user", LONG),)),
    ChatPrompt((Message("user", "Hello"),), tools=(Tool("t", LONG),)),
    ChatPrompt((Message("user", "Hello"),), template_kwargs={"deep": [{"text": LONG}]}),
])  # fmt: skip
def test_wherever_the_text_is_it_counts(prompt):
    assert is_long(prompt)


def test_short_ones_and_token_ids_are_not():
    assert not is_long(chat()) and not is_long(TextPrompt("x")) and not is_long(MixedPrompt(tuple(range(50_000))))


def test_a_large_schema_counts_as_well():
    assert is_long(TextPrompt("x"), {"enum": [f"value {n}" for n in range(5_000)]})
    assert not is_long(TextPrompt("x"), {"enum": ["a", "b"]})
