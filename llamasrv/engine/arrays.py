"""The kinds of arrays that cross between the engine's parts. Shapes stand where an array is taken or returned."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Logits, embeddings, vectors, sound."""

Reals = NDArray[np.floating]
"""The same, where a width of their own is allowed."""

Int32s = NDArray[np.int32]
"""What the library reads and writes: tokens, positions, lanes, the words of a mask."""

Ids = NDArray[np.int64]
"""Tokens as numpy finds them: indices into a row of logits."""

Bools = NDArray[np.bool_]

LaneState = NDArray[np.generic]
"""What a backend saves of a lane: its own business, kept and written to files as bytes."""
