"""A lookup finds what comparing with everything that is kept would find, at the price of one walk."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from engine_driver import chat, end_of
from random_schedules import Episode

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import common_prefix
from llamasrv.engine.kv import lookup as module
from llamasrv.engine.kv.disk_io import StoredState
from llamasrv.engine.kv.lookup import PrefixLookup, most_usable
from llamasrv.engine.kv.match import SHORTEST, longest
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import HolderKind, PrefixTree

LANE, STATE, FILE = HolderKind.LANE, HolderKind.STATE, HolderKind.FILE


def tokens(text):
    return array("i", list(text.encode()))


def state(text, scope=""):
    return SavedState(tokens(text), np.zeros(1, np.uint8), CacheKey(scope=scope))


def look(tree, text, kind=STATE, **settings):
    return most_usable(tree.walk(tokens(text), len(text)), kind, **settings)


# ------------------------------------------------------------ what is usable


def test_a_prefix_below_the_least_worth_a_copy_is_ignored():
    tree = PrefixTree()
    tree.put(state("short" + "x" * 20))
    assert look(tree, "short" + "y" * 20) is None
    assert look(tree, "shortxx") is None and look(tree, "shortxxx")[1] == SHORTEST


def test_a_state_that_cannot_be_cut_is_used_whole_or_up_to_a_checkpoint():
    tree = PrefixTree()
    tree.put(state("question and answer"))
    assert look(tree, "question and answer, next", can_cut=False)[1] == 19
    assert look(tree, "question and other", can_cut=False) is None
    assert look(tree, "question and other", can_cut=False, cuts=[4, 10, 15])[1] == 10


def test_a_file_may_bring_its_own_checkpoints():
    tree = PrefixTree()
    file = StoredState("a.prefix", tokens("question and answer"), CacheKey(), 100, points=(9,))
    for holder in (file, *file.points):
        tree.put(holder)
    assert look(tree, "question and other", FILE, can_cut=False) == (file, 9)
    assert look(tree, "question and other", FILE, can_cut=False, may_use=lambda stored: False) is None


def test_tenants_never_see_each_others_states():
    tree = PrefixTree()
    tree.put(state("something of ann's", scope="ann"))
    assert look(tree, "something of ann's") is None
    assert most_usable(tree.walk(tokens("something of ann's"), 18, CacheKey(scope="ann")), STATE)[1] == 18


def test_the_length_of_a_common_prefix_is_found():
    assert common_prefix(array("i"), tokens("x")) == 0
    assert common_prefix(tokens("abc"), tokens("abd")) == 2
    assert common_prefix(tokens("abc"), tokens("abc")) == 3
    assert common_prefix(tokens("a longer one"), tokens("a longer two")) == 9


# ------------------------------------------------------------ against comparing with each holder


def usable_length(common, length, can_cut, cuts, media):
    if media is not None:
        common = media.cut(common)
    return common if can_cut or common == length else longest(cuts, common)


def most_by_comparing(holders, wanted, kind, can_cut, cuts, media, may_use):
    """How much is usable, as the indexes before the tree found it."""
    most = 0
    for holder in holders:
        if holder.kind is kind and may_use(holder):
            cuts_here = sorted({*cuts, *(point.length for point in getattr(holder, "points", ()))})
            common = common_prefix(holder.tokens, wanted)
            most = max(most, usable_length(common, holder.length, can_cut, cuts_here, media))
    return most if most >= SHORTEST else 0


@pytest.fixture
def shadow(monkeypatch):
    """Compares each lookup of lanes, states and files with a search through all of them; counts them."""
    find, in_lanes, seen, asked = PrefixLookup.find, PrefixLookup._in_lanes, [], []

    def found_both(self, seq):
        wanted, key = seq.tokens[: seq.num_tokens - 1], seq.spec.cache_key
        holders = [holder for holder in self._tree.holders() if holder.cache_key == key]

        def compared(path, kind, *, can_cut, cuts, media, may_use=lambda holder: True):
            found = most_usable(path, kind, can_cut=can_cut, cuts=cuts, media=media, may_use=may_use)
            by_comparing = most_by_comparing(holders, wanted, kind, can_cut, cuts, media, may_use)
            assert (0 if found is None else found[1]) == by_comparing, (kind, found, by_comparing)
            seen.append(kind)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(module, "most_usable", compared)
            asked[:] = [seq]
            return find(self, seq)

    def in_lanes_both(self, media, path, cuts):
        found, reach = in_lanes(self, media, path, cuts), 0
        if not asked:  # a prefetch: no sequence has arrived
            return found
        seq = asked.pop()
        for holder in self._tree.holders():
            if holder.kind is LANE and holder.cache_key == seq.spec.cache_key:
                computed = self._lanes.lengths[holder.lane]
                common = min(common_prefix(holder.tokens, seq.tokens), seq.num_tokens - 1)
                have = module._cut(min(common, computed), seq.media)
                position = module._position(have, seq.media)
                if not (
                    self._backend.traits.can_cut_saved
                    or have == computed
                    or self._backend.usable(holder.lane, position)
                ):
                    have = longest(cuts, have)
                held = holder.lane in self._lanes.held
                follows = self.follows and (held or self._backend.traits.can_cut) and computed < common
                if not held or self._backend.traits.can_share or follows:
                    reach = max(reach, have, module._cut(common, seq.media) if follows else 0)
        assert reach < SHORTEST or found is not None and found.length + found.coming >= reach, (reach, found)
        seen.append(LANE)
        return found

    monkeypatch.setattr(PrefixLookup, "find", found_both)
    monkeypatch.setattr(PrefixLookup, "_in_lanes", in_lanes_both)
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_in_random_schedules_it_finds_what_comparing_with_each_finds(tmp_path, shadow, seed):
    Episode(seed, tmp_path).run()
    assert {LANE, STATE} <= set(shadow) and len(shadow) > 20


@pytest.mark.parametrize("seed", range(20))
def test_of_random_states_it_finds_what_comparing_with_each_finds(seed):
    rng, tree, here = random.Random(seed), PrefixTree(), []

    def timeline():
        base = rng.choice(here).tokens if here and rng.random() < 0.7 else array("i")
        return base[: rng.randint(0, len(base))] + array("i", [rng.randint(0, 2) for _ in range(rng.randint(1, 12))])

    for number in range(60):
        one = timeline()
        points = tuple({rng.randint(1, len(one)) for _ in range(rng.randint(0, 3))} - {len(one)})
        file = StoredState(f"{number}", one, CacheKey(), 1, points)
        here.append(file)
        for holder in (file, *file.points):
            tree.put(holder)
        wanted, refused = timeline(), set(rng.sample(here, len(here) // 3))
        cuts = sorted({rng.randint(1, 30) for _ in range(3)})
        for can_cut in (True, False):
            settings = {
                "can_cut": can_cut,
                "cuts": cuts,
                "media": None,
                "may_use": set(here).difference(refused).__contains__,
            }
            found = most_usable(tree.walk(wanted, len(wanted)), FILE, **settings)
            assert (0 if found is None else found[1]) == most_by_comparing(tree.holders(), wanted, FILE, **settings)
            assert found is None or found[0] not in refused


# ------------------------------------------------------------ in an engine


def test_a_lookup_considers_as_many_states_among_thousands_as_among_a_few():
    """Each index compared a prompt with every entry that began alike: 9.7 ms for 2,000 of them."""
    start, tree, looked = list(range(900)), PrefixTree(), []
    for number in range(3000):
        tree.put(SavedState(array("i", [*start, number, *range(99)]), np.zeros(1, np.uint8)))
        if number in (10, 2999):
            for can_cut in (True, False):
                considered: list[SavedState] = []
                path = tree.walk(array("i", [*start, 5, *range(99), 7]), 1001)
                found = most_usable(
                    path, STATE, can_cut=can_cut, may_use=lambda one, seen=considered: not seen.append(one)
                )
                assert found is not None and found[1] == 1000
                looked.append(len(considered))
    assert looked == [1, 2, 1, 2]


def test_a_large_state_is_not_copied_for_a_few_tokens(drive):
    """A prompt of 29 tokens that shared 13 with an idle prefix of 6,028 restored all of it, and made room for it
    first."""
    driver = drive(idle_cells=0)
    cost, copying = driver.core.scheduler.cost, driver.core.scheduler.restore_cost
    cost.prompt_seconds = lambda count: count * 0.001
    driver.answer(chat("the same beginning, then " + "a long talk " * 20))
    driver.answer(chat("something else entirely"))
    (state,) = (entry for entry in driver.core.memory.host.states() if entry.length > 200)
    driver.submit(chat("the same beginning, then no more"))
    driver.engine.take_mail()
    found = []
    for seconds in (0.05, 0.001):  # to copy it; some 30 tokens take 0.03 to compute
        copying.copy_seconds = lambda size, seconds=seconds: seconds
        match = driver.core.memory.lookup(driver.sequences[-1])
        found.append(None if match is None else match.saved)
    assert found == [None, state]
    driver.finish()


def test_what_another_lane_has_is_not_copied_again(drive):
    """Sixty questions about one input: each left a copy of all of it, 360 MB, fourteen of them in one step."""
    driver = drive(parallel=8)
    memory = driver.core.memory
    driver.core.scheduler.cost.prompt_seconds = lambda count: count * 0.001
    driver.core.scheduler.restore_cost.copy_seconds = lambda size: 0.05
    beginning = "what all of them begin with " * 9
    for question in ("one", "two", "three"):
        driver.answer(chat(beginning + question), max_tokens=1)
    assert len(memory.lanes.resident) == 3
    kept = []
    while memory.evict():
        kept.append(len(memory.host))
    assert kept == [0, 0, 1], "the last one that has the beginning"


def test_a_prefix_that_passes_is_not_copied(drive):
    driver = drive(parallel=8)
    driver.core.scheduler.cost.prompt_seconds = lambda count: count * 0.01
    for text, passes in (("a prefix of some length " * 5, True), ("another one of some length " * 5, False)):
        driver.answer(chat(text), passes=passes)
        assert driver.core.memory.evict()
        assert len(driver.core.memory.host) == (0 if passes else 1)


def test_a_lookup_changes_nothing(drive):
    driver = drive(idle_cells=0)
    driver.core.scheduler.cost.prompt_seconds = lambda count: count * 0.01
    for text in ("first of all " * 20, "second to no " * 20):
        driver.submit(chat(text))
        driver.finish()
    host = driver.core.memory.host
    order, holders = host.states(), [*driver.core.memory.tree.holders()]
    driver.submit(chat("first of all " * 20 + "again"))
    driver.engine.take_mail()
    match = driver.core.memory.lookup(driver.sequences[-1])
    assert match is not None and match.saved is order[-1], "the older one"
    assert host.states() == order and [*driver.core.memory.tree.holders()] == holders
    driver.finish()
    assert host.states()[0] is order[0] and len(host) == 2, "used once more, it is worth more than the newer one"
    assert end_of(driver.sequences[-1].stream.take()).num_reused > 200
