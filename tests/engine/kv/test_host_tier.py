from array import array

import numpy as np

from llamasrv.engine.kv.host_tier import HostTier
from llamasrv.engine.kv.lookup import most_usable
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import HolderKind, PrefixTree


def entry(text, size=10_000):
    return SavedState(array("i", list(text.encode())), np.zeros(size, np.uint8))


def tokens(text):
    return array("i", list(text.encode()))


def look(store, text):
    """(entry, how much of it is usable)."""
    return most_usable(store._tree.walk(tokens(text), len(text)), HolderKind.STATE)


def test_it_finds_the_entry_with_the_longest_prefix():
    store = HostTier(100_000, PrefixTree())
    store.put(entry("system prompt, chat one"))
    store.put(entry("system prompt, chat two"))
    found, length = look(store, "system prompt, chat two, next turn")
    assert length == 23 and found.length == 23


def test_an_entry_can_be_reused_many_times():
    store = HostTier(100_000, PrefixTree())
    store.put(entry("system prompt"))
    assert look(store, "system prompt a")[0] is look(store, "system prompt b")[0]


def test_the_least_recently_used_entry_is_evicted_first():
    store = HostTier(25_000, PrefixTree())
    store.put(entry("11111111 first"))
    store.put(entry("22222222 second"))
    store.note_use(look(store, "11111111 first!")[0])
    store.put(entry("33333333 third"))
    assert look(store, "22222222 second!") is None
    assert look(store, "11111111 first!") is not None
    assert store.used == sum(kept.num_bytes for kept in (entry("11111111 first"), entry("33333333 third")))


def test_a_longer_timeline_replaces_its_own_prefix():
    store = HostTier(100_000, PrefixTree())
    store.put(entry("turn one, answer"))
    store.put(entry("turn one, answer, turn two"))
    assert len(store) == 1 and store.used == entry("turn one, answer, turn two").num_bytes


def test_entries_above_the_limit_are_not_kept():
    store = HostTier(5_000, PrefixTree())
    store.put(entry("too large for it"))
    assert len(store) == 0 and store.used == 0


def test_tokens_count_towards_the_limit():
    store = HostTier(20_000, PrefixTree())
    for n in range(100):
        store.put(entry(f"{n:02} and so on" * 50, size=1))
    assert store.used <= 20_000 and 0 < len(store) < 10


def test_covers_tells_whether_an_entry_contains_a_timeline():
    store = HostTier(100_000, PrefixTree())
    store.put(entry("the whole of it"))
    assert store.covers(tokens("the whole of it"), 9)
    assert not store.covers(tokens("the whole of it and more"), 20)
