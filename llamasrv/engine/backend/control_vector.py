"""Control vectors: one direction per layer, added to the layer's output.

They apply to all sequences of a context. The files have a tensor `direction.N` for layer N, counted from 1.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np

from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.library import C
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import Adapter, EngineOptions


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
    with opened(Path(path)) as file:
        if file is None:
            raise LoadFailed(f"{path}: not a GGUF file")
        found = []
        for name in file.tensors():
            match = re.fullmatch(r"direction\.(\d{1,4})", name, re.ASCII)
            if match is None:
                raise LoadFailed(f"{path}: not a control vector: its tensors must be direction.LAYER")
            direction = file.numbers(name)
            if direction is None:
                raise LoadFailed(f"{path}: truncated, or its directions are not floats")
            found.append((int(match[1]), direction))
        return found


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
