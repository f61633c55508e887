"""The rows of one decode: token or embedding, position, lane, and whether logits are wanted.

The arrays live as long as the context and are filled by slices: 9 µs for 512 rows, against 300 µs attribute by
attribute. A back end reads them in place.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.base.arrays import Floats, Int32s
from llamasrv.engine.base.sequence import Sequence

Part = tuple[Sequence, int]
"""A sequence, and how many of its owed tokens this step computes."""


class StepWork(NamedTuple):
    """What a step computes. Cells are those that a row passes, summed over the rows."""

    prompt: int = 0  # rows
    decodes: int = 0  # rows
    own_cells: float = 0.0  # of the row's own sequence
    foreign_cells: float = 0.0  # of the step's other sequences


@dataclass(slots=True)
class StepRows:
    """What one step computes. `parts`: decodes first."""

    parts: list[Part]
    num_decodes: int  # the first parts: one owed token each
    num_prompt: int  # prompt tokens in the other parts
    work: StepWork = StepWork()  # with filling rows, without drafts
    adapters: Adapters = ()
    num_drafted: int = 0  # additional rows for drafts of the decodes
    num_filling: int = 0  # additional rows behind the last part (step/filling.py)
    draft_seconds: float = 0.0  # time of the draft model


class MediaRows(NamedTuple):
    """Rows of images and sounds, in place of tokens."""

    embeddings: Floats  # float32 [rows, width]
    positions: Int32s  # int32 [dimensions, rows]
    whole: bool  # non-causal: the rows of a lane all attend to each other


class Batch:
    """At most `capacity` rows, all of tokens or all of `media`. `outputs`: the sequences of the rows with logits, in
    row order."""

    def __init__(self, capacity: int, *, dimensions: int = 1) -> None:
        """`dimensions` of media positions: 4 with M-RoPE."""
        self.dimensions = dimensions
        self.media: MediaRows | None = None
        self.capacity = capacity
        self.token = np.zeros(capacity, np.int32)
        self.position = np.zeros(capacity, np.int32)
        self.lane = np.zeros(capacity, np.int32)
        self.wants_logits = np.zeros(capacity, np.int8)
        self.num_rows = 0
        self.num_outputs = 0
        self.outputs: list[tuple[Sequence, int]] = []  # (sequence, number of its rows with logits)

    def fill(self, parts: Rows[Part], num_filling: int = 0) -> None:
        """Lay out the parts, row by row, and `num_filling` rows behind the last one. Flags logits for the last token of
        a timeline and its draft, or for every token of a scored prompt."""
        outputs = self.outputs = []
        self.media = None
        if parts and (media := parts[0][0].media) is not None and media.at(parts[0][0].num_computed) is not None:
            self._fill_media(parts)
            return
        single = 0  # plain decodes come first and are laid out together
        for seq, count in parts:
            if count != 1 or len(seq.tokens) - seq.num_computed != 1 or seq.draft or seq.spec.prompt_logprobs:
                break
            single += 1
        if single:
            first = [seq for seq, _ in parts[:single]]
            self.token[:single] = [seq.tokens[-1] for seq in first]
            self.position[:single] = [seq.num_computed - seq.shift for seq in first]
            self.lane[:single] = [seq.seat for seq in first]
            self.wants_logits[:single] = 1
            outputs += [(seq, 1) for seq in first]
        row = single
        for seq, count in parts[single:]:
            row = self._fill_part(seq, count, row)
        if num_filling:
            row = self._fill_up(row, row + num_filling)
        self.num_rows = row
        if row > single:
            self._count_outputs(single + sum([count for _, count in outputs[single:]]))
        else:
            self.num_outputs = single

    def _fill_up(self, row: int, end: int) -> int:
        """Repeat the last row's token behind it, without logits."""
        assert end <= self.capacity, "more rows than the batch holds"
        self.token[row:end], self.lane[row:end] = self.token[row - 1], self.lane[row - 1]
        self.position[row:end] = self.position[row - 1] + np.arange(1, end - row + 1)
        self.wants_logits[row:end] = 0
        return end

    def _count_outputs(self, owned: int) -> None:
        """Count the rows with logits and check them against `outputs`, which hands them out: one unowned row would give
        every later row to the wrong sequence."""
        self.num_outputs = int(np.count_nonzero(self.wants_logits[: self.num_rows]))
        assert self.num_outputs == owned, "a row with logits has no owner"

    def _fill_part(self, seq: Sequence, count: int, row: int) -> int:
        start = seq.num_computed
        assert 0 < count <= seq.num_tokens - start, seq
        end = row + count
        self.token[row:end] = seq.tokens[start : start + count]
        assert end + len(seq.draft) <= self.capacity, "more rows than the batch holds"
        if seq.draft:
            assert start + count == seq.num_tokens, seq
            end += len(seq.draft)
            self.token[row + count : end] = seq.draft
        first = start if seq.media is None else seq.media.position(start)
        self.position[row:end] = np.arange(first, first + end - row)
        self.lane[row:end] = seq.seat
        if seq.is_scored:
            assert not seq.draft, seq
            self.wants_logits[row:end] = 1
            self.outputs.append((seq, count))
        else:
            last = start + count == seq.num_tokens
            first = row + count - 1  # with logits
            self.wants_logits[row:first] = 0
            self.wants_logits[first:end] = last
            if last:
                self.outputs.append((seq, end - first))
        return end

    def _fill_media(self, parts: Rows[Part]) -> None:
        """Rows of media. Flags logits only for a prompt that ends with such a row."""
        embeddings, positions = [], []
        row = 0
        whole = False
        for seq, count in parts:
            start, media = seq.num_computed, seq.media
            assert media is not None, seq
            number = media.at(start)
            assert number is not None and start + count <= media.spans[number].end, seq
            first = start - media.spans[number].start
            embeddings.append(media.rows[number][first : first + count])
            positions.append(media.positions(number, first, count, self.dimensions))
            whole = media.spans[number].chunk.whole
            end = row + count
            assert end <= self.capacity, "more rows than the batch holds"
            self.lane[row:end] = seq.seat
            self.wants_logits[row:end] = 0
            if start + count == seq.num_tokens:
                self.wants_logits[end - 1] = 1
                self.outputs.append((seq, 1))
            row = end
        self.media = MediaRows(np.concatenate(embeddings), np.concatenate(positions, axis=1), whole)
        self.num_rows = row
        self._count_outputs(len(self.outputs))
