"""LoRA adapters of a loaded model, through llama.cpp.

The library has one set of adapters per context, so the set is chosen before each computation. The model frees adapters
loaded here.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from llamasrv.engine.backend.library import C, reason
from llamasrv.engine.base.interface import Adapter, DecodeFailed, LoadFailed


def load_adapters(model: Any, adapters: tuple[Adapter, ...]) -> list[Any]:
    """The library's handles, in order. Raises LoadFailed with the file and the reason."""
    handles = []
    for adapter in adapters:
        handle = C.llama_adapter_lora_init(model, os.fsencode(adapter.path))
        if not handle:
            raise LoadFailed(f"{adapter.path}: not a LoRA adapter for this model ({reason()})")
        if C.llama_adapter_get_alora_n_invocation_tokens(handle):
            raise LoadFailed(f"{adapter.path}: adapters with invocation tokens (aLoRA) are not supported")
        handles.append(handle)
    return handles


def use_adapters(context: Any, handles: list[Any], adapters: tuple[tuple[int, float], ...]) -> None:
    """Apply these adapters, with their scales, to the context. Raises DecodeFailed."""
    n = len(adapters)
    assert all(0 <= number < len(handles) for number, _ in adapters)
    chosen = (C.llama_adapter_lora_p_ctypes * n)(*[handles[number] for number, _ in adapters]) if n else None
    scales = (ctypes.c_float * n)(*[scale for _, scale in adapters]) if n else None
    if C.llama_set_adapters_lora(context, chosen, n, scales):
        raise DecodeFailed("llama.cpp refused this combination of adapters")
