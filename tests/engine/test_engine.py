"""Scenarios of the engine on RecordingBackend, turn by turn. The `drive` fixture checks for leaks."""

from array import array

import numpy as np
import pytest
from engine_by_hand import HandEngine
from engine_driver import GREEDY, chat, end_of, scores_of, spec, text_of
from recording_backend import RecordingBackend

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.domain.sequence_spec import CacheKey, Urgency
from llamasrv.engine.backend.fake import BOS
from llamasrv.engine.base.channels import Delta
from llamasrv.engine.base.interface import ATTENTION, RECURRENT, DecodeFailed, OutOfCells
from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.sampling.candidates import SMALL_VOCABULARY
from llamasrv.engine.step.scheduler import QUIET_SECONDS
from llamasrv.engine.view import VIEW_SECONDS
from llamasrv.errors import ContextTooLong, DeadlineExceeded, EngineFailure, InvalidRequest, QueueFull, Unavailable

# answers


def test_it_answers(drive):
    driver = drive()
    stream = driver.submit(chat("hello"))
    driver.finish()
    items = stream.take()
    assert text_of(items) == "You said: hello"
    end = end_of(items)
    assert end.reason is FinishReason.STOP and end.num_generated == len("You said: hello") + 1


def test_each_token_is_delivered_in_the_step_that_made_it(drive):
    driver = drive()
    stream = driver.submit(chat("x"))
    driver.turn()
    assert [i.data for i in stream.take()] == [b"Y"]
    driver.turn()
    assert [i.data for i in stream.take()] == [b"o"]
    driver.finish()


def test_many_at_once_answer_as_each_alone(drive):
    driver = drive(num_lanes=20, parallel=16)
    prompts = [chat(f"question {i} " + "x" * (i * 7)) for i in range(16)]
    params = [SamplingParams(seed=i, temperature=1.5, min_p=0.0) for i in range(16)]
    alone = [driver.answer(p, params=s, max_tokens=40) for p, s in zip(prompts, params)]
    streams = [driver.submit(p, params=s, max_tokens=40) for p, s in zip(prompts, params)]
    driver.finish()
    assert [text_of(s.take()) for s in streams] == alone


def test_a_seed_repeats_and_another_differs(drive):
    driver = drive()
    hot = {"temperature": 3.0, "min_p": 0.0, "top_p": 1.0}
    a, b, c = (driver.answer("abcdefgh", params=SamplingParams(seed=s, **hot), max_tokens=30) for s in (1, 1, 2))
    assert a == b != c


def test_choices_of_one_request_share_a_stream_and_a_prompt(drive):
    driver = drive()
    prompt = chat("share this rather long question, please")
    prompts = [driver.spec(prompt, choice=i, params=SamplingParams(seed=i)) for i in range(4)]
    stream = driver.engine.submit(prompts)
    driver.finish()
    items = stream.take()
    assert [text_of(items, i) for i in range(4)] == ["You said: share this rather long question, please"] * 4
    reused = sorted(end_of(items, i).num_reused for i in range(4))
    assert reused == [0] + [len(prompts[0].tokens) - 1] * 3


def test_max_tokens_ends_with_length(drive):
    driver = drive()
    stream = driver.submit(chat("hello"), max_tokens=3)
    driver.finish()
    items = stream.take()
    assert text_of(items) == "You" and end_of(items).reason is FinishReason.LENGTH


def test_max_tokens_0_computes_only_the_prompt(drive):
    driver = drive()
    stream = driver.submit("warm this up", max_tokens=0)
    driver.finish()
    items = stream.take()
    assert len(items) == 1 and end_of(items).reason is FinishReason.LENGTH
    assert driver.engine.metrics.prompt_tokens == 12


def test_a_full_context_ends_with_context(drive):
    driver = drive(context=32, num_cells=64)
    stream = driver.submit("abcdefgh", params=SamplingParams(temperature=0, ignore_eos=True))
    driver.finish()
    end = end_of(stream.take())
    assert end.reason is FinishReason.CONTEXT and end.num_prompt + end.num_generated == 32


def test_ignore_eos_goes_on(drive):
    text = drive().answer(chat("hi"), params=SamplingParams(temperature=0, ignore_eos=True), max_tokens=50)
    assert text.startswith("You said: hi") and len(text) == 50


def test_min_tokens_delays_the_end(drive):
    text = drive().answer(chat("hi"), params=SamplingParams(temperature=0, min_tokens=20))
    assert len(text) >= 20


def test_bias_is_obeyed(drive):
    assert (
        drive().answer(
            "abcdefgh", params=SamplingParams(temperature=0, logit_bias=LogitBias(((65, 100.0),))), max_tokens=3
        )
        == "AAA"
    )


def test_a_banned_vocabulary_ends_only_that_sequence(drive):
    driver = drive()
    banned = tuple((t, -float("inf")) for t in range(driver.backend.vocab.size))
    bad = driver.submit(chat("bad"), params=SamplingParams(logit_bias=LogitBias(banned)))
    good = driver.submit(chat("good"))
    driver.finish()
    assert isinstance(end_of(bad.take()).error, EngineFailure)
    assert text_of(good.take()) == "You said: good"


# stop strings


def test_a_stop_string_is_cut_off_and_named(drive):
    driver = drive()
    stream = driver.submit(chat("one END two"), stop=("END",))
    driver.finish()
    items = stream.take()
    assert text_of(items) == "You said: one "
    assert (end_of(items).reason, end_of(items).stop) == (FinishReason.STOP_STRING, "END")


def test_no_part_of_a_stop_string_is_delivered(drive):
    driver = drive()
    stream = driver.submit(chat("one END"), stop=("END",))
    seen = ""
    while driver.engine.num_open:
        driver.turn()
        seen += text_of(stream.take())
        assert "E" not in seen
    assert seen == "You said: one "


def test_held_back_text_is_delivered_if_it_was_no_stop(drive):
    assert drive().answer(chat("EN EN"), stop=("END",)) == "You said: EN EN"


def test_a_stop_at_the_first_token_gives_no_text(drive):
    driver = drive()
    stream = driver.submit(chat("x"), stop=("You",))
    driver.finish()
    assert text_of(stream.take()) == ""


def test_log_probabilities_stay_with_their_text_when_a_stop_cuts(drive):
    driver = drive()
    stream = driver.submit(chat("ab"), stop=("aid",), logprobs=2)
    driver.finish()
    deltas = [i for i in stream.take() if isinstance(i, Delta)]
    assert b"".join(d.data for d in deltas) == b"You s" and len(deltas) == 5
    assert all(len(d.logprobs.top) == 2 for d in deltas)


# log-probabilities of a prompt


def test_a_scored_prompt_has_an_entry_for_every_token(drive):
    driver = drive(batch_size=32, ubatch_size=16)
    stream = driver.submit(
        "score this text, please, token by token" * 3, prompt_logprobs=True, logprobs=1, max_tokens=0
    )
    driver.finish()
    scores = scores_of(stream.take())
    assert bytes(s.token for s in scores) == b"score this text, please, token by token" * 3
    assert scores[0].logprob is None and all(s.logprob < 0 for s in scores[1:])


def test_scores_do_not_depend_on_prompt_chunks(drive):
    def scores(**settings):
        driver = drive(**settings)
        stream = driver.submit("the same text in other pieces", prompt_logprobs=True, logprobs=0, max_tokens=1)
        driver.finish()
        return [s.logprob for s in scores_of(stream.take())]

    assert scores(batch_size=7, ubatch_size=7) == scores(batch_size=256, ubatch_size=64)


# prefixes


def test_a_finished_prompt_is_reused(drive):
    driver = drive()
    first = driver.answer(chat("the same question"))
    stream = driver.submit(chat("the same question"))
    driver.finish()
    items = stream.take()
    assert text_of(items) == first
    assert end_of(items).num_reused == end_of(items).num_prompt - 1


def test_the_next_turn_continues_in_the_same_lane(drive):
    driver = drive()
    driver.answer(chat("turn one"))
    copies = driver.core.memory.lanes.used_cells
    driver.answer(chat("turn one") + "You said: turn one<|im_end|>\n" + chat("turn two"))
    assert len(driver.core.memory.lanes.resident) == 1
    assert driver.engine.metrics.cached_tokens >= copies


def test_a_prefix_of_a_running_sequence_is_shared(drive):
    driver = drive()
    system = "<|im_start|>system\nbe brief and friendly, always<|im_end|>\n"
    running = driver.submit(system + chat("first " + "x" * 40))
    driver.turn(3)
    second = driver.submit(system + chat("second"))
    driver.finish()
    assert end_of(second.take()).num_reused >= len(system) - 30
    assert end_of(running.take()).num_reused == 0


def test_followers_of_a_prefix_under_way_compute_it_once(drive):
    """Eight prompts with a long common start, all at once and cold: the start is computed once."""
    driver = drive(num_lanes=16, parallel=8, batch_size=128)
    common = "<|im_start|>system\n" + "rules " * 100 + "<|im_end|>\n"
    streams = [driver.submit(common + chat(f"question {i}")) for i in range(8)]
    driver.finish()
    total = sum(end_of(s.take()).num_prompt for s in streams)
    assert driver.engine.metrics.prompt_tokens < total / 5


def test_followers_survive_the_cancel_of_their_leader(drive):
    """They waited for ever for the rest of a cancelled prompt."""
    driver = drive(num_lanes=16, parallel=8, batch_size=64, ubatch_size=64)
    common = "<|im_start|>system\n" + "rules " * 100 + "<|im_end|>\n"
    leader, *followers = [driver.submit(common + chat(f"question {i}")) for i in range(4)]
    driver.turn()
    driver.engine.cancel(leader)
    driver.finish()
    assert end_of(leader.take()).reason is FinishReason.CANCELLED
    assert [text_of(s.take()) for s in followers] == [f"You said: question {i}" for i in (1, 2, 3)]


def test_two_that_want_the_same_resident_lane_both_get_it(drive):
    """The first one took the lane over; the second one's match named a lane that was no longer resident."""
    driver = drive()
    driver.answer(chat("turn one"))
    next_turn = chat("turn one") + "You said: turn one<|im_end|>\n"
    streams = [driver.submit(next_turn + chat(f"turn two {i}")) for i in range(3)]
    driver.finish()
    assert [text_of(s.take()) for s in streams] == [f"You said: turn two {i}" for i in range(3)]


def test_cache_prompt_false_neither_uses_nor_keeps_a_prefix(drive):
    driver = drive()
    driver.answer(chat("private matters"), cache_prompt=False)
    assert not driver.core.memory.lanes.resident
    driver.answer(chat("private matters"))
    stream = driver.submit(chat("private matters"), cache_prompt=False)
    driver.finish()
    assert end_of(stream.take()).num_reused == 0


def test_the_least_recently_used_prefix_is_evicted_when_cells_run_short(drive):
    driver = drive(num_cells=300, context=300, cache_bytes=0)
    driver.answer(chat("old " + "o" * 60))
    driver.answer(chat("new " + "n" * 60))
    driver.answer(chat("big " + "b" * 40))
    assert driver.engine.metrics.evictions >= 1
    stream = driver.submit(chat("big " + "b" * 40))
    driver.finish()
    assert end_of(stream.take()).num_reused > 0


def test_an_evicted_prefix_comes_back_from_host_memory(drive):
    driver = drive(num_cells=400, context=400)
    question = chat("keep this " + "k" * 80)
    first = driver.answer(question)
    driver.core.scheduler.cost.prompt_seconds = lambda n: 1.0 if n > 8 else 0.0
    driver.answer(chat("other " + "o" * 100))
    driver.answer(chat("third " + "t" * 100))
    assert len(driver.core.memory.host) >= 1
    stream = driver.submit(question)
    driver.finish()
    items = stream.take()
    assert text_of(items) == first and end_of(items).num_reused == end_of(items).num_prompt - 1


def test_idle_prefixes_are_evicted_while_others_run(drive):
    driver = drive(idle_cells=0)
    driver.answer(chat("idle now"))
    assert driver.core.memory.lanes.resident, "kept while nobody works"
    driver.submit(chat("something else entirely"))
    driver.turn()
    assert not driver.core.memory.lanes.resident
    driver.finish()


def test_what_a_client_has_just_left_stays_beside_deferrable_work(drive):
    """It was copied to host memory for a summary's step, and back for the next turn."""
    driver = drive(idle_cells=0)
    driver.answer(chat("a conversation that goes on"))
    driver.submit(chat("something else entirely"), deferrable=True)
    driver.turn(3)
    assert driver.core.metrics.evictions == 0
    driver.now += QUIET_SECONDS
    driver.turn()
    assert driver.core.metrics.evictions == 1
    driver.finish()


def test_a_conversation_that_goes_on_from_a_shorter_prompt_leaves_nothing_behind(drive):
    """The turn that went on from a summary waited for the copy of its old prefix, as long as for its own prompt."""
    driver = drive(parallel=4)
    others, old = chat("a conversation of others"), chat("a conversation that has become long")
    driver.answer(others)
    tokens = driver.backend.vocab.tokenize(old + driver.answer(old) + "and more")
    for key, number in ((CacheKey(scope="bob"), 2), (CacheKey(), 1), (CacheKey(), 1)):
        driver.engine.supersede(array("i", tokens), key)
        driver.turn()
        assert len(driver.core.memory.lanes.resident) == number
    driver.answer(others)
    assert driver.sequences[-1].reused == len(driver.backend.vocab.tokenize(others)) - 1


def test_an_idle_prefix_that_running_sequences_share_is_not_evicted(drive):
    """The next ones of many that begin alike find it in its lane, not as a copy for each of them."""
    driver = drive(idle_cells=0)
    beginning = "what all of them begin with " * 3
    for question in ("one", "two", "three"):
        driver.submit(chat(beginning + question), max_tokens=1)
        driver.finish()
    assert driver.core.metrics.evictions == 0 and len(driver.core.memory.host) == 0
    assert driver.core.memory.lanes.resident


@pytest.mark.parametrize("traits", [RECURRENT, ATTENTION._replace(can_share=False)])
def test_states_that_cannot_be_shared_are_continued_or_recomputed(drive, traits):
    driver = drive(traits=traits)
    driver.answer(chat("turn one"))
    streams = [
        driver.submit(chat("turn one") + "You said: turn one<|im_end|>\n" + chat("turn two")),
        driver.submit(chat("turn one but other")),
    ]
    driver.finish()
    texts = [text_of(s.take()) for s in streams]
    assert texts == ["You said: turn two", "You said: turn one but other"]


# cells run out


def test_no_sequence_fails_when_cells_run_out(drive):
    driver = drive(num_cells=200, context=150, parallel=8, num_lanes=8)
    prompts = [chat(f"{i} " + "y" * 30) for i in range(8)]
    streams = [driver.submit(p) for p in prompts]
    driver.finish()
    assert [text_of(s.take()) for s in streams] == [f"You said: {i} " + "y" * 30 for i in range(8)]
    assert driver.engine.metrics.preemptions > 0


def test_no_sequence_fails_when_cells_run_out_without_swap(drive):
    driver = drive(num_cells=200, context=150, parallel=8, num_lanes=8, swap_bytes=0, cache_bytes=0)
    for _ in range(20):
        driver.core.scheduler.cost.learn(50, 0, 0.002)  # computing again costs little: admission is optimistic
    streams = [driver.submit(chat(f"{i} " + "y" * 30)) for i in range(8)]
    driver.finish()
    assert all(text_of(s.take()).endswith("y" * 30) for s in streams)
    assert driver.engine.metrics.preemptions > 0 and driver.engine.metrics.swaps == 0


def test_a_preempted_sequence_resumes_where_it_was(drive):
    driver = drive()
    params = SamplingParams(seed=5, temperature=2.0, min_p=0.0)
    alone = driver.answer(chat("hello there"), params=params)
    stream = driver.submit(chat("hello there"), params=params)
    driver.turn(4)
    driver.engine.preempt(driver.sequences[-1])
    driver.finish()
    assert text_of(stream.take()) == alone and driver.engine.metrics.swaps == 1


def test_out_of_cells_in_the_library_fails_no_sequence(drive):
    driver = drive()
    streams = [driver.submit(chat(f"number {i}")) for i in range(3)]
    driver.turn(2)
    driver.backend.fail_next = [OutOfCells(), OutOfCells()]
    driver.finish()
    assert [text_of(s.take()) for s in streams] == [f"You said: number {i}" for i in range(3)]


def test_a_single_sequence_without_cells_fails_and_does_not_loop(drive):
    driver = drive()
    stream = driver.submit(chat("alone"))
    driver.turn(2)
    driver.backend.fail_next = [OutOfCells()] * 3
    driver.finish()
    assert end_of(stream.take()).reason is FinishReason.FAILED


# failures


def test_a_failing_batch_fails_only_its_sequences(drive):
    driver = drive(parallel=2)
    streams = [driver.submit(chat(f"number {i}")) for i in range(4)]
    driver.turn(2)
    driver.backend.fail_next = [DecodeFailed("broken")]
    driver.finish()
    reasons = [end_of(s.take()).reason for s in streams]
    assert reasons == [FinishReason.FAILED] * 2 + [FinishReason.STOP] * 2


def test_lanes_of_a_failed_batch_are_not_reused(drive):
    driver = drive()
    stream = driver.submit(chat("poisoned prompt"))
    driver.turn(3)
    driver.backend.fail_next = [DecodeFailed("broken")]
    driver.finish()
    stream.take()
    again = driver.submit(chat("poisoned prompt"))
    driver.finish()
    items = again.take()
    assert text_of(items) == "You said: poisoned prompt" and end_of(items).num_reused == 0


def test_the_context_is_recreated_after_a_fatal_failure(drive):
    driver = drive(parallel=3)
    prefix = driver.answer(chat("kept before"))
    driver.submit(chat("victim")).take()
    driver.turn(1)
    driver.backend.fail_next = [DecodeFailed("gone", fatal=True)]
    driver.finish()
    assert ("reset",) in driver.backend.calls[1:] and driver.engine.metrics.restarts == 1
    assert driver.answer(chat("kept before")) == prefix


@pytest.mark.parametrize("call", ["chain", "copy", "restore"])
def test_an_exception_while_admitting_fails_that_sequence_alone(drive, call):
    """Newcomers had left the queue before they were seated: after one failure, all later ones were in no list and never
    got an End."""
    driver = drive(parallel=8)
    shared = chat("a question that somebody else asks, too " + "x" * 40)
    first = driver.submit(shared)
    driver.turn(3)
    if call == "restore":
        driver.engine.preempt(driver.sequences[0])
    whole = getattr(driver.backend, call)

    def once(*args, **settings):
        setattr(driver.backend, call, whole)
        raise MemoryError("no more of it")

    setattr(driver.backend, call, once)
    settings = {"params": SamplingParams(seed=1)}
    streams = [first, driver.submit(shared), *(driver.submit(chat(f"number {i}"), **settings) for i in range(3))]
    driver.finish()
    ends = [end_of(stream.take()) for stream in streams]
    failed = [i for i, end in enumerate(ends) if end.reason is FinishReason.FAILED]
    assert len(failed) == 1 and isinstance(ends[failed[0]].error, EngineFailure)
    assert failed == {"chain": [2], "copy": [1], "restore": [0]}[call]
    assert driver.engine.metrics.restarts == 0


def test_nan_logits_fail_one_sequence(drive):
    driver = drive()
    streams = [driver.submit(chat("first")), driver.submit(chat("second"))]
    driver.turn(2)

    def spoil(rows):
        rows[0] = np.nan

    driver.backend.spoil = spoil
    driver.finish()
    assert end_of(streams[0].take()).reason is FinishReason.FAILED
    assert text_of(streams[1].take()) == "You said: second"


def test_a_bug_fails_open_sequences_and_the_engine_continues(drive):
    driver = drive()
    stream = driver.submit(chat("unlucky"))
    driver.engine.take_mail()
    broken = driver.core.scheduler.plan
    driver.core.scheduler.plan = lambda *a: 1 / 0
    driver.engine.host.turn()
    driver.core.scheduler.plan = broken
    assert isinstance(end_of(stream.take()).error, EngineFailure)
    assert driver.engine.status.state == "ready" and driver.engine.metrics.restarts == 1
    assert driver.answer(chat("lucky")) == "You said: lucky"


# cancelling, deadlines, limits


def test_cancel_while_waiting():
    """A sequence cancelled before admission never takes a lane, and its stream still ends."""
    from engine_driver import Driver, no_leaks

    driver = Driver(RecordingBackend(), parallel=1)
    running, waiting = driver.submit(chat("first")), driver.submit(chat("second"))
    driver.turn()
    driver.engine.cancel(waiting)
    driver.turn()
    assert end_of(waiting.take()).reason is FinishReason.CANCELLED
    assert driver.sequences[1].admitted is None
    driver.finish()
    assert text_of(running.take()) == "You said: first"
    no_leaks(driver)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 8])
def test_cancel_frees_its_cells_within_one_step(drive, turns):
    driver = drive(batch_size=32, ubatch_size=32, idle_cells=0)
    stream = driver.submit(chat("a question that needs several chunks " * 3), cache_prompt=False)
    driver.turn(turns)
    driver.engine.cancel(stream)
    driver.turn()
    assert end_of(stream.take()).reason is FinishReason.CANCELLED
    assert driver.core.memory.lanes.used_cells == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 8])
def test_an_end_counts_as_much_of_the_prompt_as_was_computed(drive, turns):
    """None if it was queued, part if it was in prefill, else all."""
    driver = drive(batch_size=32, ubatch_size=32)
    params = SamplingParams(temperature=0, ignore_eos=True)
    spec = driver.spec(chat("a question that takes several chunks " * 3), params=params)
    stream = driver.engine.submit([spec])
    driver.turn(turns)
    computed = min([len(spec.tokens), *(seq.num_computed for seq in driver.sequences)]) if turns else 0
    assert (computed == len(spec.tokens)) == (turns == 8) and (computed == 0) == (turns == 0)
    driver.engine.cancel(stream)
    driver.finish()
    assert end_of(stream.take()).num_prompt == computed


def test_cancelling_one_choice_of_a_request_cancels_all(drive):
    driver = drive()
    stream = driver.engine.submit([driver.spec(chat("several"), choice=i) for i in range(3)])
    driver.turn(3)
    driver.engine.cancel(stream)
    driver.engine.cancel(stream)
    driver.finish()
    items = stream.take()
    assert [end_of(items, i).reason for i in range(3)] == [FinishReason.CANCELLED] * 3


def test_cancelling_a_preempted_sequence_frees_its_copy(drive):
    driver = drive()
    stream = driver.submit(chat("swapped out"))
    driver.turn(4)
    driver.engine.preempt(driver.sequences[0])
    driver.engine.take_mail()
    assert driver.core.admission.swapped_bytes > 0
    driver.engine.cancel(stream)
    driver.finish()
    assert driver.engine.view.swapped_bytes == 0


def test_a_deadline_ends_waiting_and_running_sequences(drive):
    driver = drive(parallel=1)
    params = SamplingParams(temperature=0, ignore_eos=True)
    streams = [driver.submit(chat("slow"), params=params, deadline=0.5), driver.submit(chat("queued"), deadline=0.2)]
    driver.finish()
    for stream in streams:
        end = end_of(stream.take())
        assert end.reason is FinishReason.DEADLINE and isinstance(end.error, DeadlineExceeded)
    assert driver.sequences[1].admitted is None, "no prefill is spent on what is too late"


def test_a_full_queue_refuses(drive):
    driver = drive(parallel=1, queue_limit=2)
    for _ in range(3):
        driver.submit(chat("x"))
    with pytest.raises(QueueFull) as refusal:
        driver.submit(chat("one too many"))
    assert refusal.value.retry_after
    driver.engine.metrics.last_wait = 20.0
    later = set()
    for _ in range(50):
        with pytest.raises(QueueFull) as refusal:
            driver.submit(chat("one too many"))
        later.add(refusal.value.retry_after)
    assert 1 <= min(later) and max(later) <= 20 and len(later) > 5, "all of them would come back together"
    driver.finish()
    driver.answer(chat("room again"))


def test_more_choices_than_the_queue_could_ever_hold_are_refused_for_good(drive):
    """With 429 the client would retry for ever."""
    driver = drive(parallel=1, queue_limit=2)
    with pytest.raises(InvalidRequest, match="4 sequences .* at most 3 at once") as refusal:
        driver.engine.submit([driver.spec(chat("x"), choice=i) for i in range(4)])
    assert refusal.value.param == "n"
    driver.engine.submit([driver.spec(chat("x"), choice=i) for i in range(3)])
    driver.finish()


def test_waiting_embedding_inputs_take_no_places_from_chats():
    """One request of many inputs made every chat a 429, and the server unready."""
    from engine_driver import Driver, no_leaks

    driver = Driver(RecordingBackend(pooling="mean"), parallel=1, queue_limit=2)
    embedder = driver.engine.embedder
    inputs = embedder.submit([[1, 2, 3]] * 40)
    assert not driver.engine.is_full
    chats = [driver.submit(chat(text)) for text in ("one", "two", "three")]
    assert driver.engine.is_full
    while not driver.engine.metrics.finished.get("stop") == 3:
        driver.turn()
    assert [text_of(stream.take()) for stream in chats] == ["You said: one", "You said: two", "You said: three"]
    while embedder.num_open:
        embedder.turn()
    assert len(inputs.take()) == 40
    no_leaks(driver)


def test_an_embedding_model_is_full_when_its_own_queue_is():
    from engine_driver import Driver

    backend = RecordingBackend(pooling="mean")
    backend.generates = False
    driver = Driver(backend)
    embedder = driver.engine.embedder
    embedder.queue_limit = 2
    with pytest.raises(InvalidRequest, match="3 inputs") as refusal:
        embedder.submit([[1]] * 3)
    assert refusal.value.param == "input"
    embedder.submit([[1]] * 2)
    assert driver.engine.is_full
    with pytest.raises(QueueFull):
        embedder.submit([[1]])
    embedder.turn()
    assert not driver.engine.is_full


def test_a_prompt_longer_than_the_context_is_refused_before_anything_is_taken(drive):
    driver = drive(context=32)
    with pytest.raises(ContextTooLong) as refusal:
        driver.submit("x" * 32)
    assert "maximum context length is 32 tokens. However, your messages resulted in 32 tokens" in refusal.value.message
    assert driver.engine.num_open == 0
    driver.submit("x" * 31)
    driver.finish()


@pytest.mark.parametrize("prompt", [[], [-1], [263], [5, 2**31 - 1]])
def test_prompts_of_no_or_impossible_tokens_are_refused(drive, prompt):
    with pytest.raises(InvalidRequest):
        drive().submit(prompt)


def test_bias_outside_the_vocabulary_is_refused(drive):
    with pytest.raises(InvalidRequest):
        drive().submit("abc", params=SamplingParams(logit_bias=LogitBias(((263, 1.0),))))


def test_requests_are_refused_while_loading_and_draining(drive):
    driver = drive()
    accepted = driver.submit(chat("before"))
    driver.engine.drain()
    with pytest.raises(Unavailable):
        driver.submit(chat("after"))
    driver.finish()
    assert text_of(accepted.take()) == "You said: before"


def test_fail_all_ends_everything_with_that_error(drive):
    driver = drive(parallel=1)
    streams = [driver.submit(chat("one")), driver.submit(chat("two"))]
    driver.turn(2)
    driver.engine.fail_all(Unavailable("The server is shutting down."))
    driver.turn()
    assert [end_of(s.take()).error.message for s in streams] == ["The server is shutting down."] * 2


# the loop's thread, and what others see


def test_the_thread_answers_and_stops(drive):
    engine = HandEngine(lambda progress: RecordingBackend())
    engine.start()
    while engine.status.state == "loading":
        pass
    stream = engine.submit([spec(RecordingBackend().vocab.tokenize(chat("threaded")), params=GREEDY)])
    items = []
    while stream.open_choices or len(stream):
        stream.wait(10)
        items += stream.take()
    assert text_of(items) == "You said: threaded"
    assert engine.stop(10) and engine.status.state == "stopped" and engine.backend.closed


def test_stopping_ends_open_sequences():
    engine = HandEngine(lambda progress: RecordingBackend())
    engine.start()
    while engine.status.state == "loading":
        pass
    params = SamplingParams(temperature=0, ignore_eos=True)
    stream = engine.submit([spec([BOS], params=params)])
    stream.wait(10)
    assert engine.stop(10)
    assert isinstance(end_of(stream.take()).error, Unavailable)


def test_a_model_that_cannot_be_loaded_says_why():
    from llamasrv.engine.base.interface import LoadFailed

    def fail(progress):
        raise LoadFailed("model.gguf: not a GGUF file")

    engine = HandEngine(fail)
    engine.host.run()
    assert (engine.status.state, engine.status.reason) == ("failed", "model.gguf: not a GGUF file")
    with pytest.raises(Unavailable):
        engine.submit([spec([1])])


def test_a_model_is_freed_if_its_engine_cannot_be_created(monkeypatch):
    """The weights stayed in memory when anything failed between loading them and the first turn."""
    from llamasrv.engine import core

    def fail(*_, **__):
        raise OSError("no threads")

    monkeypatch.setattr(core, "scheduler_for", fail)
    backend = RecordingBackend()
    engine = HandEngine(lambda progress: backend)
    engine.host.run()
    assert engine.status.state == "failed" and backend.closed


def test_a_snapshot_lists_running_and_waiting_sequences(drive):
    driver = drive(parallel=1)
    driver.submit(chat("runs"))
    driver.submit(chat("waits"))
    driver.turn(2)
    driver.now += VIEW_SECONDS
    driver.turn()
    shot = driver.engine.snapshot()
    assert shot["num_waiting"] == 1 and shot["running"][0]["num_generated"] == 3
    assert shot["cells"]["held"] == shot["running"][0]["num_computed"]
    driver.finish()


def test_metrics_count(drive):
    driver = drive()
    driver.answer(chat("count me"))
    m = driver.engine.metrics
    assert m.requests == 1 and m.finished == {"stop": 1}
    assert m.generated_tokens == len("You said: count me") + 1
    assert sum(m.first_token_seconds.counts) == sum(m.queue_seconds.counts) == 1
    assert m.step_seconds.cumulative()[-1] == ("+Inf", m.steps)


def test_short_steps_share_a_wake_up_but_first_tokens_and_ends_do_not_wait(drive):
    driver = drive(coalesce=0.05)
    rings = []
    driver.engine.doorbell.ring = lambda: rings.append(driver.now)
    driver.submit(chat("0123456789" * 3))
    driver.finish()
    steps = driver.engine.metrics.steps
    assert rings[1] <= 0.031, "the first token leaves when the next step begins"
    assert steps / 8 < len(rings) < steps / 2
    assert rings[-1] == driver.now


def test_ended_sequences_are_in_their_last_state(drive):
    driver = drive()
    driver.submit(chat("x"))
    driver.finish()
    (seq,) = driver.sequences
    assert seq.state is SequenceState.ENDED


def test_chains_that_look_at_every_token_work_side_by_side_and_choose_the_same(drive):
    large = {"num_tokens": SMALL_VOCABULARY}
    heavy = [SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=i) for i in range(6)]
    alone = [drive(**large).answer(chat("side by side"), params=params) for params in heavy]
    driver = drive(threads=3, **large)
    streams = [driver.submit(chat("side by side"), params=params) for params in heavy]
    driver.finish()
    assert [text_of(stream.take()) for stream in streams] == alone and driver.engine.pool.num_threads == 2
    driver.engine.host.close()


def test_an_engine_that_holds_deferrable_work_sleeps_and_delivers_ends(drive):
    """With only deferrable work it spun without a pause, and the last step's end was not delivered."""
    driver = drive()
    stream = driver.submit(chat("later"), deferrable=True)
    driver.turn()
    driver.engine.hold_deferrable(10.0)
    steps = driver.engine.metrics.steps
    slept, take = [], driver.core.mailbox.take
    driver.core.mailbox.take = lambda seconds=0: slept.append(seconds) or take(0)
    for _ in range(3):
        assert not driver.engine.turn(wait=True)
    assert driver.engine.metrics.steps == steps and not driver.engine.doorbell.ready
    assert min(slept[1:]) > 0
    person = driver.submit(chat("now"))
    while not person.ended:
        driver.turn()
    assert not stream.ended
    driver.engine.hold_deferrable(0.0)
    driver.finish()
    assert stream.ended


@pytest.mark.parametrize("seated", [True, False])
def test_a_deferrable_request_that_is_needed_soon_is_computed_beside_others(drive, seated):
    driver = drive(parallel=4)
    person = driver.submit(chat("on and on " * 20), max_tokens=200)
    if seated:
        stream = driver.submit(chat("later"), deferrable=True)
        driver.engine.hurry(stream, Urgency.URGENT)
    driver.turn(3)
    if not seated:
        stream = driver.submit(chat("later"), deferrable=True)
        driver.turn(10)
        assert not stream.take()
        driver.engine.hurry(stream, Urgency.URGENT)
    while not stream.ended:
        driver.turn()
    assert not person.ended and text_of(stream.take()) == "You said: later"
    driver.finish()
