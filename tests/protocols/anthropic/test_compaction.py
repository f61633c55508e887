"""`compaction`: a summary on demand, as Anthropic's SDK asks for it."""

from __future__ import annotations

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.limits import Limits

ENDPOINT = MessagesEndpoint(Limits())
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
BODY = {"model": "fake", "max_tokens": 200, "messages": TALK, "compaction": {"type": "summarize"}}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


def last_words(**fields):
    request, _ = ENDPOINT.parse({**BODY, **fields})
    return request.prompts[0].messages[-1]


def test_the_model_is_asked_for_a_summary_of_everything_before():
    request, options = ENDPOINT.parse({**BODY, "tools": TOOLS})
    (prompt,) = request.prompts
    assert [message.role for message in prompt.messages] == ["user", "assistant", "user"]
    assert options.compaction and prompt.add_generation_prompt and request.tool_choice.mode == "none"


def test_instructions_replace_the_order():
    assert last_words(compaction={"type": "summarize", "instructions": "In one word."}).content == "In one word."


@pytest.mark.parametrize(
    "fields, about",
    [
        ({"compaction": {"type": "auto"}}, "compaction.type"),
        ({"compaction": {"type": "summarize", "instructions": "x" * 16_385}}, "compaction.instructions"),
        ({"compaction": {"type": "summarize", "instructions": 1}}, "compaction.instructions"),
        ({"stop_sequences": ["x"]}, "compaction"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "compaction"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "compaction"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "compaction"),
        ({"messages": [*TALK[:1], {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}], "tools": TOOLS}, "messages"),
    ],
)  # fmt: skip
def test_what_cannot_stand_beside_it_is_named(fields, about):
    with pytest.raises(InvalidRequest) as error:
        ENDPOINT.parse({**BODY, **fields})
    assert error.value.param == about
