"""A llama_batch that points into the arrays of a Batch, without copies."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamasrv.engine.backend.library import C
from llamasrv.engine.base.batch import Batch


class BoundBatch:
    """`native` is valid for as long as this object lives."""

    def __init__(self, batch: Batch) -> None:
        self._one_lane = np.ones(batch.capacity, np.int32)
        self._lane_pointers = (batch.lane.ctypes.data + 4 * np.arange(batch.capacity)).astype(np.uint64)

        def at(a: NDArray[np.integer], kind: Any) -> Any:
            return ctypes.cast(a.ctypes.data, ctypes.POINTER(kind))

        native: Any = C.llama_batch()
        native.token, native.pos = at(batch.token, C.llama_token), at(batch.position, C.llama_pos)
        native.n_seq_id = at(self._one_lane, ctypes.c_int32)
        native.seq_id = ctypes.cast(self._lane_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(C.llama_seq_id)))
        native.logits = at(batch.wants_logits, ctypes.c_int8)
        self.native = native
