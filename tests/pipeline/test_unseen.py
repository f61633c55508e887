"""What tools returned, for models that cannot take it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from llamasrv.domain.request import ChatPrompt, MediaPart, Message, TextPart, TextPrompt, ToolCall
from llamasrv.pipeline.unseen import SENTENCES, described


@dataclass
class Projector:
    vision: bool = False
    audio: bool = False


PICTURE, SOUND = MediaPart("image", b"png"), MediaPart("audio", b"wav")
SEEN, HEARD = TextPart(SENTENCES["image"]), TextPart(SENTENCES["audio"])
ASKED = Message("user", "Look", tool_calls=())
CALLED = Message("assistant", tool_calls=(ToolCall("a", "read", "{}"), ToolCall("b", "read", "{}")))


def moved(id):
    return MediaPart("image", b"png", result_of=id)


def told(*messages, projector=None):
    return described(ChatPrompt(messages), projector).messages


def test_a_picture_in_a_result_becomes_a_sentence_in_its_place():
    result = Message("tool", (TextPart("before"), PICTURE, TextPart("behind")), tool_call_id="a")
    *_, made = told(ASKED, CALLED, result)
    assert made.content == (TextPart("before"), SEEN, TextPart("behind"))


def test_a_picture_that_moved_behind_the_results_goes_back_to_its_own():
    results = [Message("tool", "", tool_call_id="a"), Message("tool", "text", tool_call_id="b")]
    messages = told(ASKED, CALLED, *results, Message("user", (moved("a"), moved("b"))))
    assert [message.content for message in messages[2:]] == [(SEEN,), (TextPart("text"), SEEN)], "no empty turn is left"


def test_an_id_that_comes_again_means_the_latest_call():
    turn = (CALLED, Message("tool", "", tool_call_id="a"))
    messages = told(ASKED, *turn, *turn, Message("user", (moved("a"),)))
    assert [message.content for message in messages if message.role == "tool"] == ["", (SEEN,)]


def test_a_users_own_picture_beside_it_stays():
    """The same bytes: a text in its place would hide from the user that nobody saw it."""
    messages = told(ASKED, CALLED, Message("tool", "", tool_call_id="a"), Message("user", (moved("a"), PICTURE)))
    assert messages[-1].content == (PICTURE,) and messages[-2].content == (SEEN,)


@pytest.mark.parametrize(
    "projector, content",
    [
        (None, (SEEN, HEARD)),
        (Projector(vision=True), (PICTURE, HEARD)),
        (Projector(audio=True), (SEEN, SOUND)),
        (Projector(vision=True, audio=True), (PICTURE, SOUND)),
    ],
)
def test_only_what_the_model_cannot_take_is_replaced(projector, content):
    *_, made = told(ASKED, CALLED, Message("tool", (PICTURE, SOUND), tool_call_id="a"), projector=projector)
    assert made.content == content


def test_a_prompt_without_any_is_left_alone():
    for prompt in (TextPrompt("x"), ChatPrompt((ASKED, Message("user", (PICTURE,))))):
        assert described(prompt, None) is prompt
