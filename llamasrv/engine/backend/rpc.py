"""llama.cpp's RPC back end: computing layers on other machines, and serving as one of them.

Remote devices are passed to one model, not to the whole process: other models stay on this machine. The library ends
the process if it cannot reach a machine, so all are contacted before a model is loaded.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llamasrv.engine.backend.library import C, function, refused_buffer
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.use import HOST, FailedAllocation
from llamasrv.errors import Unsupported

_CPU, _GPU, _INTEGRATED = 0, 1, 2  # ggml_backend_dev_type

_P, _N, _S = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_device_count = function("ggml_backend_dev_count", _N)
_device = function("ggml_backend_dev_get", _P, _N)
_device_by_type = function("ggml_backend_dev_by_type", _P, ctypes.c_int)
_kind = function("ggml_backend_dev_type", ctypes.c_int, _P)
_name = function("ggml_backend_dev_name", _S, _P)
_description = function("ggml_backend_dev_description", _S, _P)
_memory = function("ggml_backend_dev_memory", None, _P, ctypes.POINTER(_N), ctypes.POINTER(_N))
_buffer_type = function("ggml_backend_dev_buffer_type", _P, _P)
_buffer_name = function("ggml_backend_buft_name", _S, _P)
_registry = function("ggml_backend_reg_by_name", _P, _S)
_address = function("ggml_backend_reg_get_proc_address", _P, _P, _S)
_their_count = function("ggml_backend_reg_dev_count", _N, _P)
_theirs = function("ggml_backend_reg_dev_get", _P, _P, _N)

_remote: dict[str, int] = {}  # remote devices used so far, by name; the library keeps them

_is_host = function("ggml_backend_buft_is_host", ctypes.c_bool, _P)
_device_of = function("ggml_backend_buft_get_device", _P, _P)


def memory_of(devices: list[int]) -> dict[str, tuple[int, int]]:
    """The free and total bytes of each device, by name."""
    return {_name(one).decode(): _sizes(one) for one in devices}


def device_of_buffer(kind: int) -> str | None:
    """The device of a buffer type; None: host memory."""
    device = None if _is_host(kind) else _device_of(kind)
    return _name(device).decode() if device and _kind(device) != _CPU else None


def refused() -> FailedAllocation | None:
    """The last failed allocation on this thread, if the library logged it."""
    found = refused_buffer()
    if found is None:
        return None
    name, size = found[0].partition("[")[0], found[1]  # names of remote buffers have an address in brackets
    device = {**named_devices(), **_remote}.get(name)
    return FailedAllocation(HOST, size) if device is None else FailedAllocation(name, size, _sizes(device)[0])


def _sizes(device: int) -> tuple[int, int]:
    """Free and total bytes."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _memory(device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def named_devices() -> dict[str, int]:
    """This machine's devices other than its CPU, by name."""
    there = [_device(number) for number in range(_device_count())]
    return {_name(one).decode(): one for one in there if _kind(one) != _CPU}


def buffer_types() -> dict[str, int]:
    """Buffer types for tensors, by name."""
    types = [_buffer_type(_device(number)) for number in range(_device_count())]
    return {_buffer_name(one).decode(): one for one in types}


def described() -> list[tuple[str, str, int, int]]:
    """Name, description, total and free bytes of each device other than the CPU."""
    found = []
    for name, device in named_devices().items():
        free, total = _sizes(device)
        found.append((name, _description(device).decode(), total, free))
    return found


def local_devices() -> list[int]:
    """This machine's devices, other than its CPU, that the library would use."""
    there = [_device(number) for number in range(_device_count())]
    return [one for one in there if _kind(one) == _GPU] or [one for one in there if _kind(one) == _INTEGRATED]


def serve(host: str, port: int, threads: int) -> None:
    """Compute for clients that connect, one at a time, until the process ends. Raises Unsupported."""
    if not C.llama_supports_rpc():
        raise Unsupported("llama-cpp-python was built without RPC")
    mine = local_devices() or [_device_by_type(_CPU)]
    start = ctypes.CFUNCTYPE(None, _S, _S, _N, _N, ctypes.POINTER(_P))(
        _address(_registry(b"RPC"), b"ggml_backend_rpc_start_server")
    )
    start(f"{host}:{port}".encode(), None, threads, len(mine), (_P * len(mine))(*mine))


def devices(endpoints: tuple[str, ...], path: str) -> Any:
    """A NULL-terminated array of devices: those of the `endpoints` (HOST:PORT), then this machine's. Raises LoadFailed,
    naming `path`."""
    if not C.llama_supports_rpc():
        raise LoadFailed(f"{path}: llama-cpp-python was built without RPC (CMAKE_ARGS=-DGGML_RPC=ON)")
    add = ctypes.CFUNCTYPE(_P, _S)(_address(_registry(b"RPC"), b"ggml_backend_rpc_add_server"))
    found = []
    for endpoint in endpoints:
        server = add(endpoint.encode())
        if not server:
            raise LoadFailed(f"{path}: the RPC server {endpoint} has no device")
        theirs = [_theirs(server, number) for number in range(_their_count(server))]
        _remote.update((_name(one).decode(), one) for one in theirs)
        found += theirs
    found += local_devices()
    return (ctypes.c_void_p * (len(found) + 1))(*found, None)
