"""The images and audio of one sequence: their place in its timeline, and their rows.

Cells and positions are two things: cells count rows in KV, positions are what attention sees. They differ after an
M-RoPE image. A timeline is never cut inside a chunk: all rows of an M-RoPE image share one position.
Belongs to the engine thread.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from llamasrv.domain.media import MediaSpan
from llamasrv.engine.base.arrays import Floats, Int32s

_MOVES = np.array([[1], [1], [1], [0]], np.int32)  # of (time, y, x, z): whether it advances with the timeline


class MediaTimeline:
    """`rows`: by number of the span, float32 [num_tokens, width], from encoding until they are in KV."""

    __slots__ = ("spans", "rows", "shift", "_starts", "_shifts")

    def __init__(self, spans: tuple[MediaSpan, ...]) -> None:
        self.spans = spans
        self.rows: dict[int, Floats] = {}
        self._starts = [span.start for span in spans]
        self._shifts = [0]  # cells minus positions, before each span and after the last one
        for span in spans:
            self._shifts.append(self._shifts[-1] + span.chunk.num_tokens - span.chunk.num_positions)
        self.shift = self._shifts[-1]

    def at(self, cell: int) -> int | None:
        """The number of the span with this cell; None for a token of text."""
        number = bisect_right(self._starts, cell) - 1
        return number if number >= 0 and cell < self.spans[number].end else None

    def text_end(self, cell: int, end: int) -> int:
        """Where the text at this cell ends: the next span, or `end`."""
        number = bisect_right(self._starts, cell)
        return min(end, self._starts[number]) if number < len(self._starts) else end

    def cut(self, cell: int) -> int:
        """The last cell up to this one at which the timeline can be cut."""
        number = self.at(cell)
        return cell if number is None else self._starts[number]

    def position(self, cell: int) -> int:
        """The position of a token of text, or of a span's start."""
        number = bisect_right(self._starts, cell)
        if number and cell < self.spans[number - 1].end:
            number -= 1
        return cell - self._shifts[number]

    def positions(self, number: int, first: int, count: int, dimensions: int) -> Int32s:
        """Positions of `count` rows of a span from its row `first` on: int32 [dimensions, count]."""
        span = self.spans[number]
        start = self.position(span.start)
        if span.chunk.positions is None:
            line = np.arange(start + first, start + first + count, dtype=np.int32)
            return np.broadcast_to(line, (dimensions, count))
        places = np.frombuffer(span.chunk.positions, np.int32).reshape(4, -1)
        return places[:dimensions, first : first + count] + start * _MOVES[:dimensions]

    def missing(self, cell: int) -> list[int]:
        """Numbers of the spans that end after this cell and have no rows here."""
        return [n for n, span in enumerate(self.spans) if span.end > cell and n not in self.rows]
