"""How long OpenMP's threads spin before they sleep. Import it before the library, which reads the setting once.

Too short a spin lets threads fall asleep at barriers inside a step, and waking them costs more than the wait; too long
a one keeps a core from the HTTP side after it.
"""

from __future__ import annotations

import os

from llamasrv.engine.backend.cores import gnu_openmp

SPIN = "200000"
"""Rounds, some 0.6 ms. With 10,000 a 0.5B model lost 15 % of its speed for one stream at two threads."""


def tune() -> None:
    """Settings for a server, whose HTTP side needs the cores between two steps. Variables that the operator has set
    stay."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN)
    if gnu_openmp():
        # Once two contexts have computed in a process there are more OpenMP threads than cores, at work or not, and
        # GNU's would not spin at all: a step of 67 ms takes 80. This makes it a few µs; others would spin for ever.
        os.environ.setdefault("OMP_WAIT_POLICY", "active")


def poll(level: int | None) -> None:
    """How long threads spin: 0 not at all, 50 the default, 100 twice as long. Variables that the operator has set
    stay."""
    if level is not None:
        os.environ.setdefault("GOMP_SPINCOUNT", str(int(SPIN) * level // 50))


alone = False
"""Set before the library is loaded: nothing but the library computes in this process, so it keeps its own defaults."""
