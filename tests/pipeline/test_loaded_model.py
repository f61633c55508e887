"""Prompts to tokens, and parameters from weak to strong, on the fake model."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
from engine_by_hand import HandEngine
from pipelines import ends, user
from recording_backend import RecordingBackend
from serving import open_engine, pipeline_on, read

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import LogitBias
from llamasrv.domain.request import (
    ChatPrompt,
    Content,
    GenerateRequest,
    Message,
    TextPart,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)
from llamasrv.engine.backend.fake import BOS, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, IM_END, IM_START
from llamasrv.errors import ContextTooLong, InvalidRequest, Unsupported
from llamasrv.pipeline import constraint, loaded_model

# ---------------------------------------------------------------- prompts


def encoded(pipeline, prompt):
    return pipeline.open("fake").encode(prompt)


def test_a_chat_is_rendered_by_the_models_template(pipeline):
    tokens = encoded(pipeline, ChatPrompt((Message("user", "a"),)))
    assert tokens == [IM_START, *b"user\na", IM_END, *b"\n", IM_START, *b"assistant\n"]


def test_special_tokens_in_a_users_text_stay_text(pipeline):
    tokens = encoded(pipeline, ChatPrompt((Message("user", "<|im_end|>"),)))
    assert tokens.count(IM_END) == 1
    assert bytes(t for t in tokens if t < 256) == b"user\n<|im_end|>\nassistant\n"


def test_a_template_of_the_operator_replaces_the_models(engine):
    pipeline = pipeline_on(engine, chat_template="{{ messages[0].content }}!")
    assert encoded(pipeline, ChatPrompt((Message("user", "a"),))) == [*b"a!"]


def test_a_template_that_cannot_be_compiled_is_reported(engine):
    pipeline = pipeline_on(engine, chat_template="{% if %}")
    with pytest.raises(InvalidRequest, match="line 1"):
        encoded(pipeline, ChatPrompt((Message("user", "a"),)))
    assert encoded(pipeline, TextPrompt("a")) == [97]


def test_special_tokens_in_a_raw_text_are_parsed(pipeline):
    assert encoded(pipeline, TextPrompt("a<|im_end|>")) == [97, IM_END]


def test_a_suffix_is_filled_in_by_the_models_tokens(pipeline):
    tokens = encoded(pipeline, TextPrompt("a", suffix="b"))
    assert tokens == [FIM_PREFIX, 97, FIM_SUFFIX, 98, FIM_MIDDLE]


def test_a_suffix_is_refused_where_the_model_has_no_tokens_for_it(engine, pipeline):
    engine.vocab.fim_mid = None
    try:
        with pytest.raises(Unsupported) as caught:
            encoded(pipeline, TextPrompt("a", suffix="b"))
        assert caught.value.param == "suffix"
    finally:
        del engine.vocab.fim_mid


def test_an_empty_prompt_starts_with_the_start_token(pipeline):
    assert encoded(pipeline, TextPrompt("")) == [BOS]


def test_a_start_token_is_added_once(engine, pipeline):
    engine.vocab.add_bos = True
    try:
        assert encoded(pipeline, ChatPrompt((Message("user", "a"),)))[:2] == [BOS, IM_START]
        engine.vocab.tokenize = lambda text, **kwargs: [BOS, BOS, 97]
        assert encoded(pipeline, TextPrompt("<s>a")) == [BOS, 97]
    finally:
        del engine.vocab.add_bos
        engine.vocab.__dict__.pop("tokenize", None)


@pytest.mark.parametrize("token", [-1, 263, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_refused(pipeline, token):
    with pytest.raises(InvalidRequest, match=f"token id {token} at position 1"):
        encoded(pipeline, TokenPrompt((97, token)))


def test_a_prompt_longer_than_the_context_is_refused_before_anything_runs(engine, pipeline):
    with pytest.raises(ContextTooLong) as caught:
        pipeline.submit(GenerateRequest(prompts=(TextPrompt("x" * 512),)))
    assert caught.value.message.startswith(
        "This model's maximum context length is 512 tokens. However, your messages resulted in 512 tokens, which leaves none for an answer."
    )
    assert engine.num_open == 0


@pytest.mark.parametrize("prompt", [TextPrompt("word " * 200_000), *user("word " * 200_000)])
def test_a_prompt_that_is_far_too_long_is_refused_without_reading_it_all(engine, pipeline, prompt):
    read = []
    tokenize = engine.vocab.tokenize
    engine.vocab.tokenize = lambda text, **kwargs: read.append(len(text)) or tokenize(text, **kwargs)
    try:
        with pytest.raises(ContextTooLong) as caught:
            pipeline.submit(GenerateRequest(prompts=(prompt,)))
    finally:
        del engine.vocab.tokenize
    assert caught.value.num_prompt == pytest.approx(1_000_000, rel=0.01)
    assert sum(read) < 10_000


MUCH = "word " * 5_000
USER = Message("user", "x")
SCHEMA = {
    "type": "object",
    "properties": {f"p{n}": {"type": "string", "description": "word " * 10} for n in range(500)},
}


@pytest.mark.parametrize(
    "prompt",
    [
        ChatPrompt((Message("user", MUCH),)),
        ChatPrompt((Message("user", (TextPart(MUCH),)),)),
        ChatPrompt((USER,), tools=(Tool("f", parameters=SCHEMA),)),
        ChatPrompt((USER,), tools=(Tool("f", MUCH),)),
        ChatPrompt((USER, Message("assistant", "y", reasoning=MUCH), USER)),
        ChatPrompt((USER, Message("assistant", tool_calls=(ToolCall("1", "f", f'{{"a":"{MUCH}"}}'),)), USER)),
        ChatPrompt((USER,), template_kwargs={"documents": [{"text": MUCH}]}),
    ],
    ids=["text", "parts", "parameters", "description", "reasoning", "calls", "variables"],
)
def test_a_long_prompt_is_worked_on_beside_the_hub(pipeline, prompt, monkeypatch):
    """Whatever it is long of: 156 KB of tools counted as the 22 characters of the question."""
    beside = []

    def off_hub(function, *args):
        beside.append(function)
        return function(*args)

    monkeypatch.setattr(loaded_model, "off_hub", off_hub)
    monkeypatch.setattr(constraint, "off_hub", off_hub)
    one = pipeline.open("fake")
    with suppress(ContextTooLong):
        one.prepare_all(GenerateRequest((prompt,)))
    assert len(beside) == 1
    one.render(prompt)
    assert len(beside) == 2
    one.prepare_all(GenerateRequest(user("short")))
    one.render(user("short")[0])
    assert len(beside) == 2


def test_so_is_the_grammar_of_a_long_form(pipeline, engine, monkeypatch):
    beside = []
    monkeypatch.setattr(constraint, "off_hub", lambda function: beside.append(function) or function())
    for schema in ({"type": "object"}, SCHEMA):
        pipeline.submit(GenerateRequest(user("x"), content=Content("json", schema))).cancel()
        assert bool(beside) == (schema is SCHEMA)


def test_a_long_text_of_few_tokens_is_read_to_its_end(engine, pipeline):
    tokenize = engine.vocab.tokenize
    engine.vocab.tokenize = lambda text, **kwargs: tokenize("x" * (len(text) // 100))
    try:
        assert len(encoded(pipeline, TextPrompt("x" * 40_000))) == 400
    finally:
        del engine.vocab.tokenize


def test_the_oldest_turns_are_left_out_if_the_client_wants_that():
    """As few as possible: system messages stay, and calls stay with their results."""
    engine = open_engine(context=600)
    pipeline = pipeline_on(engine)
    turns = [Message("system", "Be brief.")]
    for n in range(9):
        call = ToolCall(f"c{n}", "f", "{}")
        turns += [Message("user", f"question {n} {'x' * 20}"), Message("assistant", tool_calls=(call,))]
        turns += [Message("tool", f"result {n}", tool_call_id=call.id), Message("assistant", "ok")]
    turns.append(Message("user", "last"))
    asked = GenerateRequest(prompts=(ChatPrompt(tuple(turns)),), shorten=True)
    with pytest.raises(ContextTooLong):
        pipeline.submit(asked._replace(shorten=False))
    generation = pipeline.submit(asked)
    text = generation.info.whole_text("")
    shown = b"".join(pipeline.open(None).vocab.pieces[token] for token in text).decode()
    assert "Be brief." in shown and "last" in shown and "question 0" not in shown
    assert generation.info.left_out % 4 == 0 and shown.count("question") == shown.count("result") > 0
    read(engine, generation)
    with pytest.raises(ContextTooLong):
        pipeline.submit(GenerateRequest(prompts=user("x" * 700), shorten=True))


def test_of_a_long_turn_the_oldest_calls_are_left_out():
    """An agent works through many calls for one request, which stays; and there is room for an answer."""
    engine = open_engine(context=600)
    pipeline = pipeline_on(engine)
    turns = [Message("system", "Be brief."), Message("user", "the old one"), Message("user", "the request")]
    for n in range(20):
        turns.append(Message("assistant", tool_calls=(ToolCall(f"c{n}", "f", "{}"),)))
        turns.append(Message("tool", f"result {n} {'x' * 20}", tool_call_id=f"c{n}"))
    generation = pipeline.submit(GenerateRequest(prompts=(ChatPrompt(tuple(turns)),), shorten=True))
    shown = b"".join(pipeline.open(None).vocab.pieces[token] for token in generation.info.whole_text("")).decode()
    assert "Be brief." in shown and "the request" in shown and "result 19" in shown and "result 0" not in shown
    assert generation.info.left_out % 2 == 0 and 300 < generation.info.num_prompt <= 450
    read(engine, generation)


def test_an_earlier_talk_goes_before_what_the_template_writes(engine, pipeline):
    generation = pipeline.submit(GenerateRequest(prompts=(ChatPrompt((Message("user", "Hi"),), before=(72, 105)),)))
    assert generation.info.whole_text("!")[:2] == [72, 105] and generation.info.whole_text("!")[-1] == ord("!")
    assert generation.info.num_prompt == len(pipeline.open(None).encode(user("Hi")[0])) + 2
    read(engine, generation)
    with pytest.raises(InvalidRequest):
        pipeline.submit(GenerateRequest(prompts=(ChatPrompt((Message("user", "Hi"),), before=(9999,)),)))


def test_a_prompt_that_fills_the_context_can_still_be_scored(run):
    assert ends(run(prompts=(TextPrompt("x" * 512),), max_tokens=0)) == {0: FinishReason.LENGTH}


# ---------------------------------------------------------------- parameters


def test_parameters_are_merged_from_weak_to_strong():
    class Author(RecordingBackend):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            defaults = {"top_k": 20, "top_p": 0.5, "min_p": 0.1, "samplers": ["top_k"]}
            self.info = replace(self.info, sampling_defaults=defaults)

    engine = HandEngine(lambda progress: Author())
    engine.open()
    served = pipeline_on(engine, sampling={"top_p": 0.6, "min_p": 0.2}).open(None)
    params = served.params({"min_p": 0.3})
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 20, 0.6, 0.3)
    assert params.samplers == ("top_k",)
    assert served.params({}) is served.default_params


@pytest.mark.parametrize("given, window", [(-1, 512), (2**31 - 1, 512), (512, 512), (64, 64), (0, 0)])
def test_nothing_looks_back_over_more_than_the_context(pipeline, given, window):
    """A sampler allocates its window: 2^31 tokens would be gigabytes."""
    params = pipeline.open(None).params({"repeat_last_n": given, "dry_penalty_last_n": given})
    assert (params.repeat_last_n, params.dry_penalty_last_n) == (window, window)


def test_a_bias_by_text_is_one_for_each_of_its_tokens(pipeline):
    params = pipeline.open(None).params({"logit_bias": (("ab", -1.0), (99, 2.0))})
    assert list(params.logit_bias) == [(97, -1.0), (98, -1.0), (99, 2.0)]


def test_a_bias_outside_the_vocabulary_is_refused(pipeline):
    with pytest.raises(InvalidRequest) as caught:
        pipeline.open(None).params({"logit_bias": ((263, 1.0),)})
    assert caught.value.param == "logit_bias"


def test_banning_every_token_is_refused(pipeline):
    served = pipeline.open(None)
    ban = tuple((token, float("-inf")) for token in range(263))
    all_but_ends = tuple(entry for entry in ban if entry[0] not in served.vocab.eog)
    for given in ({"logit_bias": ban}, {"logit_bias": all_but_ends, "ignore_eos": True}):
        with pytest.raises(InvalidRequest, match="every token is banned"):
            served.params(given)
    assert served.params({"logit_bias": all_but_ends}).logit_bias == LogitBias(all_but_ends)


def test_the_fingerprint_tells_settings_apart(engine):
    plain, warm = pipeline_on(engine).open(None), pipeline_on(engine, sampling={"temperature": 1.0}).open(None)
    assert plain.fingerprint == pipeline_on(engine).open(None).fingerprint != warm.fingerprint


def test_a_bias_for_more_tokens_than_are_looked_at_is_refused(pipeline):
    """Texts of 3 MB, within all limits, stopped the hub for eight seconds, and every choice copied them."""
    served = pipeline.open(None)
    entries = tuple((f"{n:05d}" + 59 * "x", 1.0) for n in range(200))
    with pytest.raises(InvalidRequest, match="more than 10000 tokens") as caught:
        served.params({"logit_bias": entries})
    assert caught.value.param == "logit_bias"
    assert len(served.params({"logit_bias": entries[:100]}).logit_bias) == 11, "one bias for each token"


def test_biases_of_one_token_add_up_and_a_ban_stays():
    """Of several for one token only the last one counted."""
    merged = LogitBias([(7, 1.0), (3, 2.0), (7, 0.5), (9, 1.0), (9, -math.inf), (9, 5.0)])
    assert list(merged) == [(3, 2.0), (7, 1.5), (9, -math.inf)]


def test_choices_share_one_bias_and_one_prediction(pipeline, monkeypatch):
    served = pipeline.open(None)
    submitted = []
    submit = served.engine.submit
    monkeypatch.setattr(
        served.engine, "submit", lambda specs, *more: (submitted.extend(specs), submit(specs, *more))[1]
    )
    request = GenerateRequest(
        prompts=(TextPrompt("a"), TextPrompt("b")),
        n=3,
        max_tokens=1,
        prediction="as expected",
        sampling={"logit_bias": (("ab", -1.0), (99, 2.0)), "temperature": 1.0, "seed": 1},
    )
    read(served.engine, pipeline.submit(request))
    assert len(submitted) == 6 and len({id(spec.params.logit_bias.tokens) for spec in submitted}) == 1
    assert len({id(spec.prediction) for spec in submitted}) == 1
