import math

import pytest

from llamasrv.engine.backend.fake import FakeVocabulary
from llamasrv.pipeline.decide.labels import LabelMaker

TAIL = "<|im_start|>assistant\n"


class Words(FakeVocabulary):
    """Bytes, and the words it is given as tokens of their own."""

    def __init__(self, *words):
        super().__init__()
        self.words = {word: 300 + i for i, word in enumerate(sorted(words, key=len, reverse=True))}

    def tokenize(self, text, *, add_special=False, parse_special=True):
        for word, token in self.words.items():
            before, found, after = text.partition(word)
            if found:
                return [*self.tokenize(before), token, *self.tokenize(after)]
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


def made(kind, count, *words):
    return LabelMaker(Words(*words), TAIL).make(kind, count)


def test_all_spellings_that_are_one_token_count():
    yes, no = made("predicate", 2, "yes", " Yes", "no").paths
    assert len(yes) == 2 and len(no) == 1 and all(len(path) == 1 for path in (*yes, *no))


def test_a_label_without_a_token_is_spelt_out():
    yes, no = made("predicate", 2, "no").paths
    assert yes == (tuple(b"yes"),) and len(no[0]) == 1


def test_a_token_is_never_part_of_two_labels():
    paths = [path for paths in made("choice", 26, "A", " A", "B").paths for path in paths]
    assert len(paths) == len(set(paths)) == 27


@pytest.mark.parametrize(("kind", "count", "first", "last"), [
    ("choice", 2, "A", "B"), ("choice", 26, "A", "Z"), ("choice", 27, "AA", "BA"), ("choice", 255, "AA", "JU"),
    ("score", 10, "0", "9"), ("score", 12, "00", "11"), ("score", 255, "000", "254"), ("predicate", 2, "yes", "no"),
])  # fmt: skip
def test_labels_by_kind_and_number(kind, count, first, last):
    texts = made(kind, count).texts
    assert (texts[0], texts[-1], len(set(texts))) == (first, last, count)


def test_pairs_that_are_one_token_are_taken_first():
    labels = made("choice", 27, "QX", "ZZ")
    assert labels.texts[:2] == ("QX", "ZZ")
    assert len(labels.paths[0][0]) == 1


def test_255_pairs_take_few_rows():
    assert len(made("choice", 255).reads) == 11


@pytest.mark.parametrize("words", [(), ("no",), ("yes", "no"), ("ye",)])
@pytest.mark.parametrize(("kind", "count"), [("predicate", 2), ("choice", 40), ("score", 101)])
def test_no_label_begins_like_another(kind, count, words):
    paths = sorted(path for paths in made(kind, count, *words).paths for path in paths)
    assert all(after[: len(before)] != before for before, after in zip(paths, paths[1:]))


def test_the_leaves_of_a_tree_and_what_is_outside_add_up_to_one():
    labels = made("score", 12)
    read = {node: dict.fromkeys(tokens, math.log(0.9 / len(tokens))) for node, tokens in labels.reads.items()}
    total = math.fsum(map(math.exp, labels.logprobs(read)))
    outside = 0.1 + 0.9 * 0.1  # at the root, and after each first digit
    assert total + outside == pytest.approx(1, abs=1e-9)


def test_what_was_never_read_is_impossible():
    labels = made("predicate", 2, "yes", "no")
    assert labels.logprobs({(): {}}) == [-math.inf, -math.inf]


def test_a_tail_that_grows_together_with_the_label_does_not_change_it():
    maker = LabelMaker(Words("\nA", "A"), "<|im_start|>assistant\n")
    assert maker.make("choice", 2).paths[0][0] == (Words("\nA", "A").words["A"],)
