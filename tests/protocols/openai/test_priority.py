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
def test_nobody_pushes_ahead(kind, body, number):
    with pytest.raises(InvalidRequest, match="'priority'"):
        kind(Limits()).parse({**body, "priority": number})
