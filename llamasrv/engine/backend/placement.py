"""Loading the weights, and where they go: this machine's GPUs, other machines, the CPU."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.library import C, forget_errors, reason
from llamasrv.engine.interface import LoadFailed, Progress
from llamasrv.engine.options import EngineOptions


def load_model(path: str, options: EngineOptions, progress: Progress) -> Any:
    params = C.llama_model_default_params()
    params.n_gpu_layers = -1 if options.gpu_layers is None else options.gpu_layers
    if options.rpc:
        devices = rpc.devices(options.rpc, path)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.progress_callback = callback = C.llama_progress_callback(lambda share, _: progress(share))
    forget_errors()
    model = C.llama_model_load_from_file(os.fsencode(path), params)
    del callback
    if not model:
        raise LoadFailed(f"{path}: cannot be loaded ({reason()})")
    return model


def on_gpu(options: EngineOptions) -> bool:
    """Whether any layer is computed elsewhere than on this machine's CPU."""
    return options.gpu_layers != 0 and bool(options.rpc or rpc.local_devices())
