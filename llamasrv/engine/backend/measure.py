"""What a model takes of each device's memory: asked of the library, which lays everything out without taking it.

The library tells it as a C++ map by type of buffer, in a function that it keeps for llama-server. Where it is built
with another C++ library than GNU's, nothing is told, and who asked estimates.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from typing import Any

from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.context import LlamaBackend
from llamasrv.engine.backend.library import C
from llamasrv.engine.options import EngineOptions
from llamasrv.engine.use import HOST, Measured, Use

_LIBRARY = C._lib
_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
_NUM_DEVICES, _DEVICE = "_Z21llama_model_n_devicesPK11llama_model", "_Z22llama_model_get_devicePK11llama_modeli"
_WORD_BYTES = 260  # of each token: the library's words and this server's


class _Map(ctypes.Structure):
    """std::map of GNU's C++ library: what orders it, the node before the first, how many there are."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("order", "colour", "root", "first", "last", "count")]


class _Node(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("colour", "parent", "left", "right", "buffer", "weights", "context", "compute")
    ]


def can_measure() -> bool:
    """Whether the library tells it."""
    names = (_BREAKDOWN, _NUM_DEVICES, _DEVICE)
    return sys.platform.startswith("linux") and all(hasattr(_LIBRARY, name) for name in names)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_LIBRARY, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


def _devices(model: Any) -> list[int]:
    count = _function(_NUM_DEVICES, ctypes.c_int32, ctypes.c_void_p)
    device = _function(_DEVICE, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    return [device(model, number) for number in range(count(model))]


def breakdown(context: Any) -> dict[str, Use]:
    """What a context and its model take, by device."""
    function = _function(_BREAKDOWN, _Map, ctypes.c_void_p)
    uses: dict[str, Use] = {HOST: Use()}
    nodes = [function(context).root]
    while nodes:
        address = nodes.pop()
        if address:
            node = _Node.from_address(address)
            nodes += [node.left, node.right]
            name = rpc.device_of_buffer(node.buffer) or HOST
            uses[name] = uses.get(name, Use()) + Use(node.weights, node.context, node.compute)
    return uses


def measure(path: str, options: EngineOptions) -> Measured:
    """What the model would take with these options, and what is free. Raises LoadFailed."""
    # What neither changes the layout nor may touch this thread is left out; an adapter would be read whole.
    bare = dataclasses.replace(
        options, adapters=(), control_vectors=(), mmproj=None, draft_model=None, cpu_range=(), prio=0, load_mode="none"
    )
    if options.draft_model is None:
        return _measured(path, bare)
    draft = dataclasses.replace(bare, gpu_layers=options.draft_gpu_layers, override_kv=(), override_tensor=())
    first, beside = _measured(path, bare), _measured(str(options.draft_model), draft)
    for name, use in beside.uses.items():
        first.uses[name] = first.uses.get(name, Use()) + use
    return first


def _measured(path: str, bare: EngineOptions) -> Measured:
    backend = LlamaBackend(path, bare, lambda share: True, weights=False)
    try:
        uses: dict[str, Use] = {HOST: Use(0, 0, backend.vocab.size * _WORD_BYTES)}
        for number, context in enumerate(backend.contexts):
            for name, use in breakdown(context).items():
                # All contexts are of one model, whose weights are there once.
                uses[name] = uses.get(name, Use()) + (use if not number else dataclasses.replace(use, weights=0))
        uses[HOST] += Use(0, 0, backend.max_outputs * backend.vocab.size * 4)
        return Measured(uses, rpc.memory_of(_devices(backend.model)), backend.context)
    finally:
        backend.close()
