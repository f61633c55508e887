"""CPU affinity and priority of a model's threads.

OpenMP's compute threads inherit both from the thread that loads the model. Knows no library.
"""

from __future__ import annotations

import os

from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import EngineOptions

_REAL_TIME = {1: 40, 2: 80, 3: 90}  # llama.cpp's


def settle(options: EngineOptions, path: str) -> None:
    """Apply the options to the calling thread and the threads it starts. Raises LoadFailed, naming `path`."""
    if options.cpu_range:
        _pin(options.cpu_range, path)
    if options.prio:
        _schedule(options.prio, path)


def _pin(cpus: tuple[int, ...], path: str) -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise LoadFailed(f"{path}: --cpu-range: this system cannot pin threads")
    there = os.sched_getaffinity(0)
    missing = sorted(set(cpus) - there)
    if missing:
        raise LoadFailed(
            f"{path}: --cpu-range: CPU {missing[0]} is not available to this process; available: "
            f"{', '.join(map(str, sorted(there)))}"
        )
    os.sched_setaffinity(0, cpus)


def _schedule(prio: int, path: str) -> None:
    if not hasattr(os, "sched_setscheduler"):
        raise LoadFailed(f"{path}: --prio: this system does not support scheduling priorities")
    policy, priority = (os.SCHED_BATCH, 0) if prio < 0 else (os.SCHED_FIFO, _REAL_TIME[prio])
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except PermissionError:
        raise LoadFailed(f"{path}: --prio {prio} is not permitted: it needs CAP_SYS_NICE") from None
