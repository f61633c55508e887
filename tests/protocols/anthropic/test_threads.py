"""Message threads: what a turn keeps, and what a request becomes that goes on with one."""

from __future__ import annotations

import json

import pytest
from started import started

from llamasrv.domain.events import Finished, FinishReason, Reasoning, Text, ToolCallArguments, ToolCallStart, Usage
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.anthropic.threads import ThreadChanged, ThreadContinued, Turn, previous_of
from llamasrv.protocols.errors import anthropic_body
from llamasrv.protocols.limits import Limits

ENDPOINT = MessagesEndpoint(Limits(messages=6))
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
CREATE = {"type": "create"}
GO_ON = {"type": "continue", "previous_message_id": "msg_1"}
CALL = [
    Reasoning(0, "Hm."),
    Text(0, "Let me look."),
    ToolCallStart(0, 0, "call_1", "f"),
    ToolCallArguments(0, 0, "{}"),
    Finished(0, FinishReason.TOOL_CALLS),
    Usage(1, 1),
]
RESULT = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "21"}]}]


def parse(earlier=(), **body):
    return ENDPOINT.parse({"model": "m", "max_tokens": 5, "messages": HELLO, **body}, earlier=earlier)


def turn_of(events, earlier=(), *, stream=False, **body):
    """What is kept of a request and its reply, after a store's round trip."""
    kept = {}
    options = parse(earlier, **body)[1]
    reply = started(ENDPOINT.reply(options, keep=lambda id, turn: kept.update({id: turn})))
    if stream:
        said = b"".join(chunk for at in range(len(events)) for chunk in reply.chunks(events[at : at + 1]))
    else:
        reply.fold(events)
        said = reply.whole()
    ((id, turn),) = kept.items()
    assert id.encode() in said and len(id) == 4 + 48
    return Turn.unpack(turn.pack())


def roles(request):
    return [message.role for message in request.prompts[0].messages]


def test_without_a_thread_nothing_is_kept():
    assert parse()[1].turn is None and parse(thread=None)[1].turn is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_goes_on_where_its_thread_was(stream):
    first = turn_of(CALL, stream=stream, thread=CREATE, system="Be brief.", tools=[TOOL])
    request, options = parse([first], thread=GO_ON, messages=RESULT)
    assert roles(request) == ["system", "user", "assistant", "tool"]
    called, result = request.prompts[0].messages[2:]
    assert (called.reasoning, called.content, called.tool_calls[0].name) == ("Hm.", "Let me look.", "f")
    assert (result.name, result.tool_call_id) == ("f", "toolu_1")
    assert [tool.name for tool in request.prompts[0].tools] == ["f"]
    assert options.turn.messages == RESULT and options.turn.fixed == first.fixed


def test_a_stream_keeps_what_a_whole_reply_keeps():
    assert turn_of(CALL, stream=True, thread=CREATE).content == turn_of(CALL, thread=CREATE).content


def test_a_thread_that_is_continued_is_the_conversation_sent_at_once():
    first = turn_of([Text(0, "Hi."), Finished(0, FinishReason.STOP), Usage(1, 1)], thread=CREATE)
    more = [{"role": "user", "content": "More"}]
    threaded = parse([first], thread=GO_ON, messages=more)[0]
    spoken = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}, *more]
    assert threaded.prompts == parse(messages=spoken)[0].prompts


def test_an_answer_that_the_client_had_begun_is_one_message():
    begun = [*HELLO, {"role": "assistant", "content": "Once "}]
    kept = turn_of([Text(0, "upon"), Finished(0, FinishReason.LENGTH), Usage(1, 1)], thread=CREATE, messages=begun)
    assert kept.conversation == [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Once upon"}]}]


def test_what_the_thread_was_created_with_may_be_repeated_but_not_changed():
    first = turn_of(CALL, thread=CREATE, system="S", tools=[TOOL])
    assert parse([first], thread=GO_ON, messages=RESULT, system="S", tools=[TOOL])
    for changed in ({"system": "T"}, {"tools": []}):
        with pytest.raises(ThreadChanged) as caught:
            parse([first], thread=GO_ON, messages=RESULT, **changed)
        error = json.loads(anthropic_body(caught.value))["error"]
        assert (
            error["details"] == {"error_code": "thread_fingerprint_mismatch"}
            and next(iter(changed)) in error["message"]
        )


def test_a_response_is_continued_once():
    first = turn_of(CALL, thread=CREATE)._replace(continued=True)
    with pytest.raises(ThreadContinued) as caught:
        parse([first], thread=GO_ON, messages=RESULT)
    assert json.loads(anthropic_body(caught.value))["error"]["details"] == {"error_code": "thread_already_continued"}


@pytest.mark.parametrize(
    "thread, param",
    [
        ("create", "thread"),
        ({}, "thread.type"),
        ({"type": "fork"}, "thread.type"),
        ({"type": "continue"}, "thread.previous_message_id"),
        ({"type": "continue", "previous_message_id": 3}, "thread.previous_message_id"),
    ],
)
def test_a_thread_that_is_wrong_is_named(thread, param):
    with pytest.raises(InvalidRequest) as caught:
        parse(thread=thread)
    assert caught.value.param == param and previous_of({"thread": thread}) is None


def test_what_is_wrong_in_a_turn_is_named_as_it_was_sent():
    first = turn_of(CALL, thread=CREATE)
    for messages, param in (
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}],
            "messages[0].content[0].tool_use_id",
        ),
        ([], "messages"),
        (HELLO * 5, "messages"),
        (None, "messages"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse([first], thread=GO_ON, messages=messages)
        assert caught.value.param == param
