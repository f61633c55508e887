"""How much of what a model of an unknown template writes is read: layouts that the learner was not made with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fresh_layouts import LAST_LAYOUTS, LATER_LAYOUTS, LAYOUTS, MENDED_LAYOUTS, PUBLISHED_LAYOUTS, Layout
from test_as_transformers import by_transformers
from test_grammar import accepts
from vectors import message_of

from llamasrv.chat.grammar import constrain
from llamasrv.chat.parser import Parser
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Message, Tool

FORECAST = {
    "type": "object",
    "required": ["city", "days", "detail"],
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "detail": {"type": "boolean"}},
}
NOTE = {
    "type": "object",
    "required": ["text", "tags", "to"],
    "properties": {
        "text": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "to": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "number"}}},
    },
}
TOOLS = (Tool("get_forecast", "What the weather will be", FORECAST), Tool("send-note", "Sends a note", NOTE))
PARIS = ("get_forecast", {"city": "São Paulo, 2nd", "days": 3, "detail": True})
LINES = (
    "send-note",
    {"text": 'Hi,\nsay "yes"; it\'s <b>ok</b> {1}', "tags": ["a", "b, c"], "to": {"name": "Al", "age": 1.5}},
)
LINE = (
    "send-note",
    {"text": 'Say "yes"; it\'s <b>ok</b> {1}', "tags": ["a", "b, c"], "to": {"name": "Al", "age": 1.5}},
)


def turns(layout: Layout) -> dict[str, dict[str, Any]]:
    note = LINE if layout.lines else LINES
    found: dict[str, dict[str, Any]] = {
        "text": {"content": "It is grey: 12 < 13.\n\n- and wet"},
        "thought": {"content": "Grey.", "reasoning_content": "The user asks.\nI know."},
        "call": {"tool_calls": [PARIS]},
        "another call": {"tool_calls": [note]},
        "two calls": {"tool_calls": [PARIS, note]},
        "words and a call": {"content": "Let me look.", "tool_calls": [PARIS]},
        "a thought and a call": {"reasoning_content": "I must look.", "tool_calls": [note]},
    }
    if layout.apart:
        del found["words and a call"]
    return found


def written(layout: Layout, turn: dict[str, Any]) -> tuple[str, str] | None:
    """The prompt, and what the model writes behind it; None if the layout has no such turns."""
    if "reasoning_content" in turn and not layout.thought:
        return None
    if "tool_calls" in turn:
        calls = [
            {"id": f"call0000{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(turn["tool_calls"])
        ]
        turn = {**turn, "tool_calls": calls}
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in TOOLS
    ]
    asked = [{"role": "user", "content": "How is it?"}]
    prompt = by_transformers(layout.source, asked, tools, {})
    past = by_transformers(
        layout.source, [*asked, {"role": "assistant", "content": "", **turn}], tools, {"add_generation_prompt": False}
    )
    head = prompt.removesuffix(layout.prompt or layout.opening) + layout.opening
    assert past.startswith(head) and past.endswith(layout.end)
    output = past[len(head) : len(past) - len(layout.end)]
    begun = prompt[len(head) :]  # of a thought
    if not begun:
        return prompt, output
    return prompt, output.removeprefix(begun) if output.startswith(begun) else layout.thought[1] + output


def read(template: ChatTemplate, prompt: str, pieces: Any) -> tuple[dict[str, Any], int]:
    parser = Parser(template.format, prompt=prompt, tools=TOOLS, new_id=lambda: "1")
    message = message_of([event for piece in pieces for event in parser.feed(piece)] + parser.finish())
    return message, parser.complete_calls


def is_right(turn: dict[str, Any], message: dict[str, Any]) -> bool:
    try:
        calls = [(made["name"], json.loads(made["arguments"])) for made in message["tool_calls"]]
    except ValueError:
        return False
    words = [message["content"].strip(), message["reasoning_content"].strip()]
    return (words, calls) == ([turn.get("content", ""), turn.get("reasoning_content", "")], turn.get("tool_calls", []))


def results(layout: Layout) -> dict[str, bool]:
    """By turn: whether it is read, the same at once and in characters. "forced": its calls are allowed where they must come."""
    template = ChatTemplate(layout.source, "<s>", "</s>", special_tokens=())
    found = {}
    for kind, turn in turns(layout).items():
        pair = written(layout, turn)
        if pair is None:
            continue
        prompt, output = pair
        assert template.render(ChatPrompt((Message("user", "How is it?"),), tools=TOOLS)).text == prompt
        message, complete = read(template, prompt, [output])
        assert (message, complete) == read(template, prompt, output), "cut into characters it is another"
        found[kind] = is_right(turn, message) and complete == len(turn.get("tool_calls", ()))
        if kind.endswith("call") and set(turn) == {"tool_calls"}:
            constraint = constrain(template.format, prompt=prompt, tools=TOOLS, must_call=True)
            found["forced " + kind] = accepts(constraint, output.strip()) or accepts(constraint, output)
    return found


ALL = {**LAYOUTS, **LATER_LAYOUTS, **LAST_LAYOUTS, **MENDED_LAYOUTS, **PUBLISHED_LAYOUTS}
LOST = {
    "an action in a fence": "only a line break ends a thought, which may hold some",
    "a spread object": "no mark of its own begins a name, and only blank lines end a thought",
}
"""Layouts of which something is lost, as `check` says of them."""


@pytest.mark.parametrize("name", ALL)
def test_a_layout_that_the_learner_was_not_made_with_is_read(name):
    """At first sight 115 of 184 turns of the first thirty were read (12 of 30 layouts without a loss); of the later
    twenty, seen after that was mended, 104 of 118 (16 of 20).
    Of the last twelve 62 of 72 were read at first sight (10 of 12), and nothing was mended for them."""
    found = results(ALL[name])
    forced = [right for kind, right in found.items() if kind.startswith("forced")]
    assert all(forced)
    assert all(right for kind, right in found.items() if not kind.startswith("forced")) == (name not in LOST)


@pytest.mark.parametrize("name", LOST)
def test_a_layout_of_which_something_is_lost_is_unsure(name):
    assert ChatTemplate(ALL[name].source).format.unsure


def test_a_fence_in_a_text_is_no_call_where_the_marks_of_calls_have_one_behind_another():
    layout = ALL["fenced Python between tokens"]
    text = "So:\n\n```python\nprint(f(x=1))\n```\nDone."
    message, _ = read(ChatTemplate(layout.source), written(layout, {"content": text})[0], [text])
    assert (message["content"], message["tool_calls"]) == (text, [])
