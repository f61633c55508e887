"""The likeliest of several choices. With a model behind them: test_pipeline.py."""

from __future__ import annotations

from llamasrv.domain.events import Finished, FinishReason, Pace, Text, TokenLogprob, Usage
from llamasrv.pipeline.best_of import BestOf
from llamasrv.pipeline.echo import Echo
from llamasrv.pipeline.time_limit import TimeLimit

STOP = FinishReason.STOP


def said(index, text, logprob):
    return Text(index, text, (TokenLogprob(1, text.encode(), logprob),))


def test_nothing_is_told_before_all_have_ended():
    stage = BestOf(drawn=2, n=1, with_logprobs=False)
    assert stage([said(0, "a", -2.0), said(1, "b", -1.0)]) == []
    assert stage([Finished(0, STOP), Finished(1, STOP)]) == []
    assert stage([Usage(completion_tokens=2)]) == [Text(0, "b"), Finished(0, STOP), Usage(completion_tokens=2)]


def test_the_likeliest_of_each_prompt_are_told_in_order():
    stage = BestOf(drawn=3, n=2, with_logprobs=True)
    texts = [said(i, name, score) for i, (name, score) in enumerate(zip("abcdef", (-3, -1, -2, -1, -9, -2)))]
    events = stage([*texts, *(Finished(i, STOP) for i in range(6)), Usage()])
    assert [(e.index, e.text, bool(e.logprobs)) for e in events if isinstance(e, Text)] == [
        (0, "b", True),
        (1, "c", True),
        (2, "d", True),
        (3, "f", True),
    ]


def test_every_kind_of_event_gets_its_new_number():
    stage = BestOf(drawn=2, n=1, with_logprobs=False)
    pace = Pace(1, Usage(completion_tokens=1))
    events = stage([pace, said(1, "b", -1.0), Finished(0, STOP), Finished(1, STOP, slot=3), Usage()])
    assert events == [Pace(0, pace.usage), Text(0, "b"), Finished(0, STOP, slot=3), Usage()]


def test_stages_combine():
    """A time limit was not looked at where the best of several were wanted, and an echo's lines counted as the answer's."""
    given_up = []
    stages = [
        TimeLimit(0.0, lambda: given_up.append(True), num_choices=2),
        Echo(["line\n", "line\n"]),
        BestOf(drawn=2, n=1, with_logprobs=False),
    ]

    def through(events):
        for stage in stages:
            events = stage(events)
        return events

    assert through([said(0, "a", -2.0), said(1, "b\n", -1.0)]) == [] and not given_up
    assert through([said(0, "c\n", -2.0)]) == [] and given_up
    ended = [Finished(i, FinishReason.CANCELLED) for i in range(2)]
    assert through([*ended, Usage()]) == [Text(0, "line\nb\n"), Finished(0, FinishReason.LENGTH), Usage()]
