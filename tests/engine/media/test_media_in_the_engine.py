"""Images and sounds through the engine, on the fake model with the fake projector."""

from __future__ import annotations

import random

import pytest
from engine_driver import end_of, text_of
from media_prompts import picture, prompt, sound
from recording_backend import RecordingBackend

from llamasrv.concurrency import Mailbox
from llamasrv.domain.events import FinishReason
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.engine.base.interface import ATTENTION, RECURRENT
from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.step.step_policy import LONGER
from llamasrv.errors import EngineFailure, InvalidRequest, Unavailable, Unsupported
from llamasrv.web.stored.slots import SavedSlotFiles


@pytest.fixture
def see(drive):
    """`see(mrope=True, num_cells=...)`: an engine with a projector of that kind."""

    def make(*, mrope=False, whole=False, **settings):
        return drive(projector=FakeProjector(mrope=mrope, whole=whole), **settings)

    return make


def ask(driver, *parts, **settings):
    return driver.engine.submit([prompt(driver.engine, *parts, **settings)])


def answer(driver, *parts, **settings):
    stream = ask(driver, *parts, **settings)
    driver.finish()
    items = stream.take()
    return text_of(items), end_of(items)


KINDS = pytest.mark.parametrize("kind", [{}, {"mrope": True}, {"whole": True}], ids=["plain", "mrope", "whole"])


@KINDS
def test_it_answers_about_an_image(see, kind):
    text, end = answer(see(**kind), "look: ", picture("cat"), "what is it?", max_tokens=200)
    assert text == "You said: look: [image]what is it?"
    assert end.num_prompt == len("user\n" + "look: [image]what is it?" + "\nassistant\n") + 3 + 12


def test_a_sound_is_several_chunks(see):
    driver = see()
    text, end = answer(driver, sound("speech", 70), max_tokens=200)
    assert text == "You said: [audio]" and len(driver.backend.projector.encoded) == 3
    assert end.num_prompt > 140


@KINDS
def test_a_prompt_may_end_with_an_image(see, kind):
    """Then the image's last row yields the next token."""
    driver = see(**kind)
    whole = prompt(driver.engine, "x", picture("cat"))
    span = whole.media[0]
    spec = type(whole)(whole.tokens[: span.end], media=whole.media, params=whole.params, max_tokens=3)
    stream = driver.engine.submit([spec])
    driver.finish()
    end = end_of(stream.take())
    assert end.num_prompt == span.end and end.num_generated >= 1


@KINDS
def test_one_image_of_eight_requests_is_encoded_and_computed_once(see, kind):
    driver = see(**kind)
    streams = [ask(driver, picture("cat"), f"question {n}", max_tokens=40) for n in range(8)]
    driver.finish()
    assert [text_of(s.take()) for s in streams] == [f"You said: [image]question {n}" for n in range(8)]
    assert len(driver.backend.projector.encoded) == 1
    assert driver.engine.metrics.media_encoded == 1
    assert driver.engine.metrics.cached_tokens >= 7 * (1 + len("user\n[image") + 12)


def test_two_scopes_encode_the_same_image_separately(see):
    """A quick answer revealed to one API key that another had sent this picture."""
    driver = see()
    for scope in ("ann", "bob", "ann"):
        answer(driver, scope, picture("cat"), "one", max_tokens=40, cache_key=CacheKey(scope=scope))
    assert driver.engine.metrics.media_encoded == 2
    streams = [
        ask(driver, picture("dog"), "one", max_tokens=40, cache_key=CacheKey(scope=scope)) for scope in ("ann", "bob")
    ]
    driver.finish()
    assert [text_of(s.take()) for s in streams] == 2 * ["You said: [image]one"]
    assert driver.engine.metrics.media_encoded == 4 and len(driver.core.encoder._rows) == 4


@KINDS
def test_an_image_in_kv_is_not_encoded_again(see, kind):
    driver = see(**kind, media_bytes=0)
    answer(driver, picture("cat"), "one", max_tokens=40)
    _, end = answer(driver, picture("cat"), "two", max_tokens=40)
    assert end.num_reused >= 12 and len(driver.backend.projector.encoded) == 1


@KINDS
def test_another_image_of_the_same_size_shares_nothing(see, kind):
    driver = see(**kind)
    answer(driver, "same words", picture("cat"), "one", max_tokens=40)
    _, end = answer(driver, "same words", picture("dog"), "one", max_tokens=40)
    assert end.num_reused == 1 + len("user\nsame words[image") and len(driver.backend.projector.encoded) == 2


def test_other_sequences_continue_while_one_waits_for_the_encoder(see):
    driver = see()
    driver.encodes = False
    waits = ask(driver, picture("cat"), max_tokens=40)
    other = ask(driver, "hello", max_tokens=40)
    for _ in range(60):
        driver.turn()
    assert text_of(other.take()) == "You said: hello"
    assert driver.sequences[0].state is SequenceState.AWAITING_ENCODER and not waits.take()
    driver.encodes = True
    driver.finish()
    assert text_of(waits.take()) == "You said: [image]"


def test_streams_continue_between_chunks_of_a_large_image(see):
    """Steps of media rows alternate with steps of tokens, which give every stream a token."""
    driver = see(batch_size=64, ubatch_size=32, spec="off")
    stream = ask(driver, "a" * 90, max_tokens=200)
    driver.turn(12)
    stream.take()
    ask(driver, picture("large", 512, 512), max_tokens=1)
    lengths, kinds = [], []
    while driver.engine.num_open > 1:
        driver.turn()
        kinds.append(driver.backend.batch.media is not None)
        lengths.append(len(stream.take()))
    assert sum(kinds) >= 4 and not any(a and b for a, b in zip(kinds, kinds[1:]))
    assert all(length or kind for length, kind in zip(lengths, kinds))
    driver.finish()


def test_beside_a_large_image_and_text_a_stream_s_gap_is_what_its_readers_have(see):
    """With the times of a 0.5B model. Text after the image shared the step after its last rows."""
    driver = see(batch_size=512, ubatch_size=512, context=4000, spec="off")
    backend, decode = driver.backend, driver.backend.decode

    def timed():
        decode()
        batch = backend.batch
        decodes = 0 if batch.media is not None else min(batch.num_outputs, batch.num_rows)
        driver.now += 0.027 + 0.01 * decodes + 0.0035 * (batch.num_rows - decodes)

    backend.decode = timed
    streams = [ask(driver, "a" * (90 + n), max_tokens=300) for n in range(3)]
    driver.turn(40)
    ask(driver, picture("large", 1024, 1024), "b" * 40, max_tokens=1)
    told, rows = [], []
    while driver.engine.num_open > 3:
        driver.turn()
        if backend.batch.media is not None:
            rows.append(backend.batch.num_rows)
        if streams[0].take():
            told.append(driver.now)
    gaps = [after - before for before, after in zip(told, told[1:])]
    assert sum(rows) == 256 and min(rows[:-1]) >= 16
    assert 0.15 < max(gaps) < 0.2 * (1 + LONGER) + 0.021  # rows and decodes: two turns of this driver, 10 ms more each
    driver.finish()


def test_a_non_causal_chunk_is_one_step(see):
    driver = see(whole=True, ubatch_size=128, batch_size=256)
    ask(driver, "hello " * 10, max_tokens=100)
    driver.turn(8)
    ask(driver, picture("cat", 320, 320), max_tokens=1)
    rows = []
    while driver.engine.num_open:
        driver.turn()
        if driver.backend.batch.media is not None:
            rows.append(driver.backend.batch.num_rows)
    assert rows == [100]


def test_a_whole_chunk_larger_than_a_ubatch_is_refused(see):
    driver = see(whole=True, ubatch_size=64)
    with pytest.raises(InvalidRequest, match="100 tokens, which must be computed in one step"):
        ask(driver, picture("cat", 320, 320))


def test_a_model_without_a_projector_refuses(see, drive):
    spec = prompt(see().engine, picture("cat"))
    with pytest.raises(Unsupported, match="no projector"):
        drive().engine.submit([spec])


def test_negative_tokens_outside_of_spans_are_refused(see):
    driver = see()
    spec = prompt(driver.engine, picture("cat"))
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        driver.engine.submit([type(spec)(spec.tokens, params=spec.params)])
    spec.tokens[0] = -5
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        driver.engine.submit([spec])


def test_prompts_with_images_are_not_scored(see):
    driver = see()
    with pytest.raises(InvalidRequest, match="Log-probabilities"):
        ask(driver, picture("cat"), prompt_logprobs=True)


def test_a_sequence_cancelled_while_waiting_is_not_encoded(see):
    driver = see()
    driver.encodes = False
    streams = [ask(driver, picture(f"{n}"), max_tokens=5) for n in range(5)]
    driver.turn()
    for stream in streams:
        driver.engine.cancel(stream)
    driver.turn()
    driver.encodes = True
    driver.turn(10)
    assert [end_of(s.take()).reason for s in streams] == [FinishReason.CANCELLED] * 5
    assert driver.backend.projector.encoded == []


def test_an_image_wanted_again_is_encoded(see):
    """A cancelled job may be half done: later requests start another."""
    driver = see()
    driver.encodes = False
    first = ask(driver, picture("cat"), max_tokens=5)
    driver.turn()
    driver.engine.cancel(first)
    driver.turn()
    again = ask(driver, picture("cat"), max_tokens=40)
    driver.turn()
    driver.encodes = True
    driver.finish()
    assert text_of(again.take()) == "You said: [image]"


@pytest.mark.parametrize("error", [InvalidRequest("The image cannot be used."), ZeroDivisionError("ours")])
def test_a_broken_image_fails_only_its_sequence(see, error):
    driver = see()
    projector = driver.backend.projector
    bad = picture("bad")

    def encode(media, chunks, stop):
        if media.key == bad.key:
            raise error
        return FakeProjector.encode(projector, media, chunks, stop)

    projector.encode = encode
    streams = [ask(driver, image, max_tokens=40) for image in (picture("cat"), bad, bad)]
    driver.finish()
    items = [stream.take() for stream in streams]
    assert text_of(items[0]) == "You said: [image]"
    for taken in items[1:]:
        expected = error if isinstance(error, InvalidRequest) else EngineFailure("")
        assert end_of(taken).reason is FinishReason.FAILED and type(end_of(taken).error) is type(expected)


def test_the_least_recently_used_rows_are_evicted_first(see):
    driver = see(media_bytes=2 * 12 * 16)  # two images
    for name in ("a", "b", "a", "c"):
        answer(driver, name, picture(name), max_tokens=40)
    assert driver.core.encoder.used <= 2 * 12 * 16


def test_a_long_queue_of_images_holds_no_more_rows_than_the_limit(see):
    """Rows are encoded ahead within the limit, not for all waiting sequences."""
    driver = see(media_bytes=3 * 12 * 16, parallel=1)
    streams = [ask(driver, f"{n}", picture(f"{n}"), max_tokens=60) for n in range(12)]
    most = 0
    while driver.engine.num_open:
        driver.turn()
        most = max(most, driver.core.encoder.used)
    assert most <= 3 * 12 * 16
    assert [text_of(s.take()) for s in streams] == [f"You said: {n}[image]" for n in range(12)]


def test_an_image_larger_than_the_limit_is_served(see):
    driver = see(media_bytes=16)
    streams = [ask(driver, picture(f"{n}"), max_tokens=40) for n in range(3)]
    driver.finish()
    assert [text_of(s.take()) for s in streams] == ["You said: [image]"] * 3
    assert driver.core.encoder.used == 0


@KINDS
def test_a_prefix_that_ends_inside_an_image_is_used_up_to_the_image(see, kind):
    """Cancelled inside an image: with M-RoPE all its rows share one position and cannot be cut."""
    driver = see(**kind, batch_size=128, ubatch_size=128)
    image = picture("large", 320, 320)
    stream = ask(driver, "words before it ", image, "first", max_tokens=40)
    for _ in range(50):
        driver.turn()
        seq = driver.sequences[0]
        if seq.media.at(seq.num_computed) == 0 or seq.num_computed > seq.media.spans[0].start:
            break
    driver.engine.cancel(stream)
    driver.turn()
    text, _ = answer(driver, "words before it ", image, "second", max_tokens=60)
    assert text == "You said: words before it [image]second"


@KINDS
def test_a_preempted_sequence_resumes_inside_its_image(see, kind):
    driver = see(**kind, batch_size=128, ubatch_size=128)
    stream = ask(driver, picture("large", 320, 320), "and?", max_tokens=60)
    for _ in range(200):
        if not driver.engine.num_open:
            break
        driver.turn()
        if driver.sequences[0].lane is not None and driver.sequences[0].num_computed and driver.now < 0.5:
            driver.engine.preempt(driver.sequences[0])
    assert text_of(stream.take()) == "You said: [image]and?"


@KINDS
def test_evicted_rows_are_encoded_again(see, kind):
    """It waited with its image in KV, and the prefix was evicted before it was seated."""
    driver = see(**kind, parallel=1, cache_bytes=0, media_bytes=0)
    answer(driver, picture("cat"), "one", max_tokens=40)
    busy = ask(driver, "busy", max_tokens=60)
    driver.turn(3)
    waits = ask(driver, picture("cat"), "two", max_tokens=60)
    driver.turn()
    assert driver.sequences[-1].state is SequenceState.WAITING
    while driver.core.memory.lanes.resident:
        driver.core.memory.evict()
    driver.finish()
    assert text_of(waits.take()) == "You said: [image]two" and text_of(busy.take()) == "You said: busy"
    assert len(driver.backend.projector.encoded) == 2


@KINDS
@pytest.mark.parametrize("traits", [ATTENTION, RECURRENT], ids=["cut", "states"])
@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_media_gives_the_same_as_each_alone(drive, kind, traits, seed):
    """Shared prefixes, preemptions, evictions and few cells: every answer is that of a fresh engine."""
    dice = random.Random(seed)
    driver = drive(
        RecordingBackend(
            projector=FakeProjector(**kind),
            num_lanes=6,
            num_cells=400,
            context=260,
            batch_size=64,
            ubatch_size=64,
            traits=traits,
            idle_cells=100,
        ),
        parallel=4,
        media_bytes=2000,
        cache_bytes=dice.choice([0, 20_000]),
        deterministic=False,
    )
    images = [picture(str(n), *dice.choice([(60, 60), (200, 40), (256, 250)])) for n in range(4)]
    streams, expected = [], []
    for _ in range(40):
        parts = [dice.choice([*images, *(f"some words {k}" for k in range(3))]) for _ in range(dice.randint(1, 4))]
        try:
            streams.append(ask(driver, *parts, max_tokens=90))
        except InvalidRequest:
            continue  # longer than the context
        expected.append("You said: " + "".join(p if isinstance(p, str) else "[image]" for p in parts))
        driver.turn(dice.randint(0, 12))
        if dice.random() < 0.2:
            driver.engine.cancel(streams.pop())
            expected.pop()
        if dice.random() < 0.3 and driver.core.running:
            driver.engine.preempt(dice.choice(driver.core.running))
    driver.finish()
    for stream, whole in zip(streams, expected):
        items = stream.take()
        is_full = end_of(items).reason is FinishReason.CONTEXT
        assert text_of(items) == whole or (is_full and whole.startswith(text_of(items)))


def test_a_saved_slot_with_an_image_needs_a_projector(see, drive, tmp_path):
    files = SavedSlotFiles(tmp_path, {"model": "fake"})
    first = see()
    _, end = answer(first, "look: ", picture("cat"), "what is it?", max_tokens=20)
    state = first.core.admission.slots.save(end.slot, first.core.memory)
    files.write("talk", state)
    assert min(state.tokens) < 0
    again = see(idle_cells=0)
    again.core.admission.slots.restore(0, files.read("talk")[0], again.core.memory)
    again.core.scheduler.cost.learn(64, 0, 1.0)  # computing is slow enough for states to be worth copying
    _, end = answer(again, "look: ", picture("cat"), "what is it?", max_tokens=20)
    assert end.num_reused == end.num_prompt - 1 and not again.backend.projector.encoded
    blind = drive()
    with pytest.raises(InvalidRequest, match="Cannot restore media tokens without an mmproj"):
        blind.core.admission.slots.restore(0, files.read("talk")[0], blind.core.memory)
    assert blind.core.memory.host.exactly(state.tokens, state.cache_key) is None


def test_an_engine_that_closes_does_not_wait_for_an_encode(see):
    """With the encoder's own thread, as in a server: its job is abandoned."""
    driver = see()
    driver.encodes = False
    begun = Mailbox()

    def encode(media, chunks, stop):
        begun.put(True)
        while not stop():
            pass
        return []

    driver.backend.projector.encode = encode
    driver.core.encoder.start()
    stream = ask(driver, picture("cat"))
    driver.turn()
    assert begun.take(10)
    driver.core.close(Unavailable("over"))
    driver.core.encoder.close()
    assert end_of(stream.take()).reason is FinishReason.FAILED


@pytest.mark.parametrize("mrope", [False, True])
def test_drafts_after_an_image_are_rolled_back_to_the_right_position(see, mrope):
    """Positions after an M-RoPE image are smaller than the number of tokens before them."""
    driver = see(mrope=mrope, spec="ngram")
    words = "one two three four five six seven eight nine ten " * 3
    text, _ = answer(driver, picture("cat"), words, max_tokens=250)
    assert text == f"You said: [image]{words}"
    assert sum(driver.engine.metrics.drafted_tokens.values()) > 0


def test_a_lookup_that_fails_on_arrival_loses_none_of_the_choices(see):
    """Those behind the first had not been entered anywhere: their clients waited for ever."""
    driver = see()
    lookup = driver.core.memory.lookup

    def fail(seq):
        driver.core.memory.lookup = lookup
        raise RuntimeError("the library refuses")

    driver.core.memory.lookup = fail
    stream = driver.engine.submit([prompt(driver.engine, "x", picture("cat"), choice=n) for n in range(3)])
    assert driver.engine.host.turn(wait=False)
    items = stream.take()
    assert all(isinstance(end_of(items, n).error, EngineFailure) for n in range(3))
    assert driver.engine.num_open == 0
