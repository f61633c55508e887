"""`priority`, as vLLM's clients send it: standing back is everybody's right, pushing ahead nobody's."""

from __future__ import annotations

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.llamacpp.completion import NativeCompletion
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.openai.completions import Completions
from llamasrv.protocols.openai.responses import Responses

endpoints = pytest.mark.parametrize(
    "kind, body",
    [
        (ChatCompletions, {"messages": [{"role": "user", "content": "x"}]}),
        (Completions, {"prompt": "x"}),
        (Responses, {"input": "x"}),
        (NativeCompletion, {"prompt": "x"}),
    ],
)


@endpoints
def test_a_larger_number_stands_back(kind, body):
    parse = kind(Limits()).parse
    assert [parse({**body, "priority": number})[0].priority for number in (0, 1, 100)] == [0, -1, -100]
    assert parse(body)[0].priority == 0


@endpoints
@pytest.mark.parametrize("number", [-1, 101, "high"])
def test_no_request_jumps_the_queue(kind, body, number):
    with pytest.raises(InvalidRequest, match="'priority'"):
        kind(Limits()).parse({**body, "priority": number})


@pytest.mark.parametrize(
    "kind, body", [(ChatCompletions, {"messages": [{"role": "user", "content": "x"}]}), (Responses, {"input": "x"})]
)
@pytest.mark.parametrize(
    "tier, priority, told",
    [("auto", 0, "default"), ("priority", 0, "default"), ("fast", 0, "default"), ("flex", -100, "flex")],
)
def test_a_tier_is_answered_as_it_is_served(kind, body, tier, priority, told):
    request, options = kind(Limits()).parse({**body, "service_tier": tier})
    assert request.priority == priority
    assert (options.service_tier if kind is ChatCompletions else options.shown["service_tier"]) == told
    assert kind(Limits()).parse({**body, "service_tier": tier, "priority": 3})[0].priority == -3


def background(window, **more):
    body = {"input": "x", "background": True, "background_options": {"completion_window": window}, **more}
    return Responses(Limits()).parse(body, timeout=9.0)[0]


def test_background_work_with_hours_is_done_as_batches_are():
    assert [background(window).deferrable for window in ("soonest", "2h", "8h")] == [False, True, True]
    assert background("8h").timeout is None and background("soonest").timeout == 9.0


@pytest.mark.parametrize(
    "window, more",
    [("1h", {}), ("2h", {"background": False}), ("8h", {"stream": True}), ("8h", {"service_tier": "flex"})],
)
def test_a_window_that_cannot_be_is_refused(window, more):
    with pytest.raises(InvalidRequest) as caught:
        background(window, **more)
    assert caught.value.param == "background_options.completion_window"
