"""Answers that begin with their prompt. With a model behind them: test_pipeline.py."""

from __future__ import annotations

from llamasrv.domain.events import Failed, Finished, FinishReason, Text, TokenLogprob, Usage
from llamasrv.errors import EngineFailure
from llamasrv.pipeline.echo import Echo

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
