"""The loaded library: process-wide settings, its log, and handles for microsecond calls.

The only module that imports it, since OpenMP must be configured before.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading
from collections import deque
from typing import Any

from llamasrv.engine.backend import openmp

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort must not start a debugger
if not openmp.alone:
    openmp.tune()

import llama_cpp
import llama_cpp.llama_cpp as C

__all__ = [
    "VERSION",
    "C",
    "drop_errors",
    "function",
    "hidden_states",
    "mtmd",
    "offloads",
    "reason",
    "refused_buffer",
    "system_info",
]

VERSION: str = llama_cpp.__version__

log = logging.getLogger("llamasrv.llama")

_freely, _quickly = ctypes.CDLL(C._lib._name), ctypes.PyDLL(C._lib._name)


def function(name: str, result: Any, *arguments: Any, quick: bool = False) -> Any:
    """A function of the library, or of those beside it. Calls of a `quick` one keep the GIL: releasing it costs more
    than a call of a microsecond, and another thread may then hold it for milliseconds."""
    found = (_quickly if quick else _freely)[name]  # an object of its own: other callers may pass other types
    found.restype, found.argtypes = result, list(arguments)
    return found


class _Heard(threading.local):
    """The library's last logged errors, per thread, since models may load concurrently."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=20)


_heard = _Heard()


def _log_line(level: int, text: bytes, _: Any) -> None:
    """Levels as in ggml.h: 1 debug, 2 info, 3 warning, 4 error, 5 continues the previous line."""
    line = text.decode("utf-8", "replace").rstrip()
    if not line:
        return
    if level == 4:
        _heard.errors.append(line)
    log.debug("%s", line)


_on_log = C.llama_log_callback(_log_line)  # for as long as the process lives: the library keeps its address


def mtmd() -> Any:
    """The library for images and sounds; loaded on first use."""
    import llama_cpp.mtmd_cpp as library

    library.mtmd_log_set(_on_log, None)
    library.mtmd_helper_log_set(_on_log, None)
    return library


def hidden_states() -> Any:
    """The library's functions that read and write hidden states. Raises ImportError or AttributeError if it was built
    without them."""
    import llama_cpp.llama_cpp_ext as library

    return library


C.llama_log_set(_on_log, None)
C.llama_backend_init()


def reason() -> str:
    """The library's last error on this thread, without function names; a model's loading error takes precedence."""
    errors = _heard.errors
    if not errors:
        return "the library gave no reason"
    cause = next((line for line in errors if "error loading model" in line), errors[-1])
    return re.sub(r"^\w+: (error loading model: )?", "", cause)


def system_info() -> str:
    """The library's report on CPU features and its build."""
    return str(C.llama_print_system_info().decode("utf-8", "replace")).strip(" |\n")


def out_of_memory() -> bool:
    """Whether the library's last errors on this thread report a failed allocation."""
    return any(re.search(r"alloc|out of memory", line, re.IGNORECASE) for line in _heard.errors)


def refused_buffer() -> tuple[str, int] | None:
    """Type and bytes of the buffer whose allocation last failed on this thread, if the library logged it."""
    for line in reversed(_heard.errors):
        found = re.search(r"failed to allocate (\S+) buffer of size (\d+)$", line)
        if found is not None:
            return found[1], int(found[2])
    return None


def drop_errors() -> None:
    """Call this before a library call whose error `reason` is to report."""
    _heard.errors.clear()


def offloads() -> bool:
    """Whether the library can compute on a GPU."""
    return bool(C.llama_supports_gpu_offload())
