"""Memories that cannot be cut go back to a checkpoint, whichever lane computed the prompt."""

import zlib
from array import array

import numpy as np
import pytest
from engine_driver import chat, end_of, text_of

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.interface import HYBRID, RECURRENT
from llamasrv.engine.kv.checkpointing import checkpoint_places
from llamasrv.engine.kv.checkpoints import Checkpoints
from llamasrv.engine.kv.state import checkpoint
from llamasrv.engine.kv.tree import EVERYBODY, PrefixTree

KINDS = {
    "partial": {"traits": HYBRID},
    "whole": {"traits": RECURRENT},
}
SYSTEM = "<|im_start|>system\n" + "a system prompt of some length " * 20 + "<|im_end|>\n"


def tokens(text):
    return array("i", list(text.encode()))


def state(size=1000):
    return np.zeros(size, np.uint8)


# the table


def test_it_finds_the_checkpoints_along_a_prompt():
    table = Checkpoints(100_000, PrefixTree())
    for text in ("a common start", "a common start, then one", "a common start, then two"):
        table.put(checkpoint(tokens(text), state(), EVERYBODY))
    assert list(table.along(tokens("a common start, then two and more"), 100, EVERYBODY)) == [14, 24]
    assert list(table.along(tokens("a common start, then two and more"), 20, EVERYBODY)) == [14]
    assert not table.along(tokens("a common start"), 100, CacheKey(scope="somebody"))


def test_timelines_with_equal_checksums_have_separate_checkpoints():
    """A client could craft two prompts with equal length, first tokens and CRC-32 in a second: both left a checkpoint
    in one entry, and when both were evicted the step failed, with all requests and prefixes."""
    table, seen, rng = Checkpoints(100_000, PrefixTree()), {}, np.random.default_rng(3)
    while True:
        text = array("i", [*b"a common beginning", *rng.integers(0, 256, 6).tolist()])
        other = seen.setdefault(zlib.crc32(text), text)
        if other != text:
            break
    for one in (text, other):
        table.put(checkpoint(one, state(), EVERYBODY))
    for one in (text, other):
        (point,) = table.along(one, 100, EVERYBODY).values()
        assert point.tokens == one
    table.put(checkpoint(tokens("one that takes all the room"), state(98_000), EVERYBODY))
    assert len(table) == 1 and not table.along(text, 100, EVERYBODY) and not table.along(other, 100, EVERYBODY)


def test_it_never_exceeds_its_limit():
    table = Checkpoints(5_000, PrefixTree())
    for n in range(100):
        table.put(checkpoint(tokens(f"{n:08} and so on"), state(), EVERYBODY))
        assert table.used <= 5_000
    table.put(checkpoint(tokens("larger than everything"), state(6_000), EVERYBODY))
    assert table.used == sum(point.num_bytes for point in table.states()) and 0 < len(table) < 5


def test_valuable_checkpoints_outlive_others():
    table = Checkpoints(12_000, PrefixTree())
    table.put(checkpoint(tokens("a long beginning " * 20), state(), EVERYBODY))
    (root,) = table.along(tokens("a long beginning " * 20), 1000, EVERYBODY).values()
    for n in range(50):
        table.put(checkpoint(tokens(f"{n:08}"), state(), EVERYBODY))
        if n % 10 == 0:
            table.note_use(root)
    assert table.along(root.tokens, 1000, EVERYBODY)


def test_unused_checkpoints_are_evicted_in_the_end():
    table = Checkpoints(6_000, PrefixTree())
    table.put(checkpoint(tokens("a long beginning " * 5), state(), EVERYBODY))
    for n in range(500):
        table.put(checkpoint(tokens(f"{n:08}" * 3), state(), EVERYBODY))
    assert not table.along(tokens("a long beginning " * 5), 1000, EVERYBODY)


# where they are


def test_the_last_two_message_starts_get_checkpoints_and_distant_earlier_ones():
    assert checkpoint_places(2000, 0, (10, 600, 700, 1500, 1980, 1990)) == [700, 976, 1500, 1980, 1990]


def test_without_message_boundaries_checkpoints_are_denser_towards_the_end():
    assert checkpoint_places(650, 0, ()) == [138, 394, 522, 586, 646]


def test_reused_tokens_get_no_checkpoints():
    assert checkpoint_places(650, 600, ()) == [646]
    assert checkpoint_places(20, 0, (5, 10)) == []


def test_prompts_get_a_checkpoint_where_they_diverge():
    assert 444 in checkpoint_places(650, 0, (), branch=444)


# the engine with them


@pytest.fixture(params=KINDS)
def driver(drive, request):
    driver = drive(parallel=8, num_lanes=16, num_cells=16384, batch_size=512, **KINDS[request.param])
    driver.core.scheduler.cost.prompt_seconds = lambda count: float(count > 0)  # everything is worth keeping
    return driver


def run(driver, *prompts, **settings):
    """The answer of each, and how many tokens were reused."""
    streams = [driver.submit(prompt, **settings) for prompt in prompts]
    driver.finish()
    items = [stream.take() for stream in streams]
    return [text_of(i) for i in items], [end_of(i).num_reused for i in items]


def boundaries(text):
    """Starts of messages, in the fake's tokens."""
    found, at = [], 0
    for part in text.split("<|im_start|>")[1:]:
        found.append(at)
        at += 1 + len(part.replace("<|im_end|>", "\0"))
    return tuple(found)


def test_a_prompt_with_another_end_resumes_from_a_checkpoint(driver):
    run(driver, SYSTEM + chat("x" * 300 + "one"))
    said, (reused,) = run(driver, SYSTEM + chat("x" * 300 + "other"))
    assert said == ["You said: " + "x" * 300 + "other"] and reused > 850


def test_newcomers_wait_while_their_prefix_is_computed(driver):
    before = driver.engine.metrics.prompt_tokens
    prompts = [SYSTEM + chat(f"{n} " * 3) for n in range(8)]
    said, reused = run(driver, *prompts)
    assert said == [f"You said: {n} {n} {n} " for n in range(8)]
    length = len(driver.backend.vocab.tokenize(SYSTEM))
    assert sum(count > length - 16 for count in reused) == 7
    assert driver.engine.metrics.prompt_tokens - before < 1.15 * length + 8 * 60


def test_a_turn_without_earlier_thoughts_resumes_before_them(driver):
    first = SYSTEM + chat("why?")
    run(driver, first, boundaries=boundaries(first))
    second = first + "because<|im_end|>\n" + chat("and?")
    said, (reused,) = run(driver, second, boundaries=boundaries(second))
    assert said == ["You said: and?"] and reused >= boundaries(first)[-1]


def test_an_edited_message_costs_only_what_follows(driver):
    turns = [SYSTEM, chat("first " * 60), "yes<|im_end|>\n", chat("second " * 60), "no<|im_end|>\n", chat("third")]
    whole = "".join(turns)
    run(driver, whole, boundaries=boundaries(whole))
    edited = whole.replace("second " * 60, "changed " * 60)
    _, (reused,) = run(driver, edited, boundaries=boundaries(edited))
    assert reused >= len(driver.backend.vocab.tokenize("".join(turns[:3])))


def test_the_second_prompt_teaches_where_prompts_branch(driver):
    """The first prompt has no checkpoint where the second one branches off; the third prompt finds one."""
    text = "x" * 2000
    run(driver, text + "a" * 900)
    _, (first,) = run(driver, text + "b" * 900)
    _, (second,) = run(driver, text + "c" * 900)
    assert first < 1999 <= second


@pytest.mark.parametrize("kind", KINDS)
def test_no_checkpoint_contains_an_unverified_draft(drive, kind):
    """A follower asked for a checkpoint in the middle of a draft; it was taken while the lane held unverified rows, and
    later prompts continued from tokens that were never generated."""
    driver = drive(**KINDS[kind], max_rollback=4, parallel=2, checkpoint_bytes=1 << 20)
    for rows in (1, 2, 4, 8, 16, 32):  # as if more rows cost next to nothing
        driver.core.scheduler.cost.rows.learn(rows, 0.01 + 1e-6 * rows)
    stream = driver.submit(chat("abcdefgh " * 12), max_tokens=100)
    driver.turn(2)
    (seq,) = driver.core.running
    seq.checkpoints[:] = range(seq.num_tokens, seq.num_tokens + 90)
    driver.finish()
    assert stream.take()[-1].drafts.accepted > 0
    for point in driver.core.memory.checkpoints.states():
        kept = len(point.data) // 2 if kind == "whole" else int(point.data[0])
        assert kept == point.length


def test_branching_off_leaves_the_running_sequence_alone(driver):
    long = driver.submit(SYSTEM + chat("x" * 200))
    driver.turn(12)
    said, _ = run(driver, *(SYSTEM + chat("x" * 200 + str(n)) for n in range(3)))
    assert said == [f"You said: {'x' * 200}{n}" for n in range(3)]
    assert text_of(long.take()) == "You said: " + "x" * 200


def test_an_evicted_prefix_can_be_restored_up_to_a_checkpoint(drive):
    for kind in KINDS.values():
        driver = drive(idle_cells=0, **kind)
        driver.core.scheduler.cost.prompt_seconds = lambda count: float(count > 0)
        run(driver, SYSTEM + chat("one"))
        run(driver, "something else entirely")
        said, (reused,) = run(driver, SYSTEM + chat("other"))
        assert said == ["You said: other"] and reused > 500
        assert driver.engine.metrics.reused_tokens["host" if kind["traits"] is HYBRID else "checkpoint"] > 500


def test_scopes_have_checkpoints_of_their_own(driver):
    run(driver, SYSTEM + chat("one"), scope="ann")
    assert run(driver, SYSTEM + chat("two"), scope="bob")[1] == [0]
    assert run(driver, SYSTEM + chat("two"), scope="ann")[1][0] > 500


def test_a_preempted_sequence_resumes_where_it_was(driver):
    stream = driver.submit(SYSTEM + chat("hello there"))
    driver.turn(4)
    driver.engine.preempt(driver.sequences[-1])
    driver.finish()
    assert text_of(stream.take()) == "You said: hello there"


def test_fifty_conversations_under_a_limit_of_three_checkpoints(drive):
    for kind in KINDS.values():
        size = 200 * 4 + 24 if kind["traits"] is HYBRID else 2 * 200 * 4
        driver = drive(parallel=8, checkpoint_bytes=3 * (size + 600), **kind)
        table = driver.core.memory.checkpoints
        streams = [driver.submit(chat(f"{n:03} " * 40), max_tokens=14) for n in range(50)]
        while driver.engine.num_open:
            driver.turn()
            assert table.used <= table.limit
        assert [text_of(s.take()) for s in streams] == [f"You said: {n:03} " for n in range(50)]
        assert driver.engine.metrics.checkpoints > 50


def test_without_checkpoint_memory_prompts_are_recomputed(drive):
    driver = drive(checkpoint_bytes=0, **KINDS["partial"])
    assert run(driver, SYSTEM + chat("one")) == (["You said: one"], [0])
    assert run(driver, SYSTEM + chat("two")) == (["You said: two"], [0])


def test_a_failed_rewind_recomputes_the_prompt(drive, monkeypatch):
    driver = drive(**KINDS["partial"])
    run(driver, SYSTEM + chat("one"))
    monkeypatch.setattr(driver.backend, "rewind", lambda *args: False)
    said, (reused,) = run(driver, SYSTEM + chat("two"))
    assert said == ["You said: two"] and reused == 0
