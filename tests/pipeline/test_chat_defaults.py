"""What holds for conversations of which a request says nothing."""

from __future__ import annotations

import pytest

from llamasrv.config import load
from llamasrv.domain.defaults import ChatDefaults
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, TextPrompt
from llamasrv.startup.model_options import chat_defaults

CHAT = ChatPrompt((Message("user", "Hello"),), template_kwargs={"enable_thinking": True})


def request(prompt=CHAT, **fields):
    return GenerateRequest((prompt,), **fields)


def test_what_a_request_leaves_open_is_filled_in():
    defaults = ChatDefaults({"enable_thinking": False, "x": 1}, split_reasoning=False, thinking_budget=7)
    made = defaults.of(request())
    assert made.prompts[0].template_kwargs == {"enable_thinking": True, "x": 1}
    assert (made.split_reasoning, made.thinking_budget) == (False, 7)


def test_what_a_request_says_goes_before():
    defaults = ChatDefaults(split_reasoning=False, thinking_budget=7)
    made = defaults.of(request(split_reasoning=True, thinking_budget=0))
    assert (made.split_reasoning, made.thinking_budget) == (True, 0)


def test_raw_text_has_no_template():
    assert ChatDefaults({"x": 1}).of(request(TextPrompt("a"))).prompts == (TextPrompt("a"),)


@pytest.mark.parametrize(
    ("flags", "defaults"),
    [
        ({}, ChatDefaults()),
        ({"model_reasoning": "off"}, ChatDefaults({"enable_thinking": False, "thinking": False})),
        ({"model_reasoning_effort": "high"}, ChatDefaults({"reasoning_effort": "high"})),
        ({"model_chat_template_kwargs": '{"a": 1}'}, ChatDefaults({"a": 1})),
        ({"model_reasoning_format": "none"}, ChatDefaults(split_reasoning=False)),
        ({"model_reasoning_budget": "0"}, ChatDefaults(thinking_budget=0)),
    ],
)
def test_the_options_give_them(flags, defaults):
    assert chat_defaults(load(flags, environ={})) == defaults
