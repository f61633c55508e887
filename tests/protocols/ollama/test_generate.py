"""POST /api/generate: by the template, raw, with a gap, with an earlier talk in front."""

from __future__ import annotations

import pytest
from protocols.ollama.test_chat import EVERYTHING, GENERATE, lines, whole

from llamasrv.domain.events import Finished, FinishReason, Reasoning, Text, Usage
from llamasrv.domain.request import Message, TextPrompt
from llamasrv.errors import InvalidRequest, Unsupported


def parse(**body):
    return GENERATE.parse({"model": "m", "prompt": "Hello", **body})


def prompt(**body):
    return parse(**body)[0].prompts[0]


def test_a_prompt_is_a_conversation_of_one_turn():
    assert prompt().messages == (Message("user", "Hello"),)
    assert prompt(system="S").messages == (Message("system", "S"), Message("user", "Hello"))


def test_a_raw_prompt_is_as_it_is():
    assert prompt(raw=True) == TextPrompt("Hello")
    for more in ({"system": "S"}, {"context": [1]}):
        with pytest.raises(InvalidRequest, match="raw mode does not support template, system, or context"):
            parse(raw=True, **more)


def test_a_suffix_makes_a_gap():
    request, options = parse(suffix="end")
    assert request.prompts == (TextPrompt("Hello", "end"),) and options.insert
    assert prompt(suffix="") == prompt()


def test_an_earlier_talk_goes_before():
    assert prompt(context=[1, 2, 3]).before == (1, 2, 3)


@pytest.mark.parametrize(
    "field, value, param",
    [
        ("context", "x", "context"),
        ("context", [1, "x"], "context[1]"),
        ("context", [-1], "context[0]"),
        ("prompt", 3, "prompt"),
        ("raw", 1, "raw"),
        ("images", ["?"], "images[0]"),
    ],
)
def test_what_is_wrong_is_named(field, value, param):
    with pytest.raises(InvalidRequest) as caught:
        parse(**{field: value})
    assert caught.value.param == param


def test_another_template_is_refused():
    with pytest.raises(Unsupported):
        parse(template="{{ .Prompt }}")
    parse(template="")


def test_no_prompt_is_no_prompt():
    assert parse(prompt="")[0].prompts == () and GENERATE.parse({"model": "m"})[0].prompts == ()


ANSWER = [Reasoning(0, "Hm."), Text(0, "Hi "), Text(0, "there"), Finished(0, FinishReason.STOP), Usage(5, 0, 3)]


def test_the_answer_is_a_response_and_its_tokens_come_last():
    body = whole(ANSWER, GENERATE)
    assert (body["response"], body["thinking"]) == ("Hi there", "Hm.")
    found = lines(ANSWER, GENERATE)
    assert "".join(line["response"] for line in found) == "Hi there"
    assert body["context"] == found[-1]["context"] == [1, 2, *b"Hi there"]
    assert not any("context" in line for line in found[:-1])


def test_a_raw_answer_has_no_context_to_go_on_with():
    assert "context" not in whole(ANSWER, GENERATE, raw=True) and "context" not in whole(ANSWER, GENERATE, suffix="x")


def test_a_chat_has_none():
    assert "context" not in whole(EVERYTHING)
