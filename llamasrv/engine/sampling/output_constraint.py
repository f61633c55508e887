"""Constraints of an answer beside its samplers: a grammar, a thinking budget, or both.

One per sequence with either. Knows no grammar library and no threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from llamasrv.engine.base.interface import Pieces
from llamasrv.engine.sampling.grammar_matcher import GrammarMatcher
from llamasrv.engine.sampling.thinking_budget import ThinkingBudget
from llamasrv.errors import LlamasrvError

LONGEST_JUMP = 512  # max forced tokens that a sequence takes at once: all others wait for it


class OutputConstraint:
    """Belongs to the engine thread from submission on."""

    __slots__ = ("matcher", "_budget", "_forced", "_control_texts", "_pieces")

    def __init__(
        self,
        matcher: GrammarMatcher | None,
        budget: ThinkingBudget | None,
        *,
        control_texts: Mapping[int, bytes],
        pieces: Pieces,
    ) -> None:
        """`control_texts`: texts of control tokens; `pieces`: bytes of all other tokens."""
        self.matcher = matcher
        self._budget = budget
        self._forced: list[int] = []  # forced next tokens, in order
        self._control_texts, self._pieces = control_texts, pieces

    @property
    def is_late(self) -> bool:
        """Whether the next token depends on a mask that is still being computed."""
        matcher = self.owed
        return matcher is not None and not matcher.ready

    @property
    def is_slow(self) -> bool:
        """Whether its grammar is slow to follow; such grammars get slower with every token."""
        return self.matcher is not None and self.matcher.is_slow

    @property
    def owed(self) -> GrammarMatcher | None:
        """The matcher whose mask the next token depends on, if it does."""
        matcher = self.matcher
        return matcher if matcher is not None and matcher.binding and not self._forced else None

    def next_forced(self) -> int | None:
        """Take the forced next token, if there is one; the caller must accept it."""
        forced = self.forced()
        return forced.pop(0) if forced else None

    def forced(self) -> list[int]:
        """The forced next tokens, as far as they are known."""
        forced = self._forced
        if not forced:
            if self._budget is not None:
                forced = self._budget.due()
            if not forced and self.matcher is not None:
                forced = self.matcher.forced()
            self._forced = forced
        return forced

    def jump_forward(self, most: int, ends: Collection[int]) -> list[int]:
        """Accept and return forced tokens: at most `most`, and none of `ends`."""
        tokens: list[int] = []
        while len(tokens) < most and (token := self.next_forced()) is not None:
            if token in ends or not self.accept(token):
                self._forced.insert(0, token)
                break
            tokens.append(token)
        return tokens

    def num_allowed(self, tokens: list[int]) -> int:
        """How many of these tokens the constraint would accept in sequence."""
        return len(tokens) if self.matcher is None else self.matcher.num_allowed(tokens)

    def accept(self, token: int) -> bool:
        """Advance by one token. False if the grammar does not allow it."""
        if self._budget is not None:
            self._budget.accept(self._control_texts.get(token) or self._pieces[token])
        matcher = self.matcher
        if matcher is None or matcher.accept(token):
            return True
        if matcher.binding:
            return False
        self.matcher = None  # before a trigger any text is allowed: stop following the grammar
        return True

    def failure(self) -> LlamasrvError | None:
        """Why the grammar has failed; None if it has not."""
        return self.matcher.failure() if self.matcher is not None and self.matcher.error else None

    @property
    def has_budget(self) -> bool:
        """Whether `end_thinking` has an effect."""
        return self._budget is not None

    def end_thinking(self) -> None:
        """Close the thinking block next, and any later one as soon as it opens."""
        if self._budget is not None:
            self._budget.end()

    def may_end(self) -> bool:
        """Whether an end token may end the answer here."""
        matcher = self.matcher
        return matcher is None or not matcher.binding or matcher.may_end

    @property
    def is_complete(self) -> bool:
        matcher = self.matcher
        return matcher is not None and matcher.is_complete
