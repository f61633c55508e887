"""Requests to sequences and deltas to events, on the fake model, turn by turn."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from engine_by_hand import HandEngine
from serving import check_no_leaks, open_engine, pipeline_on, read

from llamasrv.domain.events import Failed, Finished, FinishReason, Text, Usage
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
from llamasrv.engine.engine import EngineOptions, Status
from llamasrv.engine.fake import BOS, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, IM_END, IM_START, FakeBackend
from llamasrv.engine.interface import DecodeFailed
from llamasrv.errors import (
    ContextTooLong,
    EngineFailure,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    Unavailable,
    Unsupported,
)
from llamasrv.pipeline import constraint, loaded_model


def user(text):
    return (ChatPrompt((Message("user", text),)),)


def texts(events, index=0):
    return "".join(e.text for e in events if isinstance(e, Text) and e.index == index)


def ends(events):
    return {e.index: e.reason for e in events if isinstance(e, Finished)}


GREEDY = {"temperature": 0.0}
WILD = {"seed": 7, "temperature": 2.0, "min_p": 0.0, "top_p": 1.0}


@pytest.fixture
def engine():
    engine = open_engine(context=512)
    yield engine
    engine.turn()
    check_no_leaks(engine)


@pytest.fixture
def pipeline(engine):
    return pipeline_on(engine)


@pytest.fixture
def run(engine, pipeline):
    def go(**request):
        request = {"sampling": GREEDY, **request}
        return read(engine, pipeline.submit(GenerateRequest(**request)))

    return go


# ---------------------------------------------------------------- events


def test_it_answers_a_chat_and_says_how_it_ended(run):
    events = run(prompts=user("Hi"))
    assert texts(events) == "You said: Hi"
    assert [type(e) for e in events[-2:]] == [Finished, Usage]
    assert events[-2].reason is FinishReason.STOP


def test_usage_counts_prompt_and_answer(run):
    usage = run(prompts=user("Hi"))[-1]
    # the end token is generated too
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (21, len("You said: Hi") + 1, 0)


def test_usage_tells_what_was_reused(run):
    run(prompts=user("the same words again"))
    usage = run(prompts=user("the same words again"))[-1]
    assert usage.cached_tokens == usage.prompt_tokens - 1


@pytest.mark.parametrize(
    "shares, first, second, found",
    [
        (False, {"owner": "ann"}, {"owner": "ann"}, True),
        (False, {"owner": "ann"}, {"owner": "bob"}, False),
        (True, {"owner": "ann"}, {"owner": "bob"}, True),
        (False, {}, {}, True),
        (False, {"cache_salt": "a"}, {"cache_salt": "a"}, True),
        (False, {"cache_salt": "a"}, {"cache_salt": "b"}, False),
        (False, {"cache_salt": "a"}, {}, False),
        (True, {"owner": "ann", "cache_salt": "a"}, {"owner": "bob", "cache_salt": "a"}, True),
        (False, {"owner": "ann", "cache_salt": "a"}, {"owner": "bob", "cache_salt": "a"}, False),
    ],
)
def test_prefixes_are_shared_within_a_key_and_a_salt(pipeline, run, shares, first, second, found):
    pipeline.registry.models[0].shares_prefixes = shares
    run(prompts=user("Hi"), **first)
    assert (run(prompts=user("Hi"), **second)[-1].cached_tokens > 0) is found



def test_characters_are_never_cut(run):
    text = "né 你好 🎈"
    events = run(prompts=user(text))
    assert texts(events) == "You said: " + text
    assert not any("\ufffd" in e.text for e in events if isinstance(e, Text))


def test_half_a_character_at_the_end_becomes_a_replacement(run):
    events = run(prompts=user("é"), max_tokens=len("You said: ") + 1)
    assert texts(events) == "You said: \ufffd"


def test_logprobs_stay_with_their_text(run):
    events = [e for e in run(prompts=user("é!"), logprobs=2) if isinstance(e, Text)]
    for event in events:
        assert b"".join(entry.piece for entry in event.logprobs).decode() == event.text
    assert [len(e.logprobs) for e in events if e.text == "é"] == [2]
    assert all(len(entry.top) == 2 for e in events for entry in e.logprobs)


def test_what_waits_becomes_one_text_for_each_choice(engine, pipeline):
    generation = pipeline.submit(GenerateRequest(prompts=user("Hi"), n=2, sampling=GREEDY))
    for _ in range(60):
        engine.turn()
    events = generation.events(0)
    assert [e.text for e in events if isinstance(e, Text)] == ["You said: Hi"] * 2


def test_events_are_empty_while_nothing_comes(engine, pipeline):
    generation = pipeline.submit(GenerateRequest(prompts=user("Hi")))
    assert generation.events(0.01) == []
    assert not generation.done
    read(engine, generation)


def test_choices_of_several_prompts_are_numbered_in_order(run):
    prompts = tuple(TextPrompt(text) for text in ("one and", "two and"))
    events = run(prompts=prompts, n=2, max_tokens=4, echo=True)
    assert sorted(ends(events)) == [0, 1, 2, 3]
    assert [texts(events, i)[:3] for i in range(4)] == ["one", "one", "two", "two"]


def test_choices_of_one_seed_differ(run):
    events = run(prompts=(TextPrompt("x"),), n=3, max_tokens=30, sampling=WILD)
    assert len({texts(events, i) for i in range(3)}) == 3


def test_a_seed_repeats_itself(run):
    first, second = (run(prompts=(TextPrompt("x"),), max_tokens=30, sampling=WILD) for _ in range(2))
    assert texts(first) == texts(second)


def test_it_stops_before_a_stop_string(run):
    events = run(prompts=user("one two"), stop=("two",))
    assert texts(events) == "You said: one "
    finished = next(e for e in events if isinstance(e, Finished))
    assert (finished.reason, finished.stop) == (FinishReason.STOP_STRING, "two")


def test_it_stops_at_the_length(run):
    events = run(prompts=user("Hi"), max_tokens=3)
    assert texts(events) == "You"
    assert ends(events) == {0: FinishReason.LENGTH}


def test_it_stops_where_the_context_ends(run):
    events = run(prompts=(TextPrompt("x" * 500),), sampling={**GREEDY, "ignore_eos": True})
    assert ends(events) == {0: FinishReason.CONTEXT}


# ---------------------------------------------------------------- echo, scoring, best of


def test_an_echo_goes_before_the_answer(run):
    assert texts(run(prompts=(TextPrompt("ab"),), echo=True, max_tokens=3)) == "ab an"


def test_an_echo_of_tokens_is_their_text(run):
    assert texts(run(prompts=(TokenPrompt((97, 98)),), echo=True, max_tokens=3)) == "ab an"


def test_an_echo_with_logprobs_scores_the_prompt(run):
    first = next(e for e in run(prompts=(TextPrompt("abc"),), echo=True, logprobs=1, max_tokens=2))
    assert first.text == "abc"
    assert [entry.logprob is None for entry in first.logprobs] == [True, False, False]


def test_an_echo_of_no_tokens_only_scores(run):
    events = run(prompts=(TextPrompt("abc"),), echo=True, logprobs=0, max_tokens=0)
    assert texts(events) == "abc"
    assert events[-1].completion_tokens == 0
    assert ends(events) == {0: FinishReason.LENGTH}


def test_the_start_token_is_no_part_of_an_echo(engine, run):
    engine.vocab.add_bos = True
    try:
        engine.vocab.tokenize = lambda text, **kwargs: [BOS, *text.encode()]
        first = next(e for e in run(prompts=(TextPrompt("abc"),), echo=True, logprobs=0, max_tokens=0))
        assert [entry.piece for entry in first.logprobs] == [b"a", b"b", b"c"]
    finally:
        del engine.vocab.add_bos, engine.vocab.tokenize


def test_the_best_of_several_are_told_in_order(run):
    request = {"prompts": (TextPrompt("x"),), "max_tokens": 12}
    all_of_them = run(**request, n=5, logprobs=0, sampling=WILD)
    best = run(**request, n=2, best_of=5, sampling=WILD)

    def mean(index):
        values = [t.logprob for e in all_of_them if isinstance(e, Text) and e.index == index for t in e.logprobs]
        return sum(values) / len(values)

    ranked = sorted(range(5), key=mean, reverse=True)
    assert [texts(best, i) for i in range(2)] == [texts(all_of_them, i) for i in ranked[:2]]
    assert sorted(ends(best)) == [0, 1]
    assert not any(e.logprobs for e in best if isinstance(e, Text))
    assert best[-1].completion_tokens == all_of_them[-1].completion_tokens


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


def test_a_template_that_cannot_be_compiled_is_told(engine):
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
        "This model's maximum context length is 512 tokens. However, your messages resulted in 512 tokens."
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
SCHEMA = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "word " * 10} for n in range(500)}}


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
        pipeline.submit(replace(asked, shorten=False))
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
    class Author(FakeBackend):
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
    assert params.logit_bias == ((97, -1.0), (98, -1.0), (99, 2.0))


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
    assert served.params({"logit_bias": all_but_ends}).logit_bias == all_but_ends


def test_the_fingerprint_tells_settings_apart(engine):
    plain, warm = pipeline_on(engine).open(None), pipeline_on(engine, sampling={"temperature": 1.0}).open(None)
    assert plain.fingerprint == pipeline_on(engine).open(None).fingerprint != warm.fingerprint


# ---------------------------------------------------------------- what goes wrong


def test_an_unknown_model_is_told(pipeline):
    with pytest.raises(ModelNotFound):
        pipeline.submit(GenerateRequest(prompts=user("Hi"), model="other"))


@pytest.mark.parametrize("state", ["loading", "failed", "stopped", "draining"])
def test_a_model_that_is_not_ready_is_unavailable(engine, pipeline, state):
    engine.show(Status(state, reason="because"))
    with pytest.raises(Unavailable):
        pipeline.submit(GenerateRequest(prompts=user("Hi")))


def test_a_full_queue_is_told():
    engine = open_engine(options=EngineOptions(parallel=1, queue_limit=1))
    pipeline = pipeline_on(engine)
    running = [pipeline.submit(GenerateRequest(prompts=user("Hi"))) for _ in range(2)]
    with pytest.raises(QueueFull):
        pipeline.submit(GenerateRequest(prompts=user("Hi")))
    for generation in running:
        read(engine, generation)


def test_a_cancelled_generation_ends(engine, pipeline):
    generation = pipeline.submit(GenerateRequest(prompts=user("Hi"), n=2))
    engine.turn()
    generation.cancel()
    generation.cancel()
    events = read(engine, generation)
    assert ends(events) == {0: FinishReason.CANCELLED, 1: FinishReason.CANCELLED}
    generation.cancel()


def test_an_end_that_nobody_asked_for_is_an_error(engine, pipeline, monkeypatch):
    """A stream that the server cuts off must not look complete."""
    submit, streams = engine.submit, []
    monkeypatch.setattr(engine, "submit", lambda *given: streams.append(submit(*given)) or streams[0])
    generation = pipeline.submit(GenerateRequest(prompts=user("Hi")))
    engine.turn()
    engine.cancel(streams[0])
    failed = [e for e in read(engine, generation) if isinstance(e, Failed)]
    assert [type(e.error) for e in failed] == [Unavailable]


def test_a_failing_step_is_told_once(engine, pipeline):
    generation = pipeline.submit(GenerateRequest(prompts=user("Hi")))
    engine.backend.fail_next = [DecodeFailed("broken")]
    events = read(engine, generation)
    assert [type(e) for e in events] == [Failed, Usage]
    assert isinstance(events[0].error, EngineFailure)


def test_a_deadline_ends_it():
    now = [0.0]
    engine = HandEngine(lambda progress: FakeBackend(), clock=lambda: now[0])
    engine.open()
    generation = pipeline_on(engine).submit(GenerateRequest(prompts=user("Hi"), timeout=5.0))
    engine.turn()
    now[0] = 6.0
    failed = [e for e in read(engine, generation) if isinstance(e, Failed)]
    assert [e.error.status for e in failed] == [504]


def test_a_context_made_anew_is_noticed(engine, pipeline):
    before = pipeline.open(None)
    assert pipeline.open(None) is before
    engine.open()
    assert pipeline.open(None) is not before
