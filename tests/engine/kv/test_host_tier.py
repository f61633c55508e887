from array import array

import numpy as np

from llamasrv.engine.kv.host_tier import HostTier, SavedState


def entry(text, size=10_000):
    return SavedState(array("i", list(text.encode())), np.zeros(size, np.uint8))


def tokens(text):
    return array("i", list(text.encode()))


def test_it_finds_the_entry_with_the_longest_prefix():
    store = HostTier(100_000)
    store.put(entry("system prompt, chat one"))
    store.put(entry("system prompt, chat two"))
    found, length = store.match(tokens("system prompt, chat two, next turn"), 100)
    assert length == 23 and found.length == 23


def test_an_entry_can_be_reused_many_times():
    store = HostTier(100_000)
    store.put(entry("system prompt"))
    assert store.match(tokens("system prompt a"), 20)[0] is store.match(tokens("system prompt b"), 20)[0]


def test_the_least_recently_used_entry_is_evicted_first():
    store = HostTier(25_000)
    store.put(entry("11111111 first"))
    store.put(entry("22222222 second"))
    store.match(tokens("11111111 first!"), 20)
    store.put(entry("33333333 third"))
    assert store.match(tokens("22222222 second!"), 20) is None
    assert store.match(tokens("11111111 first!"), 20) is not None
    assert store.used == sum(kept.num_bytes for kept in (entry("11111111 first"), entry("33333333 third")))


def test_a_longer_timeline_replaces_its_own_prefix():
    store = HostTier(100_000)
    store.put(entry("turn one, answer"))
    store.put(entry("turn one, answer, turn two"))
    assert len(store) == 1 and store.used == entry("turn one, answer, turn two").num_bytes


def test_entries_above_the_limit_are_not_kept():
    store = HostTier(5_000)
    store.put(entry("too large for it"))
    assert len(store) == 0 and store.used == 0


def test_tokens_count_towards_the_limit():
    store = HostTier(20_000)
    for n in range(100):
        store.put(entry(f"{n:02} and so on" * 50, size=1))
    assert store.used <= 20_000 and 0 < len(store) < 10


def test_a_state_that_cannot_be_cut_matches_only_whole():
    store = HostTier(100_000, can_cut=False)
    store.put(entry("question answer"))
    assert store.match(tokens("question answer next"), 19)[1] == 15
    assert store.match(tokens("question asked"), 14) is None


def test_covers_tells_whether_an_entry_contains_a_timeline():
    store = HostTier(100_000)
    store.put(entry("the whole of it"))
    assert store.covers(tokens("the whole of it"), 9)
    assert not store.covers(tokens("the whole of it and more"), 20)
