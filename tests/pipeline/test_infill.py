"""Filling in: what becomes of the texts around a place."""

from __future__ import annotations

import pytest

from llamasrv.domain.request import InfillPrompt
from llamasrv.engine.backend.fake import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, FakeVocabulary
from llamasrv.errors import Unsupported
from llamasrv.pipeline.infill import encode_infill


class WithFiles(FakeVocabulary):
    fim_rep, fim_sep = 257, 258


def parts(tokens):
    before, middle, after = (tokens.index(mark) for mark in (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE))
    assert after == len(tokens) - 1
    return tokens[:before], bytes(tokens[before + 1 : middle]).decode(), bytes(tokens[middle + 1 : after]).decode()


def test_texts_stand_between_their_marks():
    assert parts(encode_infill(FakeVocabulary(), InfillPrompt("ab", "cd", "x"), 100)) == ([], "abx", "cd")


def test_marks_in_a_text_are_text():
    assert parts(encode_infill(FakeVocabulary(), InfillPrompt("<|fim_suffix|>", ""), 100))[1] == "<|fim_suffix|>"


def test_what_is_far_from_the_place_goes_first():
    extra, before, after = parts(encode_infill(FakeVocabulary(), InfillPrompt("a" * 500 + "b", "c" + "d" * 500), 100))
    assert before.endswith("b") and after.startswith("c") and not extra
    assert len(before) == 3 * len(after) and len(before) + len(after) <= 100 - 25


def test_a_short_end_leaves_its_room_to_the_beginning():
    _, before, after = parts(encode_infill(FakeVocabulary(), InfillPrompt("a" * 500, "cd"), 100))
    assert after == "cd" and len(before) == 100 - 25 - 3 - 2


def test_further_texts_come_first_each_with_its_name():
    prompt = InfillPrompt("ab", "cd", extra=(("f.py", "one"), ("g.py", "two")))
    extra, _, _ = parts(encode_infill(WithFiles(), prompt, 200))
    said = [bytes(extra[i + 1 : j]) for i, j in zip([0, 9, 18, 27], [9, 18, 27, None])]
    assert extra[0] == 257 and said == [b"project\n", b"f.py\none", b"g.py\ntwo", b"file\n"]


def test_further_texts_take_only_the_room_that_is_left():
    prompt = InfillPrompt("ab", "cd", extra=(("f", "x" * 1000),))
    assert len(encode_infill(FakeVocabulary(), prompt, 100)) == 75


@pytest.mark.parametrize("missing", ["fim_pre", "fim_suf", "fim_mid"])
def test_a_model_without_marks_cannot(missing):
    vocab = type("Without", (FakeVocabulary,), {missing: None})()
    with pytest.raises(Unsupported):
        encode_infill(vocab, InfillPrompt("a", "b"), 100)
