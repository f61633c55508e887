"""Texts of very many special tokens are tokenised in pieces, to the same tokens."""

from __future__ import annotations

import random
import time

import pytest

from llamasrv.config import paths
from llamasrv.engine.backend.special_cuts import LONG, STRIDE, SpecialCuts

TURN = "<|im_start|>"


def test_pieces_are_the_text_and_begin_with_special_tokens():
    text = (TURN + "word " * 40) * 300
    pieces = list(SpecialCuts([TURN, "<|im_end|>"]).pieces(text))
    assert "".join(pieces) == text and len(pieces) > 20
    assert all(piece.startswith(TURN) for piece in pieces[1:])
    assert max(map(len, pieces)) < STRIDE + 300


def test_a_short_text_and_one_without_special_tokens_stay_whole():
    cuts = SpecialCuts([TURN])
    for text in (TURN * 100, "<|im" * 100_000, ""):
        assert list(cuts.pieces(text)) == [text]


@pytest.mark.parametrize(
    "specials, movable",
    [
        ((TURN, "x<|im_start|>y"), ()),  # a longer one could reach across
        ((TURN,), (TURN,)),  # takes the blanks in front of it
        ((), ()),
    ],
)
def test_it_does_not_cut_where_the_library_would_see_something_else(specials, movable):
    text = TURN * 2_000
    assert list(SpecialCuts(specials, movable).pieces(text)) == [text]


@pytest.fixture(scope="module")
def vocabulary():
    from llamasrv.engine.backend.context import open_model
    from llamasrv.engine.base.options import EngineOptions

    backend = open_model(paths.demo_model(), EngineOptions(context_cells=64, parallel=1), lambda share: True)
    yield backend.vocab
    backend.close()


@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("add_special", [True, False])
def test_the_tokens_are_those_of_the_text(vocabulary, add_special, parse_special):
    dice = random.Random(1)
    parts = (*vocabulary.specials, "  ", " a", "\n", "Köln", "<", "<|im", "word ", "\t")
    for _ in range(3):
        text = "".join(dice.choice(parts) for _ in range(6_000))
        assert len(text) > LONG
        options = {"add_special": add_special, "parse_special": parse_special}
        assert vocabulary.tokenize(text, **options) == vocabulary._tokenized(text, *options.values())


def test_very_many_special_tokens_take_time_in_proportion(vocabulary):
    """300,000 of them, 3.6 MB to /tokenize, kept a thread for more than the quarter of an hour."""

    def took(count):
        began = time.process_time()
        assert len(vocabulary.tokenize(f"{TURN} a" * count)) >= 2 * count
        return time.process_time() - began

    took(2_000)
    assert took(20_000) < 40 * took(2_000)
