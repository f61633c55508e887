"""Which prompts are long enough for a thread of their own."""

import pytest

from llamasrv.domain.request import (
    ChatPrompt,
    InfillPrompt,
    Message,
    MixedPrompt,
    TextPart,
    TextPrompt,
    Tool,
    ToolCall,
)
from llamasrv.engine.backend.fake import FakeVocabulary
from llamasrv.errors import ContextTooLong, InvalidRequest
from llamasrv.pipeline.sizes import LONG_TEXT, MOST_PARTS, check_parts, is_long, is_long_form, refuse_endless

LONG = "x" * (LONG_TEXT + 1)


def chat(**fields):
    return ChatPrompt((Message("user", "Hello"), Message("assistant", "Hi", **fields)))


# Ten thousand messages of one letter took a second to render, in which every stream waited.
@pytest.mark.parametrize("prompt", [
    TextPrompt(LONG), TextPrompt("", suffix=LONG), MixedPrompt((1, LONG)), InfillPrompt("", LONG),
    chat(reasoning=LONG), ChatPrompt((Message("user", LONG),)),
    ChatPrompt((Message("user", "Hello"),), tools=(Tool("t", LONG),)),
    ChatPrompt((Message("user", "x"),) * 500), MixedPrompt(("x",) * 500), InfillPrompt("", "", extra=(("a", "x"),) * 500),
    chat(tool_calls=(ToolCall("a", "f", "{}"),) * 500), ChatPrompt((Message("user", (TextPart("x"),) * 500),)),
    ChatPrompt((Message("user", "Hello"),), template_kwargs={"deep": [{"text": LONG}]}),
])  # fmt: skip
def test_wherever_the_text_is_it_counts(prompt):
    assert is_long(prompt)


def test_short_ones_and_token_ids_are_not():
    assert not is_long(chat()) and not is_long(TextPrompt("x")) and not is_long(MixedPrompt(tuple(range(50_000))))


def test_a_large_schema_counts_as_well():
    assert is_long_form({"enum": [f"value {n}" for n in range(1_000)]})
    assert not is_long_form({"enum": ["a", "b"]})


def test_parts_are_bounded_over_all_messages():
    """Two hundred messages of a thousand parts each took seconds on the hub."""
    message = Message("user", (TextPart("x"),) * 1_000)
    check_parts([ChatPrompt((message,) * (MOST_PARTS // 1_000)), TextPrompt("x")])
    with pytest.raises(InvalidRequest, match="content parts in all"):
        check_parts([ChatPrompt((message,) * (MOST_PARTS // 1_000 + 1))])


def test_a_prompt_that_was_read_to_its_end_is_counted_exactly():
    """The last slice, which is shorter than the others, was taken for a whole one: 8,000 letters became 7,814 tokens."""
    with pytest.raises(ContextTooLong) as caught:
        refuse_endless("x" * 8_000, FakeVocabulary(), 1_000, short=1_000)
    assert caught.value.num_prompt == 8_000
