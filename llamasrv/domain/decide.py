"""Decisions: typed questions about one input, and how likely each answer is. Frozen and neutral, as in request.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Union

from llamasrv.domain.request import Message, Part

Kind = Literal["predicate", "choice", "score"]


@dataclass(frozen=True, slots=True)
class DecisionOption:
    """One answer that a question allows. A predicate has two, for true and for false, in this order."""

    value: Union[str, bool]  # as the client wrote it; of two options of a question not both value and type are equal
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    kind: Kind
    instructions: tuple[Part, ...]
    options: tuple[DecisionOption, ...]  # of a score: its levels, the lowest first
    param: str = field(default="questions", compare=False)  # the client's name for its place


@dataclass(frozen=True, slots=True)
class DecideRequest:
    """Each question is answered by itself, as if it were the only one. The model does not think first."""

    input: tuple[Message, ...]
    questions: tuple[Question, ...]
    model: str | None = None
    orders: int = 1  # orders of a choice's options that are averaged; from 2 on the client's order has no effect
    most_tokens: int = 262_144  # of the input and all questions together
    timeout: float | None = None  # seconds from arrival
    owner: str = ""  # API key's name, for fair sharing
    cache_salt: str = ""  # prefixes are shared only among requests with the same salt
    deferrable: bool = False  # computed only while the server is otherwise idle
    keep_alive: float | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """`probabilities`: of each option, in the order of the question; they add up to 1. `mass`: the probability that the
    model begins its reply with any of them at all. `refused`: it was below the operator's bound."""

    probabilities: tuple[float, ...]
    mass: float
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Decisions:
    """The answers, in the order of the questions. `prompt_tokens` counts the input once; `cached_tokens` of them were
    there before."""

    model: str
    answers: tuple[Decided, ...]
    prompt_tokens: int
    cached_tokens: int


COLDEST, HOTTEST = 0.05, 20.0  # temperatures of a fit


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model's probabilities of a kind of question become those of the operator's own cases:
    softmax((log-probability + bias) / temperature). `bias` is by label, in the order in which they are shown."""

    temperature: float = 1.0
    bias: tuple[float, ...] = ()


NO_FIT = Fit()


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """What the operator sets for a model's decisions."""

    min_mass: float = 0.01  # below, a question is refused
    fits: Mapping[str, Fit] = field(default_factory=dict)  # by kind, or kind and bucket of options: "choice 3-5"
