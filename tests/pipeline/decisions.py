"""Questions in short."""

from __future__ import annotations

from llamasrv.domain.decide import DecideRequest, DecisionOption, Question
from llamasrv.domain.request import Message, TextPart


def predicate(text, true="", false=""):
    return Question("predicate", (TextPart(text),), (DecisionOption(True, true), DecisionOption(False, false)))


def choice(text, *values):
    return Question("choice", (TextPart(text),), tuple(DecisionOption(value) for value in values))


def score(text, *levels):
    return Question("score", (TextPart(text),), tuple(DecisionOption(level) for level in levels))


def asked(text, *questions, **settings):
    return DecideRequest((Message("user", text),), questions, **settings)
