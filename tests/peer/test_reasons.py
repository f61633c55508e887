"""The list of what stays red of llama-server's own tests, and how a run is judged by it."""

from __future__ import annotations

import pytest
from peer.reasons import LIST, judge, read

REASONS = {"test_a.py::one": "because", "test_a.py::two[x]": "because"}


def test_every_case_that_is_listed_has_a_reason():
    assert read(LIST.read_text("utf-8"))


@pytest.mark.parametrize("line", ["test_a.py::one", "test_a.py::one  # ", "test_a.py::one  # a\ntest_a.py::one  # b"])
def test_a_line_without_a_reason_or_a_second_one_is_refused(line):
    with pytest.raises(ValueError, match="line"):
        read(line)


def test_red_and_listed_is_fine():
    outcomes = {"test_a.py::one[1]": "failed", "test_a.py::two[x]": "error", "test_a.py::two[y]": "passed"}
    assert judge(outcomes, REASONS) == ([], [], 1, 2)


def test_red_and_not_listed_is_reported():
    assert judge({"test_a.py::two[y]": "failed", "test_b.py::one": "failed"}, REASONS).unlisted == [
        "test_a.py::two[y]",
        "test_b.py::one",
    ]


def test_listed_and_green_is_reported():
    outcomes = {"test_a.py::one[1]": "failed", "test_a.py::one[2]": "passed", "test_a.py::two[x]": "passed"}
    assert judge(outcomes, REASONS).stale == ["test_a.py::one[2]", "test_a.py::two[x]"]


def test_what_did_not_run_is_neither():
    assert judge({"test_a.py::one": "skipped"}, REASONS) == ([], [], 0, 0)
