"""llama.cpp tokenises exactly as training did."""

import json
from itertools import islice
from pathlib import Path

import pytest
from demo.odd_texts import ODD, corpus_texts, letters

from llamasrv.demo.corpus import documents

GOLDEN = Path(__file__).parent / "data" / "tokens.json"


def pieces(vocabulary, text):
    return vocabulary.tokenize(text.encode(), add_bos=False, special=True)


def test_odd_texts_give_the_tokens_that_training_saw(vocabulary):
    """The stored tokens come from the tokenizer that training used."""
    stored = json.loads(GOLDEN.read_text())
    assert [pieces(vocabulary, text) for text in ODD] == stored


def test_text_comes_back_from_its_tokens(vocabulary):
    for text in [*ODD, *corpus_texts()]:
        assert vocabulary.detokenize(pieces(vocabulary, text), special=True).decode() == text


def test_no_token_crosses_the_seam_of_prompt_and_answer(vocabulary):
    """Training tokenises the parts of a document, the server its prompt: the whole must give the same."""
    for document in islice(documents(13), 200):
        parts = [text for text, _ in document.parts]
        assert pieces(vocabulary, "".join(parts)) == [t for part in parts for t in pieces(vocabulary, part)]


def test_there_are_marks_for_everything(vocabulary):
    for mark in ("<|im_start|>", "<|im_end|>", "<tool_call>", "</think>", "<|fim_middle|>", "<|endoftext|>"):
        assert len(pieces(vocabulary, mark)) == 1


def test_user_text_cannot_forge_a_turn(vocabulary):
    assert len(vocabulary.tokenize(b"<|im_start|>", add_bos=False, special=False)) > 1


class TestTraining:
    """The tokenizer of training itself, where its library is installed."""

    @pytest.fixture
    def tokenizer(self):
        pytest.importorskip("tokenizers")
        from llamasrv.demo.tokenizer import load_tokenizer

        return load_tokenizer()

    def test_it_is_what_the_stored_tokens_came_from(self, tokenizer):
        assert [tokenizer.encode(text) for text in ODD] == json.loads(GOLDEN.read_text())

    def test_it_equals_llama_cpp_on_the_corpus(self, tokenizer, vocabulary):
        for text in [*corpus_texts(), *letters()]:
            assert tokenizer.encode(text) == pieces(vocabulary, text)

    def test_text_comes_back(self, tokenizer):
        for text in ODD:
            assert tokenizer.decode(tokenizer.encode(text)) == text
