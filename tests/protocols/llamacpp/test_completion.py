"""/completion and /infill: bodies to requests, events to bodies."""

from __future__ import annotations

import json

import pytest
from started import started

from llamasrv.domain.events import (
    Failed,
    Finished,
    FinishReason,
    Pace,
    PromptProgress,
    Text,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.domain.request import Content, InfillPrompt, MixedPrompt, TextPrompt, TokenPrompt
from llamasrv.errors import ContextTooLong, EngineFailure, InvalidRequest, Unsupported
from llamasrv.protocols.errors import llamacpp_body
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.llamacpp.completion import Infill, NativeCompletion

completion, infill = NativeCompletion(Limits()), Infill(Limits())
PARAMS = SamplingParams(temperature=0.5)


def reply(params=PARAMS, **body):
    request, options = completion.parse({"prompt": "ab", **body})
    return started(
        completion.reply(options),
        params=params,
        end_tokens=frozenset((2, 7)),
        num_prompt_of=lambda index: 4 + index,
        prompt_text=lambda index: "<s>ab",
    )


def whole(made, *events):
    made.fold(events)
    return json.loads(made.whole())


def streamed(made, *events):
    return [json.loads(chunk) for event in events for chunk in made.chunks([event])]


USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, prefill_seconds=0.5, decode_seconds=0.25)
END = Finished(0, FinishReason.STOP_STRING, "!", USAGE, 7)


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "prompt, expected",
    [
        ("a", (TextPrompt("a"),)),
        ([1, 2], (TokenPrompt((1, 2)),)),
        ([1, "a", 2], (MixedPrompt((1, "a", 2)),)),
        (["a", 1], (MixedPrompt(("a", 1)),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([[1, 2], "b", [1, "c"]], (TokenPrompt((1, 2)), TextPrompt("b"), MixedPrompt((1, "c")))),
        ({"prompt_string": "a"}, (TextPrompt("a"),)),
        ([{"prompt_string": "a"}, "b"], (TextPrompt("a"), TextPrompt("b"))),
    ],
)
def test_prompts_have_every_shape_of_llama_cpp(prompt, expected):
    assert completion.parse({"prompt": prompt})[0].prompts == expected


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, None]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": ["a", {"x": 1}]}, "prompt[1].prompt_string"),
        ({"prompt": ["a"] * 129}, "n"),
        ({"prompt": "a", "n_predict": -2}, "n_predict"),
        ({"prompt": "a", "n_cmpl": 0}, "n_cmpl"),
        ({"prompt": "a", "n_probs": 21}, "n_probs"),
        ({"prompt": "a", "stop": ["b", 5]}, "stop[1]"),
        ({"prompt": "a", "stop": 5}, "stop"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(body, param):
    with pytest.raises(InvalidRequest) as error:
        completion.parse(body)
    assert error.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        {"grammar_lazy": True},
    ],
)
def test_what_would_change_the_answer_and_cannot_be_done_is_refused(body):
    with pytest.raises(Unsupported):
        completion.parse({"prompt": "a", **body})


@pytest.mark.parametrize(("stop", "kept"), [("", ()), ([""], ()), (["", "b", ""], ("b",)), ("b", ("b",)), ([], ())])
def test_empty_stops_are_dropped_as_llama_cpp_drops_them(stop, kept):
    """Clients that send an empty list of theirs as [""] got a 400."""
    assert completion.parse({"prompt": "a", "stop": stop})[0].stop == kept


def test_fields_that_are_off_are_fine():
    body = {"adaptive_target": -1.0, "post_sampling_probs": False, "grammar_lazy": False, "grammar": "", "n_keep": 5}
    assert completion.parse({"prompt": "a", **body})[0].content is None


def test_numbers_move_into_their_bounds_where_llama_cpp_moves_them():
    sampling = completion.parse({"prompt": "a", "temperature": -1, "top_p": 1.5, "min_p": -0.1})[0].sampling
    assert sampling == {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0}


def test_what_is_absent_is_left_to_the_model():
    request = completion.parse({"prompt": "a"})[0]
    assert request.sampling == {} and request.max_tokens is None and request.logprobs is None


@pytest.mark.parametrize("given, expected", [(-1, None), (0, 0), (5, 5)])
def test_n_predict_bounds_the_answer(given, expected):
    assert completion.parse({"prompt": "a", "n_predict": given})[0].max_tokens == expected


def test_forms_of_the_answer_arrive():
    grammar = 'root ::= "a"'
    assert completion.parse({"prompt": "a", "grammar": grammar})[0].content == Content("gbnf", grammar)
    assert completion.parse({"prompt": "a", "json_schema": {"type": "object"}})[0].content.kind == "json"


def test_infill_takes_what_is_around_and_what_else_there_is():
    body = {
        "input_prefix": "a",
        "input_suffix": "b",
        "prompt": "c",
        "input_extra": [{"text": "t"}, {"text": "u", "filename": "f"}],
    }
    assert infill.parse(body)[0].prompts == (InfillPrompt("a", "b", "c", (("tmp", "t"), ("f", "u"))),)


@pytest.mark.parametrize(
    "body, param",
    [
        ({"input_suffix": "b"}, "input_prefix"),
        ({"input_prefix": "a"}, "input_suffix"),
        ({"input_prefix": "a", "input_suffix": "b", "prompt": ["c"]}, "prompt"),
        ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f"}]}, "input_extra[0].text"),
        ({"input_prefix": "a", "input_suffix": "b", "input_extra": ["t"]}, "input_extra[0]"),
    ],
)
def test_infill_refuses_by_name(body, param):
    with pytest.raises(InvalidRequest) as error:
        infill.parse(body)
    assert error.value.param == param


# ---------------------------------------------------------------- replies


def test_a_whole_reply_has_llama_cpps_fields():
    body = whole(reply(), Text(0, "one\ntwo", (), (5, 6)), END, USAGE)
    settings, times = body.pop("generation_settings"), body.pop("timings")
    assert body == {
        "index": 0,
        "content": "one\ntwo",
        "tokens": [],
        "id_slot": 7,
        "stop": True,
        "model": "m",
        "tokens_predicted": 3,
        "tokens_evaluated": 10,
        "prompt": "<s>ab",
        "has_new_line": True,
        "truncated": False,
        "stop_type": "word",
        "stopping_word": "!",
        "tokens_cached": 12,
    }
    assert settings["temperature"] == 0.5 and settings["n_predict"] == -1 and settings["stream"] is False
    assert times == {
        "cache_n": 4,
        "prompt_n": 6,
        "prompt_ms": 500,
        "prompt_per_token_ms": pytest.approx(83.33, abs=0.01),
        "prompt_per_second": 12,
        "predicted_n": 3,
        "predicted_ms": 250,
        "predicted_per_token_ms": 125,
        "predicted_per_second": 8,
    }


def test_ids_of_tokens_are_reported_on_request():
    assert whole(reply(return_tokens=True), Text(0, "a", (), (5, 6)), END, USAGE)["tokens"] == [5, 6]


@pytest.mark.parametrize(
    "reason, kind, truncated",
    [
        (FinishReason.STOP, "eos", False),
        (FinishReason.LENGTH, "limit", False),
        (FinishReason.CONTEXT, "limit", True),
        (FinishReason.CANCELLED, "none", False),
    ],
)
def test_why_it_ended_is_reported(reason, kind, truncated):
    body = whole(reply(), Finished(0, reason, None, USAGE), USAGE)
    assert (body["stop_type"], body["truncated"], body["stopping_word"]) == (kind, truncated, "")


def test_several_choices_are_a_list():
    ends = [Finished(i, FinishReason.STOP, None, USAGE) for i in range(2)]
    bodies = whole(reply(n_cmpl=2), Text(0, "a"), Text(1, "b"), *ends, USAGE)
    assert [(body["index"], body["content"]) for body in bodies] == [(0, "a"), (1, "b")]


ENTRY = TokenLogprob(9, b"\xc3", -0.5, (TopLogprob(9, b"\xc3", -0.5), TopLogprob(8, b"x", -float("inf"))))


def test_probabilities_are_reported_on_request():
    body = whole(reply(n_probs=2), Text(0, "?", (ENTRY,)), END, USAGE)
    top = [
        {"id": 9, "token": "\ufffd", "bytes": [195], "logprob": -0.5},
        {"id": 8, "token": "x", "bytes": [120], "logprob": -9999.0},
    ]
    assert body["completion_probabilities"] == [{**top[0], "top_logprobs": top}]


def test_a_banned_end_is_among_the_biases():
    """`ignore_eos` bans the tokens that end an answer; clients see that in `logit_bias`, null for minus infinity."""
    made = reply(SamplingParams(ignore_eos=True, logit_bias=LogitBias(((3, 1.5),))))
    biases = whole(made, END, USAGE)["generation_settings"]["logit_bias"]
    assert biases == [{"token": 3, "bias": 1.5}, {"token": 2, "bias": None}, {"token": 7, "bias": None}]


def test_probabilities_may_be_those_that_the_samplers_left():
    entry = TokenLogprob(5, b"a", 0.0, (TopLogprob(5, b"a", 0.0),))
    body = whole(reply(n_probs=1, post_sampling_probs=True), Text(0, "a", (entry,)), END, USAGE)
    told = {"id": 5, "token": "a", "bytes": [97], "prob": 1.0}
    assert body["completion_probabilities"] == [{**told, "top_probs": [told]}]
    assert body["generation_settings"]["post_sampling_probs"] is True


def test_a_stream_reports_the_prompts_progress_and_speed():
    made = reply(stream=True, return_progress=True, timings_per_token=True)
    begun, done = Usage(4, 4), Usage(10, 4, prefill_seconds=0.5)
    chunks = streamed(
        made,
        Pace(0, begun),
        PromptProgress(0, 10, 4, 4, 0.0),
        Pace(0, done),
        PromptProgress(0, 10, 4, 10, 0.5),
        Pace(0, Usage(10, 4, 1, prefill_seconds=0.5)),
        Text(0, "a", (), (5,)),
    )
    assert [chunk.get("prompt_progress") for chunk in chunks] == [
        {"total": 10, "cache": 4, "processed": 4, "time_ms": 0.0},
        {"total": 10, "cache": 4, "processed": 10, "time_ms": 500.0},
        None,
    ]
    assert [chunk["timings"]["prompt_n"] for chunk in chunks] == [0, 6, 6]
    assert [chunk["timings"]["predicted_n"] for chunk in chunks] == [0, 0, 1]
    assert not any(chunk["stop"] for chunk in chunks)


def test_only_the_fields_that_were_asked_for_are_sent():
    made = reply(response_fields=["content", "timings/prompt_n", "generation_settings/nothing"])
    assert whole(made, Text(0, "a"), END, USAGE) == {"content": "a", "timings/prompt_n": 6}


@pytest.mark.parametrize("fields", ["", [""], ["", ""]])
def test_an_empty_path_selects_nothing(fields):
    assert whole(reply(response_fields=fields), Text(0, "a"), END, USAGE) == {}


def test_an_empty_path_beside_others_selects_nothing_more():
    assert whole(reply(response_fields=["", "content"]), Text(0, "a"), END, USAGE) == {"content": "a"}


def test_a_stream_has_pieces_and_a_full_end():
    first, second, last = streamed(reply(stream=True), Text(0, "a", (), (5,)), Text(0, "\n", (), (6, 7)), END, USAGE)
    assert first == {
        "index": 0,
        "content": "a",
        "tokens": [5],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": 1,
        "tokens_evaluated": 4,
    }
    assert (second["tokens_predicted"], last["content"], last["stop"], last["has_new_line"]) == (3, "", True, True)
    assert last["timings"]["predicted_n"] == 3


def test_a_failure_amid_a_stream_is_reported_in_its_shape():
    made = reply(stream=True)
    assert streamed(made, Failed(0, EngineFailure("no"))) == [
        {"error": {"code": 500, "message": "no", "type": "server_error"}}
    ]
    assert made.failed


def test_a_prompt_that_is_too_long_says_how_long():
    error = json.loads(llamacpp_body(ContextTooLong(num_prompt=9, context=5, param="prompt")))["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 9, 5)
    assert error["message"].startswith("request (9 tokens) exceeds the available context size (5 tokens)")
