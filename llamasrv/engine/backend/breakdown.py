"""The memory a context and its model take on each device, as the library reports it.

The report is a std::map by buffer type, from a C++ function that the library has for llama-server. It is read by its
memory layout, so it is available only if the library was built with GNU's C++ library.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.library import C, function
from llamasrv.engine.base.use import HOST, DeviceUse

_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
_NUM_DEVICES, _DEVICE = "_Z21llama_model_n_devicesPK11llama_model", "_Z22llama_model_get_devicePK11llama_modeli"
_WORD_BYTES = 260  # per token, for its text in the library and in this server


class _Map(ctypes.Structure):
    """std::map of GNU's C++ library: its comparator, the header node, the number of nodes."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("order", "colour", "root", "first", "last", "count")]


class _Node(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("colour", "parent", "left", "right", "buffer", "weights", "context", "compute")
    ]


def can_measure() -> bool:
    """Whether the library reports memory use."""
    names = (_BREAKDOWN, _NUM_DEVICES, _DEVICE)
    return sys.platform.startswith("linux") and all(hasattr(C._lib, name) for name in names)


def devices_of(model: Any) -> list[int]:
    """The devices that the model's layers may be on."""
    count = function(_NUM_DEVICES, ctypes.c_int32, ctypes.c_void_p)
    device = function(_DEVICE, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    return [device(model, number) for number in range(count(model))]


def breakdown(context: Any) -> dict[str, DeviceUse]:
    """Memory of a context and its model, by device."""
    report = function(_BREAKDOWN, _Map, ctypes.c_void_p)
    uses: dict[str, DeviceUse] = {HOST: DeviceUse()}
    nodes = [report(context).root]
    while nodes:
        address = nodes.pop()
        if address:
            node = _Node.from_address(address)
            nodes += [node.left, node.right]
            name = rpc.device_of_buffer(node.buffer) or HOST
            uses[name] = uses.get(name, DeviceUse()) + DeviceUse(node.weights, node.context, node.compute)
    return uses


def ours(vocab_size: int, max_outputs: int) -> int:
    """Host memory that the library does not count: texts of the vocabulary, and output rows."""
    return vocab_size * (_WORD_BYTES + 4 * max_outputs)


def host_bytes(contexts: list[Any], vocab_size: int, max_outputs: int) -> int | None:
    """Host memory of a model and its open contexts; None if the library does not report it."""
    if not can_measure():
        return None
    uses = [breakdown(context)[HOST] for context in contexts]
    weights = max((use.weights for use in uses), default=0)  # all contexts share them
    return weights + sum(use.context + use.compute for use in uses) + ours(vocab_size, max_outputs)
