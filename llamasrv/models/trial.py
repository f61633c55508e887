"""The first load of a file that was never loaded here, in a process of its own.

    python -m llamasrv.models.trial FILE      prints a reason and exits 1, or exits 0

A file that is whole and says plausible things may still make the library abort, and the server with all of its models
would end. What has passed is remembered by digest, in a file where there is a place for one. Any trouble in keeping
that file costs another trial, no more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from llamasrv.engine.engine import EngineOptions
from llamasrv.engine.interface import LoadFailed
from llamasrv.models.details import Details

CELLS = 256  # of the context that is tried: the file matters, not the options
MOST_REMEMBERED = 10_000
_GONE = "loading it crashed the trial process ({})"


class Trials:
    """Which files have passed. `store` None: remembered by this process alone."""

    def __init__(
        self, store: Path | None = None, *, version: str = "", run: Callable[[Path, float], None] | None = None
    ) -> None:
        """`version` of the library: another one judges anew."""
        self._store = store
        self._version = version
        self._run = run or try_file
        self._passed: set[str] | None = None

    def check(self, details: Details, timeout: float) -> None:
        """Raises LoadFailed when the file cannot be loaded."""
        if details.path is None:
            return
        mark = f"{details.digest} {self._version}"
        if mark in self._known():
            return
        self._run(details.path, timeout)
        self._known().add(mark)
        self._remember(mark)

    def _known(self) -> set[str]:
        if self._passed is None:
            self._passed = set()
            if self._store is not None:
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    self._passed.update(self._store.read_text("ascii").splitlines()[-MOST_REMEMBERED:])
        return self._passed

    def _remember(self, mark: str) -> None:
        if self._store is None:
            return
        with contextlib.suppress(OSError):
            self._store.parent.mkdir(parents=True, exist_ok=True)
            with open(self._store, "a", encoding="ascii") as file:  # one short write: whole, or not there
                file.write(f"{mark}\n")


def try_file(path: Path, timeout: float) -> None:
    """Load the file in another process and compute one token with it. Raises LoadFailed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "llamasrv.models.trial", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"it was not loaded within {timeout:.0f} s") from None
    except OSError as error:
        raise LoadFailed(f"the trial process cannot be started: {error.strerror}") from None
    if done.returncode == 0:
        return
    if done.returncode < 0:
        raise LoadFailed(_GONE.format(signal.Signals(-done.returncode).name))
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    raise LoadFailed(lines[-1] if lines else _GONE.format(f"exit code {done.returncode}"))


def main(path: str) -> int:
    from llamasrv.engine.backend.context import open_model

    options = EngineOptions(context_cells=CELLS, parallel=1, batch_size=CELLS, ubatch_size=CELLS, gpu_layers=0)
    try:
        open_model(path, options, lambda share: True).close()
    except LoadFailed as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    # A core file of the whole model would help nobody.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # without the library's own clean-up
