"""Control vectors: one direction per layer, added to the layer's output.

They apply to all sequences of a context. The files have a tensor `direction.N` for layer N, counted from 1.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

import numpy as np

from llamasrv.engine.backend.library import C
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import Adapter, EngineOptions

_ggml = ctypes.CDLL(C._lib._name)
_F32 = 0


class _Init(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


def _declare(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_ggml, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


_P, _I = ctypes.c_void_p, ctypes.c_int64
_open = _declare("gguf_init_from_file", _P, ctypes.c_char_p, _Init)
_free = _declare("gguf_free", None, _P)
_count = _declare("gguf_get_n_tensors", _I, _P)
_name = _declare("gguf_get_tensor_name", ctypes.c_char_p, _P, _I)
_type = _declare("gguf_get_tensor_type", ctypes.c_int, _P, _I)
_size = _declare("gguf_get_tensor_size", ctypes.c_size_t, _P, _I)
_offset = _declare("gguf_get_tensor_offset", ctypes.c_size_t, _P, _I)
_data = _declare("gguf_get_data_offset", ctypes.c_size_t, _P)


def directions(vectors: tuple[Adapter, ...], width: int, layers: int) -> Floats:
    """The sum of the vectors, each times its scale: shape (layers, width), layer 1 first. Raises LoadFailed."""
    total = np.zeros((layers, width), np.float32)
    for vector in vectors:
        for layer, direction in _read(vector.path):
            if direction.size != width:
                raise LoadFailed(
                    f"{vector.path}: its directions have {direction.size} values, but the model's layers have {width}"
                )
            if not 1 <= layer <= layers:
                raise LoadFailed(f"{vector.path}: it steers layer {layer}, but the model has only {layers}")
            total[layer - 1] += direction * np.float32(vector.scale)
    return total


def _read(path: str) -> list[tuple[int, Floats]]:
    file = _open(os.fsencode(path), _Init(True, None))
    if not file:
        raise LoadFailed(f"{path}: not a GGUF file")
    try:
        found = []
        for number in range(_count(file)):
            match = re.fullmatch(rb"direction\.(\d{1,4})", _name(file, number))
            if match is None or _type(file, number) != _F32:
                raise LoadFailed(f"{path}: not a control vector: its tensors must be direction.LAYER, of type F32")
            start, size = _data(file) + _offset(file, number), _size(file, number)
            direction = np.fromfile(path, np.float32, size // 4, offset=start)
            if direction.nbytes != size:
                raise LoadFailed(f"{path}: truncated")
            found.append((int(match[1]), direction))
        return found
    finally:
        _free(file)


def steer(context: Any, model: Any, options: EngineOptions, path: str) -> None:
    """Apply the options' control vectors to this context. Raises LoadFailed."""
    if not options.control_vectors:
        return
    layers, width = C.llama_model_n_layer(model), C.llama_model_n_embd(model)
    total = directions(options.control_vectors, width, layers)
    first, last = options.control_vector_layers or (1, layers)
    if last > layers:
        raise LoadFailed(f"{path}: --control-vector-layers {first}-{last}: the model has {layers} layers")
    numbers = total.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if C.llama_set_adapter_cvec(context, numbers, total.size, width, first, last):
        raise LoadFailed(f"{path}: llama.cpp refused the control vectors")
