"""Errors of the Messages routes, in the words that Claude Code looks for."""

from __future__ import annotations

import json
import re

import pytest

from llamasrv.errors import ContextTooLong, InvalidMedia, InvalidRequest, ModelNotFound
from llamasrv.protocols.anthropic.words import WORDS
from llamasrv.protocols.errors import ANTHROPIC, OPENAI

LOOKED_FOR = {
    "image": "Could not process image",
    "encrypted pdf": "The PDF specified is password protected",
    "damaged pdf": "The PDF specified was not valid",
    "pdf pages": r"maximum of \d+ PDF pages",
    "model": '"model: ',
    "unexpected tool_result": "unexpected `tool_use_id` found in `tool_result`",
    "unanswered tool_use": "`tool_use` ids were found without `tool_result` blocks immediately after",
    "thinking signature": "(?i)invalid `?signature`? in `?thinking`? block",
}
"""As regular expressions, on the body as it is sent."""

FIGURES = {"pdf pages": (20,), "model": ("some-model",)}


def body(dialect, error):
    return dialect.body(error, "req").decode()


def test_the_table_is_whole():
    assert LOOKED_FOR.keys() == WORDS.keys()


@pytest.mark.parametrize("about", LOOKED_FOR)
def test_its_clients_words_come_first_and_ours_behind(about):
    error = InvalidRequest("it is wrong", about=(about, *FIGURES.get(about, ())))
    assert re.search(LOOKED_FOR[about], body(ANTHROPIC, error))
    assert json.loads(body(ANTHROPIC, error))["error"]["message"].endswith(". it is wrong")
    assert json.loads(body(OPENAI, error))["error"]["message"] == "it is wrong"


def test_the_words_outlive_copies_of_an_error():
    error = InvalidMedia("it is wrong", about=("image",)).but(param="messages")
    assert json.loads(body(ANTHROPIC, error))["error"]["message"] == "Could not process image. it is wrong"


def test_a_prompt_that_is_too_long_says_how_long():
    found = re.search(
        r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)",
        body(ANTHROPIC, ContextTooLong(num_prompt=9, context=5)),
    )
    assert found.groups() == ("9", "5")


def test_names_with_braces_do_no_harm():
    assert "{0.__class__}" in body(ANTHROPIC, ModelNotFound("x", about=("model", "{0.__class__}")))
