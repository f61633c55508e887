"""When rows of images and audio are computed: in steps of their own, alternating with token steps.

A batch has tokens or media rows, never both. Pure, like all of the plan. Streams get a step between two such steps; how
long they are is the policy's business (step_policy.py).
"""

from __future__ import annotations

from llamasrv.domain.media import MediaSpan
from llamasrv.engine.base.batch import Part
from llamasrv.engine.base.sequence import Sequence


def is_at_media(seq: Sequence) -> bool:
    """Whether a seated sequence's next rows are media."""
    return seq.media is not None and seq.media.at(seq.num_computed) is not None


def lacks_rows(seq: Sequence, start: int) -> bool:
    """Whether a sequence with `start` computed tokens still needs the encoder."""
    return seq.media is not None and bool(seq.media.missing(start))


def media_parts(sequences: list[Sequence], rows: int, *, cells: int, ubatch_size: int) -> list[Part]:
    """The parts of a step of at most that many rows. A chunk with non-causal attention is not split: whole ones that
    fit one ubatch."""
    sequences = sorted(sequences, key=lambda s: (s.admitted or 0.0, s.id))
    first = sequences[0]
    whole = _span(first).chunk.whole
    key = first.spec.cache_key.adapters
    alike = [s for s in sequences if _span(s).chunk.whole is whole and s.spec.cache_key.adapters == key]
    most = min(cells, ubatch_size if whole else rows)
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
    media = seq.own_media
    number = media.at(seq.num_computed)
    assert number is not None, seq
    return media.spans[number]
