"""Errors from below name the field as it stood in the request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llamasrv.domain.request import Content
from llamasrv.errors import ContextTooLong, InvalidRequest
from llamasrv.protocols.common.names import named_for, prompt_in

FORM = SimpleNamespace(content=Content("json", {}, name="response_format"))
RESPONSES = prompt_in("input")


@pytest.mark.parametrize("neutral", ["prompt", "messages", "input"])
def test_the_prompt_is_what_the_endpoint_calls_it(neutral):
    """A template that refused a conversation named `messages` to clients that had sent `input`."""
    assert named_for(InvalidRequest("x", param=neutral), RESPONSES, None).param == "input"


def test_the_form_is_called_as_it_was_given():
    assert named_for(InvalidRequest("x", param="content"), RESPONSES, FORM).param == "response_format"


@pytest.mark.parametrize("param", [None, "model", "lora", "tools"])
def test_what_has_one_name_everywhere_keeps_it(param):
    error = InvalidRequest("x", param=param)
    assert named_for(error, RESPONSES, FORM) is error


def test_nothing_else_of_the_error_changes():
    error = ContextTooLong(num_prompt=9, context=8, param="prompt")
    named = named_for(error, RESPONSES, None)
    assert (named.message, named.code, named.num_prompt, error.param) == (error.message, error.code, 9, "prompt")
