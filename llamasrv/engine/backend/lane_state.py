"""The state of one lane as bytes: all of it, or with PARTIAL (memory_kind.py) only the part that cannot be cut."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from llamasrv.engine.backend.library import C
from llamasrv.engine.base.arrays import LaneState


def state_size(context: Any, lane: int, flags: int = 0) -> int:
    return int(C.llama_state_seq_get_size_ext(context, lane, flags))


def read_state(context: Any, lane: int, flags: int = 0) -> LaneState:
    size = state_size(context, lane, flags)
    data = np.empty(size, np.uint8)
    written = C.llama_state_seq_get_data_ext(context, _bytes_at(data), size, lane, flags)
    return data[:written]


def write_state(context: Any, lane: int, data: LaneState, flags: int = 0) -> bool:
    """Returns whether the library accepted all bytes."""
    size = len(data)
    return bool(C.llama_state_seq_set_data_ext(context, _bytes_at(data), size, lane, flags) == size)


def _bytes_at(data: LaneState) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
