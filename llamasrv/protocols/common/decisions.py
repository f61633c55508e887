"""What the dialects of decisions share: checks of questions, and the numbers beside probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.decide import Decided, DecideRequest, Question
from llamasrv.domain.request import Message, Part, TextPart
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.schema import Count, Invalid, WireSchema, expect
from llamasrv.protocols.limits import Limits

OPTIONS = 255  # max options of a choice
ORDERS = 8
THOUGHT = 32_768  # max tokens of a thought


class DecisionSchema(WireSchema):
    """The fields that all dialects share."""

    x_orders = Count(
        1,
        ORDERS,
        "orders of a choice's options, rotations of each other, over which probabilities are averaged; from 2 on the "
        "order in the request has no effect; default 1: as sent",
        to="orders",
    )
    x_thinking_tokens = Count(
        0,
        THOUGHT,
        "max tokens that a thinking model may spend on thoughts about each question; default 0: it answers at once",
        to="thinking",
    )


class Shown(NamedTuple):
    """What a reply needs of its request. `names`: of the questions; None where one has none. `levels`: of scores, as
    the client wrote them, where that is not a text."""

    names: tuple[str | None, ...]
    questions: tuple[Question, ...]
    levels: tuple[Any, ...] = ()


def request_of(
    data: Loaded, input: tuple[Message, ...], questions: tuple[Question, ...], limits: Limits, **others: Any
) -> DecideRequest:
    most = limits.decision_tokens
    return build(DecideRequest, data, input=input, questions=questions, most_tokens=most, **others)


class DecisionsEndpoint(SchemaEndpoint):
    """A dialect whose `questions` are read without looking at other fields."""

    names = prompt_in("input")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[DecideRequest, Shown]:
        data = self._load(body)
        shown: Shown = data["questions"]
        request = request_of(data, data["input"], shown.questions, self._limits, owner=owner, timeout=timeout)
        return request, shown


def only(value: Any, allowed: Sequence[str], *path: int | str) -> Mapping[str, Any]:
    """Checks the keys of a question's object: a misspelt field would ask something else."""
    fields: Mapping[str, Any] = expect(dict, value, *path)
    for name in fields:
        if name not in allowed:
            raise Invalid(f"unknown field. Expected {', '.join(allowed)}.", *path, name[:64], code="unknown_parameter")
    return fields


def number_of(value: Any, low: int, high: int, what: str, *path: int | str) -> None:
    """Raises unless an array or object has between `low` and `high` entries."""
    if len(value) < low:
        code = "empty_array" if not value else "array_below_min_length"
        raise Invalid(f"too few {what}. Expected at least {low}, but got {len(value)}.", *path, code=code)
    if len(value) > high:
        text = f"too many {what}. Expected at most {high}, but got {len(value)}."
        raise Invalid(text, *path, code="array_above_max_length")


def missing(*path: int | str) -> Invalid:
    return Invalid("missing.", *path, code="missing_required_parameter")


def text_of(value: Any) -> str:
    """A text as it is, anything else as compact JSON in the order given."""
    return value if type(value) is str else orjson.dumps(value).decode()


def users(parts: Sequence[Part]) -> tuple[Message, ...]:
    """The text as one user turn."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return (Message("user", "\n".join(texts)),)
    return (Message("user", tuple(parts)),)


# ------------------------------------------------------------ numbers


def chosen(answer: Decided) -> int:
    """The most likely option; of equally likely ones the first."""
    return max(range(len(answer.probabilities)), key=answer.probabilities.__getitem__)


def level(answer: Decided) -> float:
    """The mean of a score's levels."""
    return sum(i * p for i, p in enumerate(answer.probabilities))


def choice_confidence(answer: Decided) -> float:
    """TypeSafe's: 0 if all options are equally likely, 1 if one is certain."""
    n = len(answer.probabilities)
    return 1.0 if n == 1 else _unit((n * max(answer.probabilities) - 1) / (n - 1))


def score_confidence(answer: Decided) -> float:
    """TypeSafe's: 1 if one level is certain, less the farther the others lie from it, 0 if they are as spread as
    equally likely ones."""
    n = len(answer.probabilities)
    if n == 1:
        return 1.0
    mode, middle = chosen(answer), (n - 1) / 2
    spread = sum(p * abs(i - mode) for i, p in enumerate(answer.probabilities))
    return _unit(1 - spread / (sum(abs(i - middle) for i in range(n)) / n))


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))
