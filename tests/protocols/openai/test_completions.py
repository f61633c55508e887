"""POST /v1/completions without a socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from protocols.openai.wire_client import add_up_completions, whole_completions
from started import started

from llamasrv.domain.events import Failed, Finished, FinishReason, Text, TokenLogprob, TopLogprob, Usage
from llamasrv.domain.request import Content, GenerateRequest, TextPrompt, TokenPrompt
from llamasrv.errors import EngineFailure, InvalidRequest
from llamasrv.protocols.common.schema import rows
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.completions import (
    Completions,
    CompletionsOptions,
    CompletionsReply,
    CompletionsSchema,
)

DATA = Path(__file__).parent / "data"
endpoint = Completions(Limits(prompts=4, choices=8))


def parse(**body):
    return endpoint.parse({"prompt": "Once", **body})


def asked(**body):
    return parse(**body)[0]


def refused(**body):
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    return caught.value


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    "prompt, prompts",
    [
        ("Once", (TextPrompt("Once"),)),
        ("", (TextPrompt(""),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], (TokenPrompt((1, 2)),)),
        ([[1], [2, 3]], (TokenPrompt((1,)), TokenPrompt((2, 3)))),
        (None, (TextPrompt(""),)),
    ],
)
def test_a_prompt_is_text_or_tokens_one_or_several(prompt, prompts):
    assert asked(prompt=prompt).prompts == prompts


def test_it_reads_the_least_body():
    assert endpoint.parse({}) == (GenerateRequest(prompts=(TextPrompt(""),)), CompletionsOptions())


def test_null_is_absent():
    everything = {row.field: None for row in rows(CompletionsSchema) if row.field != "prompt"}
    assert parse(**everything) == parse()


def test_options_are_read():
    request, options = parse(
        prompt=["a", "b"], n=2, best_of=3, echo=True, logprobs=2, max_tokens=0, stop="x", temperature=0.5
    )
    assert (request.n, request.best_of, request.echo, request.logprobs, request.max_tokens) == (2, 3, True, 2, 0)
    assert request.stop == ("x",) and request.sampling == {"temperature": 0.5}
    assert options == CompletionsOptions(False, False, True, 4)


def test_a_suffix_belongs_to_every_prompt():
    assert asked(prompt=["a", "b"], suffix="z").prompts == (TextPrompt("a", "z"), TextPrompt("b", "z"))


@pytest.mark.parametrize(
    "body, param",
    [
        ({"prompt": 3}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": True}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1, 2**31]}, "prompt[1]"),
        ({"prompt": [1, 1e300]}, "prompt[1]"),
        ({"prompt": [[1], [2, None]]}, "prompt[1][1]"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": [None]}, "prompt[0]"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 3}, "n"),
        ({"best_of": 9}, "best_of"),
        ({"prompt": ["a"] * 4, "best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 10**9}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": 3}, "suffix"),
        ({"suffix": "x", "echo": True}, "suffix"),
        ({"suffix": "x", "prompt": [1]}, "suffix"),
        ({"max_tokens": -3}, "max_tokens"),
    ],
)
def test_wrong_values_are_named(body, param):
    error = refused(**body)
    assert (error.status, error.param) == (400, param)
    assert f"'{param}'" in error.message


def test_the_form_of_the_text_is_read():
    assert asked(response_format={"type": "json_object"}).content == Content("json")
    assert asked(grammar='root ::= "x"').content == Content("gbnf", 'root ::= "x"')


# ---------------------------------------------------------------- what is written


def reply(**options):
    made = started(CompletionsReply(CompletionsOptions(**options)), model="some-model", fingerprint="fp_0")
    made.id, made.created = "cmpl-0", 1700000000
    return made


def whole_of(reply, events):
    """What is told without streaming."""
    reply.fold(events)
    return reply.whole()


def scored(piece, logprob, *others):
    top = () if logprob is None else tuple(TopLogprob(0, p, value) for p, value in others)
    return TokenLogprob(0, piece, logprob, top)


USAGE = Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=3)
TRANSCRIPTS = {
    "plain": ({}, [Text(0, "Hel"), Text(0, "lo"), Finished(0, FinishReason.STOP), USAGE]),
    "usage": ({"include_usage": True}, [Text(0, "Hi"), Finished(0, FinishReason.LENGTH), USAGE]),
    "choices": (
        {"num_choices": 2},
        [Text(1, "b"), Finished(1, FinishReason.STOP), Text(0, "a"), Finished(0, FinishReason.LENGTH), USAGE],
    ),
    "logprobs": (
        {"logprobs": True},
        [
            Text(0, "aé", (scored(b"a", None), scored(b"\xc3", -9.5, (b"b", -0.5)), scored(b"\xa9", float("-inf")))),
            Text(0, "!", (scored(b"!", -0.125, (b"!", -0.125), (b"?", -2.0)),)),
            Finished(0, FinishReason.LENGTH),
            USAGE,
        ],
    ),
    "failure": ({}, [Text(0, "Hel"), Failed(0, EngineFailure("The model failed.")), USAGE]),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_it_writes_what_the_transcript_says(name):
    options, events = TRANSCRIPTS[name]
    written = "".join(f"{chunk.decode()}\n" for chunk in reply(**options).chunks(events))
    if name != "failure":
        written += "\n" + whole_of(reply(**options), events).decode() + "\n"
    assert written == (DATA / f"completions_{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(set(TRANSCRIPTS) - {"failure"}))
def test_a_stream_adds_up_to_the_whole(name):
    options, events = TRANSCRIPTS[name]
    streamed, _ = add_up_completions(reply(**options).chunks(events), include_usage=options.get("include_usage", False))
    whole, _ = whole_completions(whole_of(reply(**options), events))
    assert streamed == whole


def test_offsets_count_characters_of_the_text():
    _, events = TRANSCRIPTS["logprobs"]
    logprobs = json.loads(whole_of(reply(logprobs=True), events))["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "!"]


def test_the_chosen_token_is_among_the_likeliest():
    _, events = TRANSCRIPTS["logprobs"]
    logprobs = json.loads(whole_of(reply(logprobs=True), events))["choices"][0]["logprobs"]
    for name, value, top in zip(logprobs["tokens"][1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]):
        assert top[name] == value
