"""Chains of references, also in circles: the library that follows them has a stack of limited size."""

from llamasrv.chat.references import longest_chain


def chain(length):
    return {n: {n + 1: 1} for n in range(length)}


def test_a_chain_is_as_long_as_its_references():
    assert longest_chain(chain(7), 0) == 7
    assert longest_chain({}, 0) == 0


def test_the_most_expensive_way_counts():
    assert longest_chain({"a": {"b": 1, "c": 5}, "b": {"d": 1}, "c": {}, "d": {}}, "a") == 5
    assert longest_chain({"a": {"b": 1, "c": 1}, "c": {"b": 3}}, "a") == 4


def test_what_cannot_be_reached_does_not_count():
    assert longest_chain({**chain(3), "far": {"away": 100}}, 0) == 3


def test_a_circle_counts_each_of_its_parts_once():
    circle = {n: {(n + 1) % 10: 1, (n * 3) % 10: 1} for n in range(10)}
    assert longest_chain(circle, 0) == 10
    assert longest_chain({**circle, "start": {0: 1}, 4: {5: 1, "tail": 1}, "tail": {"end": 1}}, "start") == 13
    assert longest_chain({"self": {"self": 1}}, "self") == 1


def test_a_long_chain_needs_no_recursion():
    assert longest_chain(chain(100_000), 0) == 100_000
