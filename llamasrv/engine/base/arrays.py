"""The arrays that the engine's parts exchange. Shapes are given where an array is taken or returned."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Logits, embeddings, vectors, sound."""

Reals = NDArray[np.floating]
"""The same, in any precision."""

Int32s = NDArray[np.int32]
"""The library's integers: tokens, positions, lanes, words of a mask."""

Ids = NDArray[np.int64]
"""Token ids as numpy's indices into a row of logits."""

LaneState = NDArray[np.generic]
"""The saved state of a lane, opaque to all but the back end; kept and written to files as bytes."""

_FEW = 8  # tokens compared first: as a rule they differ


def common_prefix(a: array[int], b: array[int]) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    if a[:_FEW] != b[:_FEW]:  # soon known
        return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), n)
    different = np.frombuffer(a, np.int32)[:n] != np.frombuffer(b, np.int32)[:n] if n else np.zeros(1, bool)
    first = int(different.argmax())
    return first if different[first] else n


def pooled(rows: Floats, pooling: str) -> Floats:
    """One input's token vectors [tokens, size] as a single vector [size]; unchanged for "none"."""
    if pooling == "none":
        return rows
    vector: Floats
    if pooling == "mean":
        vector = rows.mean(0, dtype=np.float64).astype(np.float32)
    else:
        vector = rows[0 if pooling == "cls" else -1].copy()
    return vector
