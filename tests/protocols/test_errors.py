"""One error, in each dialect's own shape and words."""

from __future__ import annotations

import json

import pytest

from llamasrv.errors import (
    ContextTooLong,
    EngineFailure,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    QueueFull,
    Unauthorized,
    Unavailable,
)
from llamasrv.protocols.errors import ANTHROPIC, OLLAMA, OPENAI, dialect


def told(speaks, error):
    return speaks.status(error), json.loads(speaks.body(error, "req-1"))


@pytest.mark.parametrize(
    "error, status, kind",
    [
        (InvalidRequest("x"), 400, "invalid_request_error"),
        (Unauthorized("x"), 401, "authentication_error"),
        (NotFound("x"), 404, "not_found_error"),
        (QueueFull("x"), 529, "overloaded_error"),
        (Unavailable("x"), 529, "overloaded_error"),
        (EngineFailure("x"), 500, "api_error"),
    ],
)
def test_anthropics_errors_have_a_type_and_the_requests_id(error, status, kind):
    body = {"type": "error", "error": {"type": kind, "message": "x"}, "request_id": "req-1"}
    assert told(ANTHROPIC, error) == (status, body)


def test_a_prompt_that_is_too_long_is_reported_in_the_words_that_clients_look_for():
    error = ContextTooLong(num_prompt=300, context=200)
    assert told(ANTHROPIC, error)[1]["error"]["message"] == "prompt is too long: 300 tokens > 200 maximum"
    assert "maximum context length is 200 tokens" in told(OPENAI, error)[1]["error"]["message"]
    assert told(OPENAI, error)[1]["error"]["code"] == "context_length_exceeded"


def test_ollamas_errors_are_a_string():
    assert told(OLLAMA, ModelNotFound("Model 'x' not found")) == (404, {"error": "model 'x' not found"})
    assert told(OLLAMA, QueueFull("busy")) == (503, {"error": "busy"})


def test_a_path_decides_the_dialect_and_elsewhere_the_client():
    assert dialect("/v1/messages/count_tokens") is dialect("/v1/messages") is ANTHROPIC
    assert dialect("/api/chat") is OLLAMA
    assert dialect("/v1/models") is dialect("/v1/chat/completions") is OPENAI
    assert dialect("/v1/models", anthropic=True) is ANTHROPIC
