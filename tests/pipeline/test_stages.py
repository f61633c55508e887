"""Stages of an answer. With a model behind them: test_pipeline.py."""

from __future__ import annotations

from llamasrv.domain.events import Failed, Finished, FinishReason, Pace, Text, TokenLogprob, Usage
from llamasrv.errors import EngineFailure
from llamasrv.pipeline.stages import BestOf, Echo, TimeLimit


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


STOP = FinishReason.STOP


def test_each_choice_begins_with_its_own_text():
    echo = Echo(["one ", "two "])
    assert echo([Text(1, "b"), Text(0, "a")]) == [Text(1, "two b"), Text(0, "one a")]
    assert echo([Text(1, "c"), Text(0, "d")]) == [Text(1, "c"), Text(0, "d")]


def test_scores_of_the_prompt_come_with_its_text():
    scores = (TokenLogprob(1, b"o", None),)
    assert Echo(["o"])([Text(0, "", scores)]) == [Text(0, "o", scores)]


def test_a_choice_that_says_nothing_is_its_prompt():
    assert Echo(["one"])([Finished(0, STOP), Usage()]) == [Text(0, "one"), Finished(0, STOP), Usage()]
    failed = Failed(0, EngineFailure("x"))
    assert Echo(["one"])([failed]) == [Text(0, "one"), failed]


STOP = FinishReason.STOP


def said(index, text, logprob):
    return Text(index, text, (TokenLogprob(1, text.encode(), logprob),))


def test_nothing_is_reported_before_all_have_ended():
    stage = BestOf(drawn=2, n=1, with_logprobs=False)
    assert stage([said(0, "a", -2.0), said(1, "b", -1.0)]) == []
    assert stage([Finished(0, STOP), Finished(1, STOP)]) == []
    assert stage([Usage(completion_tokens=2)]) == [Text(0, "b"), Finished(0, STOP), Usage(completion_tokens=2)]


def test_the_likeliest_of_each_prompt_are_reported_in_order():
    stage = BestOf(drawn=3, n=2, with_logprobs=True)
    texts = [said(i, name, score) for i, (name, score) in enumerate(zip("abcdef", (-3, -1, -2, -1, -9, -2)))]
    events = stage([*texts, *(Finished(i, STOP) for i in range(6)), Usage()])
    assert [(e.choice, e.text, bool(e.logprobs)) for e in events if isinstance(e, Text)] == [
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
