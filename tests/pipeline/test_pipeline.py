"""Requests to sequences and deltas to events, on the fake model, turn by turn.

Of this room's other modules, adapters.py is covered by tests/web/test_lora.py, constraint.py by test_loaded_model.py
and tests/model/test_constraints.py, embed.py by tests/web/test_embeddings.py, load_wait.py by test_run.py, progress.py
by tests/web/test_telemetry.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_by_hand import HandEngine
from pipelines import GREEDY, WILD, ends, texts, user
from recording_backend import RecordingBackend
from serving import open_engine, pipeline_on, read

from llamasrv.domain.events import Failed, Finished, FinishReason, Text, Usage
from llamasrv.domain.request import (
    GenerateRequest,
    TextPrompt,
    TokenPrompt,
)
from llamasrv.engine.backend.fake import BOS
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.engine import EngineOptions, Status
from llamasrv.errors import (
    EngineFailure,
    ModelNotFound,
    QueueFull,
    Unavailable,
)

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


def test_usage_reports_what_was_reused(run):
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
    model = pipeline.registry.models[0]
    model.settings = replace(model.settings, shares_prefixes=shares)
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


def test_the_best_of_several_are_reported_in_order(run):
    request = {"prompts": (TextPrompt("x"),), "max_tokens": 12}
    all_of_them = run(**request, n=5, logprobs=0, sampling=WILD)
    best = run(**request, n=2, best_of=5, sampling=WILD)

    def mean(index):
        values = [t.logprob for e in all_of_them if isinstance(e, Text) and e.choice == index for t in e.logprobs]
        return sum(values) / len(values)

    ranked = sorted(range(5), key=mean, reverse=True)
    assert [texts(best, i) for i in range(2)] == [texts(all_of_them, i) for i in ranked[:2]]
    assert sorted(ends(best)) == [0, 1]
    assert not any(e.logprobs for e in best if isinstance(e, Text))
    assert best[-1].completion_tokens == all_of_them[-1].completion_tokens


# ---------------------------------------------------------------- what goes wrong


def test_an_unknown_model_is_reported(pipeline):
    with pytest.raises(ModelNotFound):
        pipeline.submit(GenerateRequest(prompts=user("Hi"), model="other"))


@pytest.mark.parametrize("state", ["loading", "failed", "stopped", "draining"])
def test_a_model_that_is_not_ready_is_unavailable(engine, pipeline, state):
    engine.show(Status(state, reason="because"))
    with pytest.raises(Unavailable):
        pipeline.submit(GenerateRequest(prompts=user("Hi")))


def test_a_full_queue_is_reported():
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


def test_an_unrequested_end_is_an_error(engine, pipeline, monkeypatch):
    """A stream that the server cuts off must not look complete."""
    submit, streams = engine.submit, []
    monkeypatch.setattr(engine, "submit", lambda *given: streams.append(submit(*given)) or streams[0])
    generation = pipeline.submit(GenerateRequest(prompts=user("Hi")))
    engine.turn()
    engine.cancel(streams[0])
    failed = [e for e in read(engine, generation) if isinstance(e, Failed)]
    assert [type(e.error) for e in failed] == [Unavailable]


def test_a_failing_step_is_reported_once(engine, pipeline):
    generation = pipeline.submit(GenerateRequest(prompts=user("Hi")))
    engine.backend.fail_next = [DecodeFailed("broken")]
    events = read(engine, generation)
    assert [type(e) for e in events] == [Failed, Usage]
    assert isinstance(events[0].error, EngineFailure)


def test_a_deadline_ends_it():
    now = [0.0]
    engine = HandEngine(lambda progress: RecordingBackend(), clock=lambda: now[0])
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
