"""Marks in text that arrives in pieces."""

from llamasrv.chat.markers import marks


def test_a_longer_mark_wins_over_its_own_beginning():
    found = marks("<a>", "<a><b>", "").search("x<a><b>y")
    assert found[0] == "<a><b>"


def test_a_mark_that_the_end_of_the_text_cuts_off_is_seen():
    both = marks("<think>", "<call>")
    for text, start in (("x<thi", 1), ("x<", 1), ("<<ca", 1), ("x<think>", 8), ("x", 1), ("<thix", 5), ("", 0)):
        assert both.begun(text, 0) == start, text
    assert both.begun("<th", 1) == 3  # what is before `start` was looked at already


def test_it_tells_whether_more_text_could_make_a_mark_or_a_longer_one():
    both = marks("<a>", "<a><b>")
    assert all(both.may_grow(rest) for rest in ("", "<", "<a", "<a>", "<a><b"))
    assert not any(both.may_grow(rest) for rest in ("x", "a>", "<a><b>", "<b"))


def test_letters_that_no_mark_begins_with_are_passed_over():
    assert marks("<a>", "[b]").may_start_in("x [") and not marks("<a>", "[b]").may_start_in("a> b]")


def test_where_there_are_no_marks_none_is_found():
    none = marks("")
    assert none.search("anything") is None and none.begun("anything", 0) == 8 and not none.may_start_in("anything")
