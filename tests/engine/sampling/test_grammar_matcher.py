import threading

import numpy as np
import pytest
from constraints import CALLS, constraint, run
from engine_driver import GREEDY

from llamasrv.engine.backend.fake import IM_END, FakeVocabulary
from llamasrv.engine.sampling import grammar_matcher
from llamasrv.engine.sampling.grammar_matcher import (
    FIRST_DRAFTED,
    FOLLOW_SECONDS,
    MASK_SECONDS,
    MOST_FOLLOWING,
    MOST_MASKS,
    QUICK,
    SLOW_SEARCH,
    reason_of,
)
from llamasrv.errors import InvalidRequest


def test_no_token_runs_past_the_end_of_the_mark(compiler):
    """A possible prefix of a mark binds already."""
    matcher = compiler.compile(CALLS, ("##",)).matcher()
    bound = []
    for byte in b"a#b##":
        assert matcher.accept(byte) if byte != ord("b") else not matcher.accept(byte)
        bound.append(matcher.binding)
        if byte == ord("b"):
            break
    assert bound == [False, True, True]


def test_only_few_candidates_are_listed(compiler):
    matcher = compiler.compile("start: /[a-c]/").matcher()
    matcher.compute_mask()
    assert matcher.ids.tolist() == [97, 98, 99] and matcher.banned is None
    wide = compiler.compile("start: /(?s:.)*/").matcher()
    wide.compute_mask()
    assert IM_END in wide.ids


def test_large_masks_are_lists_of_banned_tokens_or_dense(compiler):
    grammar = compiler.compile("start: /[^a-c]/")
    few = grammar.matcher()
    grammar.few = 150
    few.compute_mask()
    assert few.ids is None and few.banned.dtype != bool and {97, 98, 99} <= set(few.banned.tolist())
    grammar.few = 3
    few.compute_mask()
    assert few.banned.dtype == bool and few.banned[97] and not few.banned[100]
    row = np.zeros(FakeVocabulary().size, np.float32)
    row[few.banned] = -np.inf
    assert row[98] == -np.inf and row[100] == 0


def test_wide_masks_are_right_in_every_form(drive):
    for few in (1, 200):
        driver = drive()
        driver.engine.grammars.compile("start: /[^Y]{12}/").few = few
        text, _ = run(driver, constraint=constraint(driver, "start: /[^Y]{12}/"), params=GREEDY)
        assert len(text) == 12 and "Y" not in text


def test_is_complete_can_be_read_while_a_mask_is_computed(compiler):
    """Tokens computed with the prompt are delivered then, mask or no mask; asking the matcher while a mask was computed
    raised, and ended the engine's loop."""
    matcher = compiler.compile('start: ("a" | /[b-z]{3,40}/ | /[0-9]+(x|y)*/)*').matcher()
    for _ in range(50):
        thread = threading.Thread(target=lambda: [matcher.compute_mask() for _ in range(20)])
        thread.start()
        while thread.is_alive():
            assert not matcher.is_complete
        thread.join()


@pytest.fixture
def slow(monkeypatch):
    """A clock on which everything takes longer than the number of seconds in the list."""
    took, now = [0.0], [0.0]

    def clock():
        now[0] += 1.01 * took[0]
        return now[0]

    monkeypatch.setattr(grammar_matcher, "cpu_seconds", clock)
    return took


def test_an_answer_whose_tokens_hold_up_all_others_is_ended(compiler, slow):
    """An ambiguous grammar of 32 bytes: at its 30th token the engine's thread took 300 ms for each."""
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    slow[0] = FOLLOW_SECONDS + MOST_FOLLOWING / 3
    assert [matcher.accept(97) for _ in range(3)] == [True, True, False]
    error = matcher.failure()
    assert type(error) is InvalidRequest and "following it takes too long" in error.message and error.param == "content"


def test_following_that_takes_little_per_token_is_not_counted(compiler, slow):
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    slow[0] = 0.9 * FOLLOW_SECONDS
    assert all(matcher.accept(97) for _ in range(100))


def test_drafts_are_not_looked_at_where_following_is_slow(compiler, slow):
    """Checking them against an ambiguous grammar blocked the engine's thread for 160 ms before each step."""
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    assert matcher.num_allowed([97] * 50) == 50 and matcher.num_allowed([97] * 9 + [0]) == 9
    slow[0] = QUICK
    assert matcher.accept(97)
    slow[0] = 0.0
    assert matcher.num_allowed([97]) == 0 and matcher.accept(97) and matcher.num_allowed([97]) == 1


def test_looking_at_drafts_ends_once_it_is_slow(compiler, slow):
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    slow[0] = QUICK
    assert matcher.num_allowed([97] * 50) == FIRST_DRAFTED and matcher.num_allowed([97] * 50) == 0


def test_a_mask_that_takes_too_long_is_the_last_one(compiler, slow):
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    slow[0] = MASK_SECONDS + MOST_MASKS
    matcher.pending = True
    matcher.compute_mask()
    assert matcher.ready and not matcher.pending and matcher.ids.tolist() == []
    assert "too long" in matcher.failure().message and type(matcher.failure()) is InvalidRequest


def test_masks_are_bounded_together(compiler, slow):
    """Those of an ambiguous grammar that took less than 50 ms each, most of its first hundred, were not counted, and
    the others had 3 s: on a busy machine its client waited for half a minute."""
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    slow[0] = 0.04
    for _ in range(int(MOST_MASKS / (0.04 - MASK_SECONDS))):
        assert not matcher.error
        matcher.compute_mask()
    assert matcher.is_slow
    matcher.compute_mask()
    assert "too long" in matcher.failure().message


def test_masks_that_take_little_per_token_are_not_counted(compiler, slow):
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    slow[0] = 0.9 * MASK_SECONDS
    for _ in range(int(2 * MOST_MASKS / MASK_SECONDS)):
        matcher.compute_mask()
    assert not matcher.error and not matcher.is_slow


def test_slow_masks_among_many_quick_ones_are_allowed(compiler, slow):
    """As where a new term of a large schema begins."""
    matcher = compiler.compile("start: /[a-z]*/").matcher()
    for _ in range(20):
        slow[0] = 0.1
        matcher.compute_mask()
        slow[0] = 0.0
        for _ in range(10):
            matcher.compute_mask()
    assert not matcher.error


def test_forced_text_that_is_found_slowly_is_found_with_the_mask(compiler, slow):
    """A term of 3,000 optional letters took the engine's thread 57 ms at one token."""
    grammar = compiler.compile('start: ("x" | "y") "abc"')
    first, second = grammar.matcher(), grammar.matcher()
    slow[0] = SLOW_SEARCH
    assert first.accept(ord("x")) and bytes(first.forced()) == b"abc"  # now it is known
    slow[0] = 0.0
    assert second.accept(ord("y")) and second.forced() == [] and not second.ready
    second.compute_mask()
    assert second.ready and bytes(second.forced()) == b"abc"


def test_a_grammar_that_starts_with_such_text_is_known_once_it_is_compiled(compiler, slow):
    slow[0] = SLOW_SEARCH
    assert compiler.compile('start: "abc" /[x-z]/').forces_slowly


def test_a_mask_that_hits_a_limit_does_not_end_the_answer_as_if_it_were_complete(compiler):
    """`(a?){3000}a{3000}` was answered with "a" and the reason "stop"."""
    matcher = compiler.compile("start: /" + "a?" * 1000 + "a" * 1000 + "/").matcher()
    matcher.pending = True
    matcher.compute_mask()
    assert matcher.ready and not matcher.pending and matcher.ids.tolist() == [] and not matcher.is_stuck
    assert type(matcher.failure()) is InvalidRequest and "too many expressions" in matcher.failure().message


@pytest.mark.parametrize(
    "grammar, reason",
    [
        ("start: 'a'", """it cannot be read from "'a'" on"""),
        ('start: /ü/ "b" $ "c"', """it cannot be read from '$ "c"' on"""),
        ('start: "b', "a string or a pattern has no end"),
    ],
)
def test_a_grammar_that_cannot_be_read_is_quoted(compiler, grammar, reason):
    """The message said "4(23): lexer error": the place in a grammar that the client has not written."""
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(grammar)
    assert caught.value.message == f"The schema or grammar cannot be used: {reason}."


def test_the_librarys_advice_about_its_parser_is_not_passed_on():
    for said in (
        "Too many items (limit 10000; mask); try avoiding single-byte/short lexemes.",
        "Current row has 8005 items; max is 5000; consider making your grammar left-recursive",
    ):
        assert reason_of(said).startswith("the text can be read in too many ways")
