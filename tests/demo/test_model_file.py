"""The file that is served: what it says about itself, and that llama.cpp computes what training computed."""

import llama_cpp
import numpy as np
import pytest
from demo.reference import Reference
from gguf import GGUFReader

from llamasrv.demo.corpus.chat import TEMPLATE, render

ASKED = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "user", "content": "Who are you?"}],
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "One word answers only."}, {"role": "user", "content": "The opposite of hot?"}],
    [{"role": "user", "content": "Count from 3 to 9."}],
    [{"role": "user", "content": "List three fruits."}],
]
# Rounding: llama.cpp also quantises what flows through the matrices, the reference does not.
TOLERANCE = 0.5


@pytest.fixture(scope="module")
def facts(model_file):
    fields = GGUFReader(model_file).fields
    return {name: field.contents() for name, field in fields.items() if not name.startswith("tokenizer.ggml.tok")}


@pytest.fixture(scope="module")
def reference(model_file):
    return Reference(model_file)


def test_it_is_small(model_file):
    assert model_file.stat().st_size <= 8_000_000


def test_it_says_that_it_is_a_demonstration(facts):
    assert "demo" in facts["general.name"]
    assert "demonstration model" in facts["general.description"]
    assert "llamasrv serve --model" in facts["general.description"]


def test_it_carries_the_template_that_it_was_trained_with(facts):
    assert facts["tokenizer.chat_template"] == TEMPLATE


def test_it_stops_at_the_end_of_a_turn_and_of_a_text(reader):
    vocabulary = llama_cpp.llama_model_get_vocab(reader.llama.model)
    for mark in (b"<|im_end|>", b"<|endoftext|>"):
        (token,) = reader.llama.tokenize(mark, add_bos=False, special=True)
        assert llama_cpp.llama_vocab_is_eog(vocabulary, token)


def test_it_has_marks_for_filling_in(facts):
    assert {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id"} <= set(facts)


@pytest.mark.parametrize("messages", ASKED, ids=lambda messages: messages[-1]["content"])
def test_greedy_is_what_training_computed(messages, reader, reference):
    """Each token that llama.cpp chose is the reference's best, or as good as."""
    prompt = render(messages)
    before = reader.llama.tokenize(prompt.encode(), add_bos=False, special=True)
    written, ended = reader.tokens(prompt)
    scores = reference.logits(before + written)[len(before) - 1 : -1]
    short = scores.max(-1) - scores[np.arange(len(written)), written]
    assert ended and short.max() < TOLERANCE
    assert (short == 0).mean() > 0.9
