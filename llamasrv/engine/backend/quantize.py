"""Quantises a file through llama.cpp: slow and on all cores; models/quantize.py runs it in a process of its own."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable

from llamasrv.engine.backend.library import C, forget_errors, reason
from llamasrv.engine.interface import LoadFailed

_STEP = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")  # how the library begins the line of each tensor

Report = Callable[[int, int], None]


class _Listener(logging.Handler):
    """Sees each tensor in the library's log."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.DEBUG)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        match = _STEP.search(record.getMessage())
        if match is not None:
            self._report(int(match[1]), int(match[2]))


def quantize(source: str, target: str, file_type: int, *, threads: int, again: bool, report: Report) -> None:
    """Write `source` as `target`, in the type of that number; `again`: also quantise what is quantised already.
    `report` is called with the number of each tensor and how many there are. Raises LoadFailed."""
    params = C.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = file_type, threads, again
    log, listener = logging.getLogger("llamasrv.llama"), _Listener(report)
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    forget_errors()
    try:
        failed = C.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    finally:
        log.removeHandler(listener)
    if failed:
        raise LoadFailed(f"{source}: cannot be quantised ({reason()})")
