"""Decisions: typed questions about one input, and how likely each answer is. Frozen and neutral, as in request.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Union

from llamasrv.domain.request import Message, Part

Kind = Literal["predicate", "choice", "score"]


@dataclass(frozen=True, slots=True)
class DecisionOption:
    """One possible answer. A predicate has two, true and false, in this order."""

    value: Union[str, bool]  # as the client wrote it; unique within a question by value and type
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    kind: Kind
    instructions: tuple[Part, ...]
    options: tuple[DecisionOption, ...]  # a score: its levels, lowest first
    param: str = field(default="questions", compare=False)  # its place, as the client names it


@dataclass(frozen=True, slots=True)
class DecideRequest:
    """Each question is answered as if it were the only one."""

    input: tuple[Message, ...]
    questions: tuple[Question, ...]
    model: str | None = None
    orders: int = 1  # orders of a choice's options to average; with 2 or more the client's order has no effect
    thinking: int = 0  # max tokens of the model's thought about each question in each order; 0: it does not think
    most_tokens: int = 262_144  # of the input and all questions together
    timeout: float | None = None  # seconds from arrival
    owner: str = ""  # API key's name, for fair sharing
    cache_salt: str = ""  # prefixes are shared only among requests with the same salt
    deferrable: bool = False  # computed only while the server is otherwise idle
    keep_alive: float | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """`probabilities`: per option, in the question's order; they add up to 1. `mass`: probability that the reply
    begins with any of the options. `refused`: it was below the operator's bound."""

    probabilities: tuple[float, ...]
    mass: float
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Decisions:
    """The answers, in the order of the questions. `prompt_tokens` counts the input once; `cached_tokens` of them were
    reused. `reasoning_tokens`: of thoughts."""

    model: str
    answers: tuple[Decided, ...]
    prompt_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


COLDEST, HOTTEST = 0.05, 20.0  # temperatures of a fit


@dataclass(frozen=True, slots=True)
class Fit:
    """Maps a model's probabilities for a kind of question to those of the operator's own cases:
    softmax((log-probability + bias) / temperature). `bias`: per label, in the order shown."""

    temperature: float = 1.0
    bias: tuple[float, ...] = ()


NO_FIT = Fit()


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """The operator's settings for a model's decisions."""

    min_mass: float = 0.01  # questions below it are refused
    fits: Mapping[str, Fit] = field(default_factory=dict)  # by kind, or kind and bucket of options: "choice 3-5"
