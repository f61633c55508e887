"""When rows of images and audio are computed: in steps of their own, alternating with token steps.

A batch has tokens or rows, never both. Pure decisions, as all of the plan: streams go on between two such steps, and
each takes no longer than a piece of a prompt may. Where a model sees a chunk as a whole, it is one step.
"""

from __future__ import annotations

from collections.abc import Callable

from llamasrv.domain.media import MediaSpan
from llamasrv.engine.batch import Part
from llamasrv.engine.sequence import Sequence


def is_at_media(seq: Sequence) -> bool:
    """Whether a seated sequence computes rows next."""
    return seq.media is not None and seq.media.at(seq.num_computed) is not None


def lacks_rows(seq: Sequence, start: int) -> bool:
    """Whether a sequence that has `start` tokens needs the encoder before it can be computed to its end."""
    return seq.media is not None and bool(seq.media.missing(start))


class MediaTurns:
    """Decides whether tokens or rows come next."""

    def __init__(self, *, batch_size: int, ubatch_size: int) -> None:
        self._batch_size, self._ubatch_size = batch_size, ubatch_size
        self._had_turn = False

    def parts(
        self, sequences: list[Sequence], *, others_wait: bool, cells: int, budget: Callable[[], int]
    ) -> list[Part]:
        """The parts of this step if it computes rows. `others_wait`: there are tokens to compute. `budget`: the most
        rows of a step where rows can be split."""
        if not sequences or (others_wait and self._had_turn):
            self._had_turn = False
            return []
        sequences = sorted(sequences, key=lambda s: (s.admitted or 0.0, s.id))
        first = sequences[0]
        whole = _span(first).chunk.whole
        key = first.spec.cache_key.adapters
        alike = [s for s in sequences if _span(s).chunk.whole is whole and s.spec.cache_key.adapters == key]
        most = min(cells, self._ubatch_size if whole else min(self._batch_size, budget()))
        parts = []
        for seq in alike:
            rest = _span(seq).end - seq.num_computed
            if whole and rest > most:
                continue
            count = min(rest, most)
            if count < 1:
                break
            parts.append((seq, count))
            most -= count
        self._had_turn = bool(parts)
        return parts

    def end(self) -> bool:
        """No rows are to be computed. Whether the last step did."""
        had_turn, self._had_turn = self._had_turn, False
        return had_turn


def _span(seq: Sequence) -> MediaSpan:
    assert seq.media is not None
    number = seq.media.at(seq.num_computed)
    assert number is not None, seq
    return seq.media.spans[number]
