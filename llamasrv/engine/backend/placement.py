"""Loads weights onto this machine's devices, other machines, or the CPU.

Converts the operator's options, also those for reading the file and scaling positions, to llama.cpp's parameters.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.library import C, drop_errors, out_of_memory, reason
from llamasrv.engine.base.interface import LoadFailed, NoMemory, Progress
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.placement_rules import NO_DEVICE, refusal

LOAD_MODES = {
    "auto": C.LLAMA_LOAD_MODE_AUTO,
    "none": C.LLAMA_LOAD_MODE_NONE,
    "mmap": C.LLAMA_LOAD_MODE_MMAP,
    "mlock": C.LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": C.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "dio": C.LLAMA_LOAD_MODE_DIRECT_IO,
}
LAZY_MODES = {"auto": C.LLAMA_LAZY_MODE_AUTO, "on": C.LLAMA_LAZY_MODE_ON, "off": C.LLAMA_LAZY_MODE_OFF}
SPLIT_MODES = {
    "none": C.LLAMA_SPLIT_MODE_NONE,
    "layer": C.LLAMA_SPLIT_MODE_LAYER,
    "row": C.LLAMA_SPLIT_MODE_ROW,
    "tensor": C.LLAMA_SPLIT_MODE_TENSOR,
}
NUMA = {
    "distribute": C.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": C.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": C.GGML_NUMA_STRATEGY_NUMACTL,
}
ROPE_SCALINGS = {
    "none": C.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": C.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": C.LLAMA_ROPE_SCALING_TYPE_YARN,
}
_POSITIONS = (
    "rope_freq_base",
    "rope_freq_scale",
    "yarn_orig_ctx",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_slow",
    "yarn_beta_fast",
)


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override: the buffer type of tensors whose name matches the pattern."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def load_model(path: str, options: EngineOptions, progress: Progress, *, weights: bool = True) -> Any:
    """The library's model. Without `weights` it takes no memory and can only be measured. Raises LoadFailed."""
    spread_over_nodes(options.numa)
    params, alive = model_params(options, path)
    params.no_alloc = not weights
    params.progress_callback = callback = C.llama_progress_callback(lambda share, _: progress(share))
    drop_errors()
    model = C.llama_model_load_from_file(os.fsencode(path), params)
    del callback, alive
    if not model:
        raise failed(f"{path}: cannot be loaded ({reason()})")
    return model


def failed(message: str) -> LoadFailed:
    """A LoadFailed, or NoMemory if the library's last errors on this thread report a failed allocation."""
    return NoMemory(message, rpc.refused()) if out_of_memory() else LoadFailed(message)


def on_gpu(options: EngineOptions) -> bool:
    """Whether any layer is computed outside this machine's CPU."""
    offloads = options.gpu_layers != 0 and options.devices != (NO_DEVICE,)
    return offloads and bool(options.rpc or rpc.local_devices())


def model_params(options: EngineOptions, path: str) -> tuple[Any, list[Any]]:
    """The library's parameters for loading `path`, and objects that must be kept alive with them. Raises LoadFailed."""
    params, alive = C.llama_model_default_params(), []
    params.n_gpu_layers = -1 if options.gpu_layers is None else options.gpu_layers
    params.load_mode, params.lazy_mode = LOAD_MODES[options.load_mode], LAZY_MODES[options.lazy_mode]
    params.load_mtp = options.mtp
    params.use_extra_bufts, params.check_tensors = options.repack, options.check_tensors
    params.split_mode, params.main_gpu = SPLIT_MODES[options.split_mode], options.main_gpu
    types, named = rpc.buffer_types(), rpc.named_devices()
    line = refusal(options, named, None, types)
    devices = None if line else _devices(options, named, path)
    if devices is not None:
        alive.append(devices)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
    spread = len(rpc.local_devices()) if devices is None else len(devices) - 1
    if line := line or refusal(options, named, spread, types):
        raise LoadFailed(f"{path}: {line}")
    if options.tensor_split:
        most = C.llama_max_devices()
        shares = (ctypes.c_float * most)(*options.tensor_split[:most])
        alive.append(shares)
        params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
    if options.override_kv:
        values = _metadata(options.override_kv, path)
        alive.append(values)
        params.kv_overrides = ctypes.cast(values, ctypes.POINTER(C.llama_model_kv_override))
    if options.override_tensor:
        overrides = _overrides(options.override_tensor, types)
        alive.append(overrides)
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return params, alive


def open_context(model: Any, params: Any, what: str) -> Any:
    """The library's handle. Raises LoadFailed with `what` cannot be created, and why."""
    drop_errors()
    context = C.llama_init_from_model(model, params)
    if not context:
        raise failed(f"{what} ({reason()})")
    return context


def closed(context: Any) -> Any:
    """Frees a context, if there is one. Returns None, which takes its place."""
    if context:
        C.llama_free(context)
    return None


def place_context(params: Any, options: EngineOptions) -> None:
    params.no_perf = True
    params.offload_kqv, params.op_offload = options.kv_offload, options.op_offload
    if options.rope_scaling is not None:
        params.rope_scaling_type = ROPE_SCALINGS[options.rope_scaling]
    for name in _POSITIONS:
        value = getattr(options, name)
        if value is not None:
            setattr(params, name, value)


def _devices(options: EngineOptions, there: dict[str, int], path: str) -> Any:
    """A NULL-terminated array of devices; None: the library chooses."""
    if options.rpc:
        return rpc.devices(options.rpc, path)
    if not options.devices:
        return None
    names = () if options.devices == (NO_DEVICE,) else options.devices
    return (ctypes.c_void_p * (len(names) + 1))(*(there[name] for name in names), None)


def _overrides(texts: tuple[str, ...], types: dict[str, int]) -> Any:
    """Overrides as an array that ends with an entry without pattern."""
    pairs = [text.rpartition("=") for text in texts]
    found = [_Override(pattern.encode(), types[name]) for pattern, _, name in pairs]
    return (_Override * (len(found) + 1))(*found, _Override())


_INT, _FLOAT, _BOOL, _TEXT = range(4)  # llama_model_kv_override_type
_MOST_BYTES = 127  # max length of a key, and of a string value


def _metadata(texts: tuple[str, ...], path: str) -> Any:
    """Overrides as an array that ends with an entry without key. Raises LoadFailed."""
    found = (C.llama_model_kv_override * (len(texts) + 1))()
    for one, text in zip(found, texts):
        key, equals, typed = text.partition("=")
        kind, colon, value = typed.partition(":")
        if not (key and equals and colon and len(key.encode()) <= _MOST_BYTES):
            raise LoadFailed(f"{path}: --override-kv {text!r} must be KEY=TYPE:VALUE")
        try:
            _set_value(one, kind, value)
        except (KeyError, ValueError):
            raise LoadFailed(
                f"{path}: --override-kv {text!r}: {value!r} is not a value of type {kind!r}; the types "
                "are int, float, bool and str"
            ) from None
        one.key = key.encode()
    return found


def _set_value(one: Any, kind: str, value: str) -> None:
    if kind == "int":
        number = int(value)
        if not -(2**63) <= number < 2**63:
            raise ValueError
        one.tag, one.value.val_i64 = _INT, number
    elif kind == "float":
        one.tag, one.value.val_f64 = _FLOAT, float(value)
    elif kind == "bool":
        one.tag, one.value.val_bool = _BOOL, {"true": True, "false": False}[value]
    elif kind == "str" and len(value.encode()) <= _MOST_BYTES:
        one.tag, one.value.val_str = _TEXT, value.encode()
    else:
        raise ValueError


_numa: list[str] = []


def spread_over_nodes(strategy: str | None) -> None:
    """Set, once per process, how threads and memory are spread over NUMA nodes."""
    if strategy is not None and not _numa:
        _numa.append(strategy)
        C.llama_numa_init(NUMA[strategy])
