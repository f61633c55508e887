"""Quantises a model file through llama.cpp. Slow, uses all cores; models/quantize.py runs it in its own process."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable

from llamasrv.engine.backend.library import C, drop_errors, reason
from llamasrv.engine.base.interface import LoadFailed

_STEP = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")  # start of the library's log line for each tensor

Report = Callable[[int, int], None]


class _Listener(logging.Handler):
    """Reports progress from the library's log."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.DEBUG)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        match = _STEP.search(record.getMessage())
        if match is not None:
            self._report(int(match[1]), int(match[2]))


def quantize(source: str, target: str, file_type: int, *, threads: int, again: bool, report: Report) -> None:
    """Write `source` as `target` in llama.cpp's `file_type`; `again`: requantise quantised tensors, too. `report` is
    called with the number of each tensor and their count. Raises LoadFailed."""
    params = C.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = file_type, threads, again
    log, listener = logging.getLogger("llamasrv.llama"), _Listener(report)
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    drop_errors()
    try:
        failed = C.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    finally:
        log.removeHandler(listener)
    if failed:
        raise LoadFailed(f"{source}: cannot be quantised ({reason()})")
