"""Names from a client in a header."""

from __future__ import annotations

import pytest

from llamasrv.protocols.common.headers import MAX_CHARS, MAX_NAMES, header_of


def test_names_come_once_and_in_order():
    assert header_of(["b", "a", "b"]) == "b, a"


@pytest.mark.parametrize(
    "name, shown", [("a\r\nb: c", "a??b??c"), ("é", "?"), ("", "?"), ("a, b", "a??b"), ("\0", "?")]
)
def test_nothing_but_plain_letters_gets_into_a_header(name, shown):
    assert header_of([name]) == shown


def test_there_are_few_and_they_are_short():
    assert header_of(["x" * 10_000]) == "x" * MAX_CHARS
    many = header_of(str(i) for i in range(10_000)).split(", ")
    assert len(many) == MAX_NAMES + 1 and many[-1] == "..."
