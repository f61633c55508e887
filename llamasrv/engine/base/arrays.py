"""Types of the arrays that the engine's parts exchange. Shapes are given where an array is taken or returned."""

from __future__ import annotations

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

Bools = NDArray[np.bool_]

LaneState = NDArray[np.generic]
"""The saved state of a lane, opaque to all but the back end; kept and written to files as bytes."""
