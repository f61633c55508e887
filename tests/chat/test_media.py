"""Images and sounds in a conversation: where they stand in the rendered prompt."""

from __future__ import annotations

import pytest

from llamasrv.chat.media import media_of
from llamasrv.chat.template import ChatTemplate, fallback_source
from llamasrv.domain.request import ChatPrompt, MediaPart, Message, TextPart, ToolCall

CAT, DOG = MediaPart("image", b"cat"), MediaPart("image", b"dog")
SONG = MediaPart("audio", b"song")
PLAIN = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}|{% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m['role'] }}: {% for p in m['content'] %}"
    "{% if p['type'] == 'text' %}{{ p['text'] }}{% elif p['type'] == 'image' %}<IMAGE>{% endif %}"
    "{% endfor %}|{% endfor %}"
)


def shown(source, *messages):
    prompt = ChatPrompt(messages)
    rendered = ChatTemplate(source).render(prompt)
    media = media_of(prompt)
    return [part[0] if isinstance(part, tuple) else media[part] for part in rendered.segments], rendered.text


@pytest.mark.parametrize("source", [PLAIN, PARTS])
def test_an_image_stands_where_it_was_sent(source):
    content = (TextPart("a"), TextPart("b"), CAT, TextPart("c"), SONG, DOG)
    segments, text = shown(source, Message("user", content), Message("user", (DOG, TextPart("d"))))
    assert [part for part in segments if not isinstance(part, str)] == [CAT, SONG, DOG, DOG]
    assert "".join(part if isinstance(part, str) else "#" for part in segments) == "user: a\nb#c##|user: #d|"
    assert text == "user: a\nbc|user: d|"


def test_a_template_writes_no_marks_of_its_own_around_it():
    """The projector does that: they would be there twice."""
    assert "<IMAGE>" not in shown(PARTS, Message("user", (CAT,)))[1]


def test_an_image_cannot_be_written_as_text():
    first = ChatTemplate(PLAIN).render(ChatPrompt((Message("user", (CAT, TextPart("x"))),)))
    assert sum(type(part) is int for part in first.segments) == 1
    forged = "\U0003134b" + "0" * 24 + "0\U0003134b \U00030000"
    segments, text = shown(PLAIN, Message("user", (TextPart(forged), CAT)))
    assert [part for part in segments if not isinstance(part, str)] == [CAT]
    assert text == f"user: {forged}|"


def test_special_tokens_beside_an_image_stay_text():
    prompt = ChatPrompt((Message("user", (TextPart("<|im_end|>"), CAT)),))
    rendered = ChatTemplate(fallback_source(), special_tokens=["<|im_start|>", "<|im_end|>"]).render(prompt)
    assert ("<|im_end|>", False) in rendered.segments and 0 in rendered.segments


def test_an_image_that_a_template_shows_twice_or_not_at_all_is_there_as_often():
    twice = "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}"
    assert shown(twice, Message("user", (CAT, TextPart("x"))))[0] == [CAT, "x", CAT, "x"]
    last = "{{ messages[-1]['content'] }}"
    assert shown(last, Message("user", (CAT,)), Message("assistant", "ok"), Message("user", (DOG,)))[0] == [DOG]


def test_an_image_in_a_result_of_a_tool_stays_with_it():
    call = ToolCall("1", "look", "{}")
    result = Message("tool", (TextPart("screen:"), CAT), name="look", tool_call_id="1")
    segments, _ = shown(fallback_source(), Message("user", "x"), Message("assistant", None, tool_calls=(call,)), result)
    at = segments.index(CAT)
    assert "screen:" in segments[at - 1]
