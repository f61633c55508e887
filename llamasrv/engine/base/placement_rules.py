"""Checks placement options against the available devices. Knows no library."""

from __future__ import annotations

import re
from collections.abc import Collection

from llamasrv.engine.base.options import EngineOptions

NO_DEVICE = "none"


def refusal(options: EngineOptions, named: Collection[str], num_devices: int | None, buffers: Collection[str]) -> str:
    """Why the options do not fit these devices; "" if they do. `num_devices`: how many devices the model would be
    spread over; None: not known yet."""
    for name in () if options.devices == (NO_DEVICE,) else options.devices:
        if name not in named:
            return f"unknown device {name!r}; " + (
                f"the devices are {', '.join(named)}" if named else "no GPU is found"
            )
    if num_devices is not None:
        if len(options.tensor_split) > max(1, num_devices):
            return f"--tensor-split names {len(options.tensor_split)} devices; there are {num_devices}"
        if options.main_gpu and options.main_gpu >= num_devices:
            return f"--main-gpu {options.main_gpu} does not exist; there are {num_devices} devices"
    for text in options.override_tensor:
        pattern, _, name = text.rpartition("=")
        if name not in buffers:
            return f"unknown buffer type {name!r}; the types are {', '.join(buffers)}"
        try:
            re.compile(pattern)
        except re.error as error:
            return f"--override-tensor {text!r}: {error}"
    return ""


def needs_devices(options: EngineOptions) -> bool:
    """Whether any option is set that `refusal` checks."""
    named = options.devices and options.devices != (NO_DEVICE,)
    return bool(named or options.tensor_split or options.main_gpu or options.override_tensor)
