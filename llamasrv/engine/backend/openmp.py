"""How long OpenMP's threads spin before they sleep. Call it before the library is loaded, which reads this once.

With too short a spin, threads fall asleep at barriers inside a step, and waking them costs more than waiting; with too
long a spin, they keep cores from the HTTP side after the step.
"""

from __future__ import annotations

import os

from llamasrv.engine.backend.cores import gnu_openmp

SPIN = "200000"
"""Spin rounds, about 0.6 ms. With 10,000, one stream of a 0.5B model at two threads was 15 % slower."""


def tune() -> None:
    """Set defaults for a server, whose HTTP side needs the cores between steps. An operator's variables win."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN)
    if gnu_openmp():
        # Once two contexts have computed, the process has more OpenMP threads than cores, and GNU's OpenMP then would
        # not spin at all: a step of 67 ms takes 80. "active" makes it spin for a few µs; other libraries would spin
        # for ever.
        os.environ.setdefault("OMP_WAIT_POLICY", "active")


def poll(level: int | None) -> None:
    """Set how long threads spin: 0 not at all, 50 the default, 100 twice as long. An operator's variables win."""
    if level is not None:
        os.environ.setdefault("GOMP_SPINCOUNT", str(int(SPIN) * level // 50))


alone = False
"""Set it before the library is loaded in a process without an HTTP side: the library's own defaults stay."""
