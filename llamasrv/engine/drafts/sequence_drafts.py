"""Draft state of one sequence: sources, their acceptance, and counts."""

from __future__ import annotations

from array import array

from llamasrv.domain.events import DraftCounts
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.drafts.acceptance import NGRAM, Acceptance
from llamasrv.engine.drafts.draft import Draft
from llamasrv.engine.drafts.ngram import Lookup

PREDICTION, GRAMMAR = "prediction", "grammar"
WARM = 16  # steps in which the sources are asked after a draft was accepted


class SequenceDrafts:
    """Belongs to the engine thread."""

    __slots__ = (
        "acceptance",
        "counts",
        "warm",
        "tried",
        "_prediction",
        "_ngram",
        "_sources",
        "_num_forgotten",
        "_shadow",
    )

    def __init__(self, prediction: array[int] | None, *, ngram: bool, of_all: Acceptance) -> None:
        self._prediction, self._ngram = prediction, ngram
        self._sources: list[Lookup] | None = None
        self._num_forgotten = 0
        self.acceptance = Acceptance(of_all)
        self.counts = DraftCounts()
        self.warm = WARM if prediction else 0
        self.tried: Draft | None = None  # in this step
        self._shadow: tuple[Draft, int] | None = None  # a draft not tried, and the timeline's length then

    def propose(self, seq: Sequence, most: int) -> Draft | None:
        """The most promising draft after the sequence's tokens."""
        if self._sources is None or seq.num_forgotten != self._num_forgotten:
            self._sources, self._shadow = self._begin(seq), None
        tokens = seq.tokens
        self._learn_from_shadow(tokens)
        if (forced := self._forced(seq, most)) is not None:
            return forced
        best: Draft | None = None
        for source in self._sources:
            draft = source.propose(tokens, most, self.acceptance)
            if draft is not None and (best is None or sum(draft.chances) > sum(best.chances)):
                best = draft
        if self.warm:
            self.warm -= 1
        return best

    def _forced(self, seq: Sequence, most: int) -> Draft | None:
        """The next tokens that the grammar forces, if they must be verified row by row."""
        if seq.sampling is None or not seq.sampling.drafts_forced or seq.constraint is None:
            return None
        self.warm = WARM  # more forced tokens may come in any step
        tokens = seq.constraint.forced()[:most]
        return Draft(GRAMMAR, tokens, [0] * len(tokens), [1.0] * len(tokens)) if tokens else None

    def _begin(self, seq: Sequence) -> list[Lookup]:
        self._num_forgotten = seq.num_forgotten  # after a context shift the text is another one
        sources = []
        if self._prediction:
            sources.append(Lookup(PREDICTION, self._prediction, seq.num_tokens - seq.num_generated))
        if self._ngram:
            sources.append(Lookup(NGRAM, seq.tokens, seq.num_tokens))
        return sources

    def try_out(self, draft: Draft, count: int, length: int) -> list[int]:
        """The first `count` tokens of a draft for a timeline of `length`. A draft that is not tried is still compared
        with what follows, to learn its acceptance."""
        if not count:
            self._shadow = draft, length
            return []
        self.tried = draft
        return draft.tokens[:count]

    def settle(self, count: int, accepted: int, *, differs: bool) -> str:
        """`accepted` of `count` tried tokens were accepted; `differs`: the next one is known to be wrong. Returns their
        source."""
        draft, self.tried = self.tried, None
        assert draft is not None
        for i in range(accepted):
            self.acceptance.learn(draft.source, draft.kinds[i], True)
        if differs:
            self.acceptance.learn(draft.source, draft.kinds[accepted], False)
        if accepted and draft.source in (NGRAM, PREDICTION):
            self.warm = WARM
        counts = self.counts
        self.counts = counts._replace(drafted=counts.drafted + count, accepted=counts.accepted + accepted)
        if draft.source == PREDICTION:
            self.counts = self.counts._replace(
                predicted=(counts.predicted or 0) + count, predicted_accepted=counts.predicted_accepted + accepted
            )
        return draft.source

    def _learn_from_shadow(self, tokens: array[int]) -> None:
        if self._shadow is not None:
            (draft, length), self._shadow = self._shadow, None
            if length < len(tokens):
                self.acceptance.learn(draft.source, draft.kinds[0], tokens[length] == draft.tokens[0])
