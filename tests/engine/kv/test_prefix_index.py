from array import array

from llamasrv.engine.kv.prefix_index import KEY_LENGTH, Commons, PrefixIndex, common_prefix


def tokens(text):
    return array("i", list(text.encode()))


def test_it_finds_the_longest_match_over_all_lanes():
    cache = PrefixIndex()
    cache.put(0, tokens("a common start, then one"))
    cache.put(1, tokens("a common start, then two"))
    match = cache.match(tokens("a common start, then two and more"), 100, [24, 24], held=())
    assert (match.lane, match.length, match.coming) == (1, 24, 0)


def test_matches_stay_within_the_limit():
    """At least the last prompt token is computed again: its logits are needed."""
    cache = PrefixIndex()
    cache.put(0, tokens("exactly the same"))
    assert cache.match(tokens("exactly the same"), 15, [16], held=()).length == 15


def test_tokens_being_computed_are_reported_as_coming():
    cache = PrefixIndex()
    cache.put(0, tokens("a long prompt that is half done"))
    match = cache.match(tokens("a long prompt that is half done too"), 35, [10], held={0})
    assert (match.length, match.coming, match.held) == (10, 21, True)


def test_a_match_shorter_than_the_key_is_ignored():
    cache = PrefixIndex()
    cache.put(0, tokens("short" + "x" * 20))
    assert cache.match(tokens("short" + "y" * 20), 20, [25], held=()) is None
    assert cache.match(tokens("shortxxx"), KEY_LENGTH - 1, [25], held=()) is None


def test_a_removed_lane_is_not_found():
    cache = PrefixIndex()
    cache.put(0, tokens("something to find"))
    cache.drop(0)
    cache.drop(0)
    assert cache.match(tokens("something to find"), 17, [17], held=()) is None and len(cache) == 0


def test_tokens_are_compared_not_only_keys():
    cache = PrefixIndex()
    cache.put(0, tokens("12345678 and then this"))
    assert cache.match(tokens("12345678 but then that"), 22, [22], held=()).length == 9


def test_a_timeline_that_was_shorter_than_a_key_can_be_removed_after_it_grew():
    """Its key was recomputed from the grown timeline, which was not in the index."""
    cache = PrefixIndex()
    timeline = tokens("tiny")
    cache.put(0, timeline)
    timeline.extend(tokens(" and grown"))
    cache.drop(0)
    assert len(cache) == 0


def test_a_state_that_cannot_be_cut_matches_only_as_a_whole():
    cache = PrefixIndex(can_cut=False)
    cache.put(0, tokens("question and answer"))
    assert cache.match(tokens("question and answer, next"), 25, [19], held=()).length == 19
    assert cache.match(tokens("question and other"), 18, [19], held=()) is None


def test_common_prefix_of_empty_timelines_is_0():
    assert common_prefix(array("i"), tokens("x")) == 0
    assert common_prefix(tokens("abc"), tokens("abd")) == 2
    assert common_prefix(tokens("abc"), tokens("abc")) == 3


def test_known_common_prefixes_are_not_compared_again():
    """Each of 70 followers of a long prompt was compared with all of it in every step."""
    mine, other = array("i", range(100)), array("i", range(60))
    commons = Commons()
    assert commons.of(mine, other, 1) == 60
    other[13] = -1  # nobody does so: it shows what is looked at
    other.extend(range(60, 80))
    assert commons.of(mine, other, 1) == 80 and commons.of(mine, other, 2) == 13
    other.append(7)
    assert commons.of(mine, other, 1) == 80
    commons.clear()
    assert commons.of(mine, other, 1) == 13
