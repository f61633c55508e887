"""What is left out of a long conversation before a model sees it. The client keeps all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ClearResults:
    """Clear the oldest results of tools once the conversation passes `max_tokens` or holds more than `max_results`."""

    max_tokens: int | None = None
    max_results: int | None = None
    keep: int = 3  # newest results that stay
    min_tokens: int = 0  # clear nothing if it would save less
    excluded: frozenset[str] = frozenset()  # tools whose results stay
    arguments: bool | frozenset[str] = False  # clear the calls' arguments, too: of all tools, or of these


@dataclass(frozen=True, slots=True)
class Compact:
    """Put a summary in place of the older turns once the conversation passes `max_tokens`."""

    max_tokens: int
    order: str = ""  # what the model is asked to write; empty: the usual
    pause: bool = False  # give the summary only, and no answer


@dataclass(frozen=True, slots=True)
class ContextEdits:
    results: ClearResults | None = None
    thoughts: int | None = None  # newest turns whose thoughts stay; None: all
    compact: Compact | None = None


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    kind: Literal["results", "thoughts", "summary"]
    number: int  # of results, of turns whose thoughts were cleared, or of messages that a summary stands for
    num_tokens: int  # that the prompt became shorter by
