"""Whether to fill a batch up to whole blocks of rows.

CPU kernels for quantised weights compute blocks of four rows, and each row left over can cost more than a whole block
(0.5B, Q8_0: 7 rows 95 ms, 8 rows 72 ms). Elsewhere the extra rows are wasted. So both are tried while the engine runs,
again and again since other load disturbs a measurement, and the faster one is kept. Knows no library.
"""

from __future__ import annotations

from collections import deque

BLOCK = 4
MOST_ROWS = 32  # in larger batches what is left over does not matter
TRIALS = 3  # of each kind before a decision
AGAIN = 128  # decisions after which the slower kind is tried once more
SHORTEST = 0.005  # seconds; shorter steps are not worth it


class Padding:
    """Decides by number of rows. `choose`, compute, `learn`."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, bool], deque[float]] = {}
        self._decisions = 0

    def choose(self, num_rows: int) -> bool:
        if num_rows % BLOCK == 0 or not BLOCK < num_rows <= MOST_ROWS:
            return False
        plain, padded = (self._times.setdefault((num_rows, kind), deque(maxlen=TRIALS)) for kind in (False, True))
        if plain and plain[0] < SHORTEST:
            return False
        if min(len(plain), len(padded)) < TRIALS:
            return len(padded) < len(plain)
        better = min(padded) < min(plain)
        self._decisions += 1
        return better if self._decisions % AGAIN else not better

    def learn(self, num_rows: int, padded: bool, seconds: float) -> None:
        times = self._times.get((num_rows, padded))
        if times is not None:
            times.append(seconds)
