"""Reads header strings and small tensors of a GGUF file without loading the model."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamasrv.engine.backend.library import function
from llamasrv.engine.base.arrays import Floats

_STRING, _F32, _F16, _BF16 = 8, 0, 1, 30


class _Params(ctypes.Structure):
    """gguf_init_params"""

    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


_P, _ID = ctypes.c_void_p, ctypes.c_int64
_open = function("gguf_init_from_file", _P, ctypes.c_char_p, _Params)
_free = function("gguf_free", None, _P)
_find_key = function("gguf_find_key", _ID, _P, ctypes.c_char_p)
_key_type = function("gguf_get_kv_type", ctypes.c_int, _P, _ID)
_text = function("gguf_get_val_str", ctypes.c_char_p, _P, _ID)
_num_tensors = function("gguf_get_n_tensors", _ID, _P)
_tensor_name = function("gguf_get_tensor_name", ctypes.c_char_p, _P, _ID)
_find_tensor = function("gguf_find_tensor", _ID, _P, ctypes.c_char_p)
_tensor_type = function("gguf_get_tensor_type", ctypes.c_int, _P, _ID)
_tensor_size = function("gguf_get_tensor_size", ctypes.c_size_t, _P, _ID)
_tensor_offset = function("gguf_get_tensor_offset", ctypes.c_size_t, _P, _ID)
_data_offset = function("gguf_get_data_offset", ctypes.c_size_t, _P)
_row_size = function("ggml_row_size", ctypes.c_size_t, ctypes.c_int, _ID)


class _TypeTraits(ctypes.Structure):
    """ggml_type_traits, up to the function that dequantises."""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, _P, _P, _ID)),
    ]


_type_traits = function("ggml_get_type_traits", ctypes.POINTER(_TypeTraits), ctypes.c_int)


class GgufFile:
    """An open header; see `opened`."""

    def __init__(self, path: Path, pointer: Any) -> None:
        self._path = path
        self._pointer = pointer

    def text(self, key: str) -> str:
        """A string of the header; "" if there is none."""
        at = _find_key(self._pointer, key.encode())
        if at < 0 or _key_type(self._pointer, at) != _STRING:
            return ""
        return str(_text(self._pointer, at).decode("utf-8", "replace"))

    def has_key(self, key: str) -> bool:
        return bool(_find_key(self._pointer, key.encode()) >= 0)

    def tensors(self) -> list[str]:
        """The names of all tensors."""
        numbers = range(_num_tensors(self._pointer))
        return [_tensor_name(self._pointer, number).decode("utf-8", "replace") for number in numbers]

    def has_tensor(self, name: str) -> bool:
        return bool(_find_tensor(self._pointer, name.encode()) >= 0)

    def numbers(self, tensor: str) -> Floats | None:
        """All numbers of a small tensor, as float32; None if it does not exist, is quantised, or is cut
        off."""
        at = _find_tensor(self._pointer, tensor.encode())
        kind = _tensor_type(self._pointer, at) if at >= 0 else -1
        if kind not in (_F32, _F16, _BF16):
            return None
        with open(self._path, "rb") as file:
            file.seek(_data_offset(self._pointer) + _tensor_offset(self._pointer, at))
            size = _tensor_size(self._pointer, at)
            raw = file.read(size)
        if len(raw) < size:
            return None
        if kind == _BF16:
            return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        return np.frombuffer(raw, np.float32 if kind == _F32 else np.float16).astype(np.float32)

    def table(self, tensor: str, width: int) -> TokenTable | None:
        """A matrix whose rows have `width` numbers each; None if it does not exist or has other rows."""
        at = _find_tensor(self._pointer, tensor.encode())
        if at < 0:
            return None
        kind, size = int(_tensor_type(self._pointer, at)), int(_tensor_size(self._pointer, at))
        stride = int(_row_size(kind, width))
        if not stride or size % stride:
            return None
        start = int(_data_offset(self._pointer) + _tensor_offset(self._pointer, at))
        return TokenTable(np.memmap(self._path, np.uint8, "r", start, (size // stride, stride)), kind, width)


class TokenTable:
    """A matrix in a file, of which single rows are read and dequantised."""

    def __init__(self, rows: NDArray[np.uint8], kind: int, width: int) -> None:
        self._rows, self._kind, self._width = rows, kind, width

    def row(self, number: int) -> Floats:
        """Float32 [width]."""
        raw = np.array(self._rows[number])  # contiguous, and aligned
        if self._kind == _F32:
            return raw.view(np.float32)
        out = np.empty(self._width, np.float32)
        _type_traits(self._kind).contents.to_float(raw.ctypes.data, out.ctypes.data, self._width)
        return out


@contextlib.contextmanager
def opened(path: Path) -> Iterator[GgufFile | None]:
    """The header of a file; None if it is not a GGUF file."""
    pointer = _open(os.fsencode(path), _Params(True, None))
    try:
        yield GgufFile(path, pointer) if pointer else None
    finally:
        if pointer:
            _free(pointer)
