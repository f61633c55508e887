"""Bodies of llama.cpp's small routes."""

from __future__ import annotations

import json

import pytest

from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.llamacpp.props import params_body
from llamasrv.protocols.llamacpp.slots import MAX_BIASES_SHOWN, slots_body
from llamasrv.protocols.llamacpp.tokenize import Detokenize, Tokenize, Tokenizing, content_body, tokens_body

tokenizing = Tokenizing(Limits())


def test_tokenize_has_llama_cpps_defaults():
    assert tokenizing.parse_tokenize({"content": "a", "x": 1}) == Tokenize(("a",), None, False, True, False)


def test_tokenize_needs_a_text():
    for body in ({}, {"content": 3}, {"content": {}}):
        with pytest.raises(InvalidRequest) as caught:
            tokenizing.parse_tokenize(body)
        assert caught.value.param == "content"


def test_tokenize_takes_texts_and_ids_in_turn():
    assert tokenizing.parse_tokenize({"content": ["a", 5, ""]}).content == ("a", 5, "")


@pytest.mark.parametrize("part", [True, None, 1.5, [], -1, 2**31])
def test_tokenize_takes_nothing_else_among_them(part):
    with pytest.raises(InvalidRequest) as caught:
        tokenizing.parse_tokenize({"content": ["a", part]})
    assert caught.value.param == "content[1]"


@pytest.mark.parametrize(
    "tokens, param", [("x", "tokens"), ([True], "tokens[0]"), ([1, -1], "tokens[1]"), ([2**31], "tokens[0]")]
)
def test_detokenize_needs_ids(tokens, param):
    with pytest.raises(InvalidRequest) as caught:
        tokenizing.parse_detokenize({"tokens": tokens})
    assert caught.value.param == param


def test_detokenize_of_nothing_is_nothing():
    assert tokenizing.parse_detokenize({"tokens": []}) == Detokenize([])


def test_pieces_that_are_no_text_are_bytes():
    reply = json.loads(tokens_body([0, 1], [b"a", b"\xc3"]))
    assert reply == {"tokens": [{"id": 0, "piece": "a"}, {"id": 1, "piece": [195]}]}


def test_a_text_is_always_valid():
    assert json.loads(content_body(b"a\xc3")) == {"content": "a\ufffd", "prompt": "a\ufffd"}


@pytest.mark.parametrize(
    "body, special",
    [
        ({"prompt": "a"}, True),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"prompt": "a", "add_special": False}, False),
        ({"content": "a", "add_special_tokens": True}, True),
    ],
)
def test_tokenize_takes_vllms_names(body, special):
    asked = tokenizing.parse_tokenize(body)
    assert (asked.content, asked.add_special, asked.with_count) == (("a",), special, "prompt" in body)


def test_tokenize_takes_one_text_by_one_name():
    for body in ({"content": "a", "prompt": "b"}, {"prompt": ["a"]}):
        with pytest.raises(InvalidRequest) as caught:
            tokenizing.parse_tokenize(body)
        assert caught.value.param == "prompt"


def test_parameters_have_llama_cpps_names_and_values():
    body = params_body(SamplingParams(logit_bias=LogitBias(((3, float("-inf")),))), max_tokens=7)
    assert (body["seed"], body["n_predict"], body["logit_bias"]) == (
        4294967295,
        7,
        [{"token": 3, "bias": float("-inf")}],
    )


def test_free_slots_fill_up_the_number():
    running = {
        "id": 9,
        "lane": 7,
        "slot": 2,
        "num_prompt": 10,
        "num_computed": 12,
        "num_reused": 4,
        "num_generated": 3,
        "max_tokens": 5,
        "params": SamplingParams(),
    }
    slots = json.loads(slots_body([running], total=3, context=64))
    assert [(slot["id"], slot["is_processing"]) for slot in slots] == [(0, False), (1, False), (2, True)]
    busy = slots[2]
    assert (busy["n_prompt_tokens_processed"], busy["n_prompt_tokens_cache"]) == (10, 4)
    assert busy["next_token"] == [{"has_next_token": True, "n_remain": 2, "n_decoded": 3}]


def test_a_slot_shows_few_of_many_biases():
    """All slots are written on the hub: with 10,000 biases each that took half a second."""
    biases = LogitBias((token, 1.0) for token in range(10_000))
    running = {
        "id": 9,
        "lane": 7,
        "slot": 0,
        "num_prompt": 10,
        "num_computed": 12,
        "num_reused": 4,
        "num_generated": 3,
        "max_tokens": 5,
        "params": SamplingParams(logit_bias=biases),
    }
    (slot,) = json.loads(slots_body([running], total=1, context=64))
    assert len(slot["params"]["logit_bias"]) == MAX_BIASES_SHOWN
