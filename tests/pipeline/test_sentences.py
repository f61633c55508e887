"""Sentences of a text under way: whole at their ends, the first one early, without Markdown and code."""

from __future__ import annotations

import pytest

from llamasrv.pipeline.sentences import LEAST, MOST, Sentences, spoken_text

TEXT = (
    "Yes. It is 3.14 or so, as Dr. Who says! Is it? **Really**, it is _so_.\n\n## Next\n\n- one thing\n- `two` things\n\n"
    "```python\nprint('no. no.')\n```\nSee [the manual](https://example.org/a_b). 你好，世界。这是第二句话。"
)


def said(text, step=1000):
    sentences = Sentences()
    return [one for at in range(0, len(text), step) for one in sentences.feed(text[at : at + step])] + sentences.end()


def test_a_text_is_said_sentence_by_sentence():
    assert said(TEXT) == [
        "Yes.",
        "It is 3.14 or so, as Dr. Who says!",
        "Is it? Really, it is so.",
        "Next one thing",
        "two things",
        "See the manual.",
        "你好，世界。",
        "这是第二句话。",
    ]


@pytest.mark.parametrize("step", range(1, 9))
def test_all_is_said_wherever_the_text_is_cut(step):
    """Only where a sentence may end can depend on it: the character behind its mark has to be there."""
    assert "".join(said(TEXT, step)).replace(" ", "") == "".join(said(TEXT)).replace(" ", "")


def test_the_first_sentence_may_end_at_a_comma():
    sentences = Sentences()
    assert sentences.feed("Well, this is the beginning of a sentence, ") == [
        "Well, this is the beginning of a sentence,"
    ]
    assert sentences.feed("this is the rest of that sentence, and it goes on") == []


def test_short_ones_go_together_and_long_ones_are_cut_between_words():
    assert said("First one. A. B. C. D. And this is long enough.")[1:] == ["A. B. C. D. And this is long enough."]
    pieces = said("word " * 500)
    assert len(pieces) > 5 and all(LEAST <= len(piece) <= MOST for piece in pieces)
    assert " ".join(pieces) == ("word " * 500).strip()
    assert "".join(said("x" * 1000)) == "x" * 1000


def test_what_has_no_words_is_not_said():
    assert said("```\ncode. only.\n```") == said("... !!! \n\n---\n") == said("") == []
    assert said("``` open. for. ever.") == []


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("### *Title* ~~gone~~", "Title gone"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a b 1 2"),
        ("snake_case and 2 * 3 * 4", "snake_case and 2 * 3 * 4"),
        ("![a cat](x.png) at https://example.org/x.", "a cat at"),
        ("> quoted `code`", "quoted code"),
        ("🙂 --", ""),
    ],
)
def test_of_markdown_the_words_remain(text, spoken):
    assert spoken_text(text) == spoken
