"""Which beginnings of a prompt a client wants to be kept, and what the reply tells of it."""

import pytest

from llamasrv.domain.events import Usage
from llamasrv.domain.request import Pin
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.anthropic.reply import usage_body
from llamasrv.protocols.limits import Limits

ENDPOINT = MessagesEndpoint(Limits())
KEEP, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def block(text, control=None):
    return {"type": "text", "text": text, **({} if control is None else {"cache_control": control})}


def turn(*blocks, role="user"):
    return {"role": role, "content": list(blocks)}


def pins(*messages, **body):
    messages = list(messages or [{"role": "user", "content": "Hello"}])
    return ENDPOINT.parse({"model": "m", "max_tokens": 5, "messages": messages, **body})[0].pins


def test_nothing_is_kept_unless_it_is_asked_for():
    assert pins() == () and pins(turn(block("a")), system=[block("S")], cache_control=None) == ()


def test_a_breakpoint_keeps_what_is_before_it():
    talk = turn(block("a")), turn(block("b", KEEP), role="assistant"), turn(block("c"))
    assert pins(*talk) == (Pin(1, 300.0),)
    assert pins(*talk, system=[block("S", HOUR)]) == (Pin(3, 3600.0), Pin(1, 300.0))
    assert pins(*talk[::2], tools=[{**TOOL, "cache_control": HOUR}]) == (Pin(2, 3600.0),)


def test_that_of_the_request_keeps_the_whole_prompt():
    assert pins(cache_control=HOUR) == (Pin(0, 3600.0),)


@pytest.mark.parametrize(
    "control, param",
    [("5m", ""), ({"type": "lasting"}, ""), ({**KEEP, "ttl": "2h"}, ".ttl"), ({**KEEP, "ttl": 300}, ".ttl")],
)
def test_a_wrong_wish_is_refused_by_name(control, param):
    with pytest.raises(InvalidRequest) as caught:
        pins(turn(block("a"), block("b", control)))
    assert caught.value.param == f"messages[0].content[1].cache_control{param}"


def test_more_than_four_are_refused():
    with pytest.raises(InvalidRequest, match="maximum of 4"):
        pins(turn(*(block(str(number), KEEP) for number in range(5))))


def test_the_usage_reports_what_is_kept_and_for_how_long():
    body = usage_body(Usage(prompt_tokens=100, cached_tokens=20, pinned=((3600.0, 30), (300.0, 10))))
    assert body["cache_creation"] == {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 30}
    assert (body["input_tokens"], body["cache_creation_input_tokens"], body["cache_read_input_tokens"]) == (40, 40, 20)
