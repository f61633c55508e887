import pytest

from llamasrv.engine.sampling.stops import StopMatcher


def run(stops, pieces):
    """The delivered text and the stop: as the engine uses the matcher, but byte by byte."""
    matcher, out, held = StopMatcher(stops), b"", b""
    for piece in pieces:
        held += piece
        unsure, stop = matcher.feed(piece)
        if stop is not None:
            return out + held[: len(held) - unsure], stop
        out, held = out + held[: len(held) - unsure], held[len(held) - unsure :]
    return out, None


def test_text_without_a_stop_is_delivered_at_once():
    assert StopMatcher(("END",)).feed(b"hello") == (0, None)


def test_a_possible_stop_is_held_back():
    matcher = StopMatcher(("END",))
    assert matcher.feed(b"say E") == (1, None)
    assert matcher.feed(b"N") == (2, None)
    assert matcher.feed(b"x") == (0, None)


def test_text_is_cut_where_the_stop_starts():
    assert run(("END",), [b"one E", b"ND two"]) == (b"one ", "END")


def test_a_stop_that_overlaps_itself_is_found():
    assert run(("aab",), [b"aa", b"aab"]) == (b"aa", "aab")


def test_the_first_complete_stop_wins_then_the_longest():
    assert run(("cd", "abcdef"), [b"abcdef"]) == (b"ab", "cd")
    assert run(("bc", "abc"), [b"xabc"]) == (b"x", "abc")


def test_a_stop_inside_a_multibyte_character_is_ignored():
    assert run(("é",), ["è".encode()]) == ("è".encode(), None)


@pytest.mark.parametrize("stop", ["\n\n", "aXbX", "ü", "a"])
def test_every_cut_gives_the_same_text(stop):
    text = f"aXb\naXaXbü aXa{stop} and more".encode()
    whole = run((stop, "never"), [text])
    for i in range(len(text)):
        for j in range(i, len(text)):
            assert run((stop, "never"), [text[:i], text[i:j], text[j:]]) == whole


def test_it_is_linear_in_hostile_text():
    """A stop of one repeated letter in text of that letter must not go back and forth."""
    matcher = StopMatcher(("a" * 255 + "b",))
    assert all(matcher.feed(b"a" * 100)[1] is None for _ in range(100))
    assert matcher.feed(b"b") == (256, "a" * 255 + "b")
