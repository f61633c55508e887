"""Answers that have only so long."""

from __future__ import annotations

from llamasrv.domain.events import Finished, FinishReason, Text
from llamasrv.pipeline.time_limit import TimeLimit


def read(*texts, seconds, num_choices=1):
    """What is told of a generation that says these (index, text), one a second, and why it ended."""
    said = [[Text(index, text)] for index, text in texts] + [[Finished(0, FinishReason.STOP)]]

    def give_up():
        said[:] = [[Finished(0, FinishReason.CANCELLED)]]

    now = iter(range(100))
    limit = TimeLimit(seconds, give_up, num_choices=num_choices, clock=lambda: next(now))
    events = []
    while said:
        events += limit(said.pop(0))
    return "".join(event.text for event in events if isinstance(event, Text)), events[-1].reason


def test_an_answer_in_time_is_whole():
    assert read((0, "a\n"), (0, "b"), seconds=10) == ("a\nb", FinishReason.STOP)


def test_after_its_time_it_ends_with_its_line():
    assert read((0, "a"), (0, "b"), (0, "c\n"), (0, "d"), seconds=1) == ("abc\n", FinishReason.LENGTH)


def test_a_line_that_ended_in_time_counts():
    assert read((0, "a\n"), (0, "b"), (0, "c"), (0, "d"), seconds=2) == ("a\nbc", FinishReason.LENGTH)


def test_without_a_line_it_goes_on():
    assert read((0, "a"), (0, "b"), (0, "c"), seconds=0) == ("abc", FinishReason.STOP)


def test_every_choice_gets_its_line():
    texts = [(0, "a\n"), (1, "b"), (0, "c"), (1, "d\n"), (0, "e")]
    assert read(*texts, seconds=0, num_choices=2) == ("a\nbcd\n", FinishReason.LENGTH)


def test_one_that_was_cancelled_before_its_time_stays_cancelled():
    limit = TimeLimit(60.0, lambda: None, num_choices=1)
    events = limit([Text(0, "a\n"), Finished(0, FinishReason.CANCELLED)])
    assert events[-1].reason is FinishReason.CANCELLED
