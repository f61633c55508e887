"""What a client adds to a response that is being made: what may be added, and where it goes."""

from __future__ import annotations

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses.steering import Steer, check_steer, required_input, steered_input

SAID = {"type": "message", "role": "user", "content": "Mind the river"}


@pytest.mark.parametrize(
    "input, place",
    [
        (None, "input"),
        ("", "input"),
        ([], "input"),
        ({}, "input"),
        ([5], "input[0]"),
        ([SAID, {"role": "system", "content": "x"}], "input[1]"),
        ([SAID, {"type": "reasoning", "summary": []}], "input[1]"),
        ([SAID, {"role": "user", "content": [{"type": "input_taste"}]}], "input[1].content[0].type"),
    ],
)
def test_only_the_user_steers(input, place):
    with pytest.raises(InvalidRequest) as caught:
        check_steer(Steer("resp_1", input), Limits())
    assert caught.value.param == place


@pytest.mark.parametrize("input", ["Mind", [SAID], [{"role": "user", "content": "x"}]])
def test_texts_and_messages_of_the_user_steer(input):
    check_steer(Steer("resp_1", input), Limits())


def test_it_is_known_which_outputs_are_owed():
    """They were named by the type of their call, and a search's call has another name for its output."""
    items = [
        {"type": "function_call", "call_id": "a", "name": "look"},
        {"type": "function_call_output", "call_id": "a", "output": ""},
        {"type": "tool_search_call", "call_id": None, "execution": "server"},
        {"type": "function_call", "call_id": "b", "name": "look"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch"},
        {"type": "shell_call", "call_id": "d"},
        {"type": "tool_search_call", "call_id": "e", "execution": "client"},
    ]
    assert required_input(items) == [
        {"type": "function_call_output", "call_id": "b", "name": "look"},
        {"type": "custom_tool_call_output", "call_id": "c"},
        {"type": "shell_call_output", "call_id": "d"},
        {"type": "tool_search_output", "call_id": "e", "execution": "client"},
    ]


def test_what_was_steered_goes_between_the_owed_outputs_and_the_rest():
    """It went behind all of it."""
    output, rest = {"type": "function_call_output", "call_id": "b", "output": "x"}, {"role": "user", "content": "Go on"}
    steers = [Steer("resp_1", "one"), Steer("resp_1", [SAID])]
    one = {"role": "user", "content": "one"}
    assert steered_input(steers, [rest, output], [{"call_id": "b"}]) == [output, one, SAID, rest]
    assert steered_input(steers, "Go on", []) == [one, SAID, rest]
