"""The prefix tree finds what a timeline shares with others, whatever has come and gone."""

from __future__ import annotations

import random
from array import array

import pytest

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import common_prefix
from llamasrv.engine.kv import tree as module
from llamasrv.engine.kv.timelines import LaneTimelines
from llamasrv.engine.kv.tree import EVERYBODY, Holder, HolderKind, PrefixTree

LANE, STATE = HolderKind.LANE, HolderKind.STATE


def tokens(text):
    return array("i", list(text.encode()))


def holder(text, kind=STATE, key=EVERYBODY):
    return Holder(kind, tokens(text), key)


@pytest.fixture
def tree():
    made = PrefixTree()
    yield made
    made.check()


def put(tree, *holders):
    for one in holders:
        tree.put(one)


def test_it_finds_who_shares_most_first(tree):
    one, two = holder("a common start, then one"), holder("a common start, then two")
    put(tree, one, two)
    path = tree.walk(tokens("a common start, then two and more"), 100)
    assert list(path.sharing(STATE)) == [(two, 24), (one, 21)]
    assert path.common(STATE) == 24 and path.common(LANE) == 0
    assert tree.walk(tokens("a common start, then two"), 23).common(STATE) == 23


def test_states_that_end_on_the_path_come_longest_first(tree):
    short, long, other = holder("question"), holder("question and answer"), holder("question and more")
    put(tree, short, long, other)
    assert list(tree.walk(tokens("question and answer, next"), 100).ending(STATE)) == [long, short]
    assert list(tree.walk(tokens("question and answer, next"), 18).ending(STATE)) == [short]


def test_cache_keys_have_trees_of_their_own(tree):
    put(tree, holder("something secret"))
    assert tree.walk(tokens("something secret"), 100, CacheKey(scope="bob")).common(STATE) == 0


def test_a_lane_that_grows_is_followed(tree):
    """Its timeline is the sequence's own: every step adds to it."""
    lane, other = holder("a prompt", LANE), holder("a prompt, computed before")
    put(tree, lane, other)
    lane.tokens.extend(tokens(" and its answer"))
    assert tree.walk(tokens("a prompt and its answer"), 100).common(LANE) == 23
    lane.tokens.extend(tokens(", which goes on"))
    assert tree.walk(tokens("a prompt and its answer, which"), 100).common(LANE) == 30
    tree.check()
    tree.drop(other)
    assert tree.walk(tokens("a prompt and its answer, which"), 100).common(LANE) == 30


def test_two_lanes_that_grow_alike_share_their_nodes(tree):
    lanes = [holder("a prompt", LANE) for _ in range(3)]
    put(tree, *lanes)
    for lane, end in zip(lanes, (" and one", " and two", " and two!")):
        lane.tokens.extend(tokens(end))
    path = tree.walk(tokens("a prompt and two!"), 100)
    assert list(path.sharing(LANE)) == [(lanes[2], 17), (lanes[1], 16), (lanes[0], 13)]


def test_a_holder_whose_tokens_have_changed_can_be_dropped(tree):
    """A context shift shortens the timeline of its lane."""
    lane = holder("a prompt and its answer", LANE)
    put(tree, lane, holder("a prompt, computed before"))
    del lane.tokens[3:]
    tree.drop(lane)
    tree.drop(lane)
    assert tree.walk(tokens("a prompt and its answer"), 100).common(LANE) == 0


def test_a_walk_compares_the_prompt_once_whatever_is_kept(tree, monkeypatch):
    """Four indexes compared a prompt with every entry that began alike: 9.7 ms for 2,000 of them."""
    start, counts, compared = list(range(900)), [], [0]
    match = module._match

    def counted(*arguments):
        end = match(*arguments)
        compared[0] += end - arguments[1] + 1
        return end

    for number in range(1000):
        put(tree, Holder(STATE, array("i", [*start, number, *range(99)])))
        if number in (10, 999):
            with monkeypatch.context() as patch:
                patch.setattr(module, "_match", counted)
                compared[0] = 0
                assert tree.walk(array("i", [*start, 5, *range(99)]), 1000).common(STATE) == 1000
                counts.append(compared[0])
    assert counts[0] == counts[1] < 1010


def test_some_holders_are_checked_at_a_time_and_all_in_turn(tree):
    put(tree, *(holder(f"{number} and so on") for number in range(7)))
    (wrong,) = tree.walk(tokens("5 and so on"), 11).ending(STATE)
    wrong.tokens[3] += 1
    found = 0
    for _ in range(12):  # four calls are a round
        try:
            tree.check_some(2)
        except AssertionError:
            found += 1
    assert found == 3
    wrong.tokens[3] -= 1


@pytest.mark.parametrize("seed", range(20))
def test_random_holders_are_found_like_by_comparing_with_each(tree, seed):
    rng = random.Random(seed)
    here: list[Holder] = []

    def timeline():
        base = rng.choice(here).tokens if here and rng.random() < 0.7 else array("i")
        return base[: rng.randint(0, len(base))] + array("i", [rng.randint(0, 2) for _ in range(rng.randint(1, 8))])

    for _ in range(150):
        act = rng.random()
        if act < 0.5:
            here.append(Holder(rng.choice(list(HolderKind)), timeline(), CacheKey(scope=rng.choice("ab"))))
            tree.put(here[-1])
        elif act < 0.7 and here:
            tree.drop(here.pop(rng.randrange(len(here))))
        elif act < 0.8 and here:
            lanes = [one for one in here if one.kind is LANE]
            for lane in lanes[:1]:
                lane.tokens.extend(rng.randint(0, 2) for _ in range(rng.randint(1, 5)))
        wanted, key, kind = timeline(), CacheKey(scope=rng.choice("ab")), rng.choice(list(HolderKind))
        limit = rng.randint(0, len(wanted))
        path = tree.walk(wanted, limit, key)
        alike = {
            one: common_prefix(one.tokens, wanted[:limit]) for one in here if (one.kind, one.cache_key) == (kind, key)
        }
        assert dict(path.sharing(kind)) == {one: length for one, length in alike.items() if length}
        assert [length for _, length in path.sharing(kind)] == sorted(filter(None, alike.values()), reverse=True)
        assert set(path.ending(kind)) == {one for one, length in alike.items() if length == len(one.tokens)}
        assert path.common(kind) == max(alike.values(), default=0)
        tree.check()
    for one in here:
        tree.drop(one)
    assert not tree._roots


@pytest.mark.parametrize("followed", [False, True])
def test_a_timeline_that_ends_is_found_with_what_was_computed(tree, followed):
    """Its last token is never computed; the tree may have followed it up to there."""
    timelines = LaneTimelines(tree)
    running = tokens("a question")
    timelines.put(1, running, EVERYBODY)
    running.extend(tokens(" and an answer!"))
    if followed:
        tree.walk(running, len(running))
    ended = timelines.shorten(1, running[:-1])
    assert timelines[1] is ended and ended.length == len(running) - 1
    assert list(tree.walk(running, len(running)).sharing(LANE)) == [(ended, len(running) - 1)]
    assert timelines.drop(1) is ended and not list(tree.walk(running, len(running)).sharing(LANE))
