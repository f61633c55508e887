"""Answers that have only so long."""

from __future__ import annotations

from llamasrv.domain.events import Finished, FinishReason, Text
from llamasrv.domain.params import SamplingParams
from llamasrv.pipeline.hasty import Hasty


class Scripted:
    """A generation that says what it is told, and ends where it is cancelled."""

    model, fingerprint, num_prompt, usage, params = "m", "f", 1, None, SamplingParams()
    end_tokens = frozenset()

    def __init__(self, *texts):
        self._events = [[Text(index, text)] for index, text in texts] + [[Finished(0, FinishReason.STOP)]]
        self.was_cancelled = False

    num_prompt_of = prompt_text = None

    @property
    def done(self):
        return not self._events

    def events(self, timeout):
        return self._events.pop(0)

    def cancel(self):
        self.was_cancelled = True
        self._events = [[Finished(0, FinishReason.CANCELLED)]]


def read(generation, *, seconds, num_choices=1):
    """What it says, at one second a piece, and why it ended."""
    now = iter(range(100))
    hasty = Hasty(generation, seconds, num_choices=num_choices, clock=lambda: next(now))
    events = []
    while not hasty.done:
        events += hasty.events(None)
    assert not hasty.cancelled
    return "".join(event.text for event in events if isinstance(event, Text)), events[-1].reason


def test_an_answer_in_time_is_whole():
    assert read(Scripted((0, "a\n"), (0, "b")), seconds=10) == ("a\nb", FinishReason.STOP)


def test_after_its_time_it_ends_with_its_line():
    texts = [(0, "a"), (0, "b"), (0, "c\n"), (0, "d")]
    assert read(Scripted(*texts), seconds=1) == ("abc\n", FinishReason.LENGTH)


def test_a_line_that_ended_in_time_counts():
    assert read(Scripted((0, "a\n"), (0, "b"), (0, "c"), (0, "d")), seconds=2) == ("a\nbc", FinishReason.LENGTH)


def test_without_a_line_it_goes_on():
    assert read(Scripted((0, "a"), (0, "b"), (0, "c")), seconds=0) == ("abc", FinishReason.STOP)


def test_every_choice_gets_its_line():
    texts = [(0, "a\n"), (1, "b"), (0, "c"), (1, "d\n"), (0, "e")]
    assert read(Scripted(*texts), seconds=0, num_choices=2) == ("a\nbcd\n", FinishReason.LENGTH)


def test_a_client_that_leaves_cancels_it():
    generation = Scripted((0, "a"))
    hasty = Hasty(generation, 5.0, num_choices=1)
    hasty.cancel()
    assert hasty.cancelled and generation.was_cancelled
    assert hasty.events(None)[0].reason is FinishReason.CANCELLED
