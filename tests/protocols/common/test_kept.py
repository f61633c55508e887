"""A shortened conversation survives its way to the client and back, and nothing else is read as one."""

from __future__ import annotations

import base64

import orjson
import pytest

from llamasrv.domain.request import MediaPart, Message, TextPart, Tool, ToolCall
from llamasrv.protocols.common.kept import LOST, seal_turns, unseal_turns
from llamasrv.protocols.limits import Limits

TURNS = (
    Message("developer", "Be brief"),
    Message("user", "Summary", added_tools=(Tool("f", "d", {"type": "object"}, True, "g"),), removed_tools=("h",)),
    Message("assistant", None, reasoning="so", tool_calls=(ToolCall("c1", "f", "{}"),)),
    Message("tool", "42", name="f", tool_call_id="c1"),
)


def test_turns_come_back_as_they_were():
    assert unseal_turns(seal_turns(TURNS), Limits()) == TURNS


def test_a_picture_becomes_a_sentence():
    turns = [Message("user", (TextPart("See:"), MediaPart("image", b"png")))]
    assert unseal_turns(seal_turns(turns), Limits()) == (Message("user", f"See:\n{LOST}"),)


def sealed(value):
    return "llamasrv-turns1." + base64.b64encode(orjson.dumps(value)).decode()


GOOD = orjson.loads(base64.b64decode(seal_turns(TURNS).partition(".")[2]))


@pytest.mark.parametrize(
    "text",
    [
        None, 7, "", "of another server", "llamasrv-turns1.!", "llamasrv-turns1.AAAA", sealed([]), sealed({}),
        sealed([1]), sealed([{**GOOD[0], "role": "root"}]), sealed([{**GOOD[0], "content": 1}]),
        sealed([{**GOOD[2], "calls": [["c1", "f"]]}]), sealed([{**GOOD[1], "added": [["f", "d", [], True, "g"]]}]),
        sealed([GOOD[3]]), sealed([{}]),
    ],
)  # fmt: skip
def test_what_was_changed_is_not_read(text):
    assert unseal_turns(text, Limits()) is None


def test_no_more_turns_than_a_request_may_have():
    assert unseal_turns(seal_turns(TURNS), Limits(messages=3)) is None
