"""When rows of images and audio are computed: in steps of their own, alternating with token steps.

A batch has tokens or media rows, never both. Pure, like all of the plan. Streams get a step between two such steps, and
each is as short as a prompt chunk; a chunk with non-causal attention is one step.
"""

from __future__ import annotations

from collections.abc import Callable

from llamasrv.domain.media import MediaSpan
from llamasrv.engine.base.batch import Part
from llamasrv.engine.base.sequence import Sequence


def is_at_media(seq: Sequence) -> bool:
    """Whether a seated sequence's next rows are media."""
    return seq.media is not None and seq.media.at(seq.num_computed) is not None


def lacks_rows(seq: Sequence, start: int) -> bool:
    """Whether a sequence with `start` computed tokens still needs the encoder."""
    return seq.media is not None and bool(seq.media.missing(start))


class MediaTurns:
    """Alternates steps of media rows and of tokens."""

    def __init__(self, *, batch_size: int, ubatch_size: int) -> None:
        self._batch_size, self._ubatch_size = batch_size, ubatch_size

    def parts(
        self, sequences: list[Sequence], *, others_wait: bool, had_turn: bool, cells: int, budget: Callable[[], int]
    ) -> list[Part]:
        """The parts of this step if it computes media rows, else []. `others_wait`: there are tokens to compute.
        `had_turn`: the last step computed media rows. `budget`: max rows of a step, for chunks that can be split."""
        if not sequences or (others_wait and had_turn):
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
        return parts


def _span(seq: Sequence) -> MediaSpan:
    assert seq.media is not None
    number = seq.media.at(seq.num_computed)
    assert number is not None, seq
    return seq.media.spans[number]
