"""Starts our own helper programs beside a process that holds gigabytes.

A fork copies the page tables of all memory: 100 ms for 2 GB of KV on a CPU, in which no thread computes and no stream
is written, whoever asked for the helper. posix_spawn shares the memory until the program begins.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

LOOK = 0.005  # seconds between two looks whether it has ended
_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)  # signals that Python ignores, and its children should not


class Child:
    """A running program. Descriptors beyond 0 to 2 are passed on only if they are inheritable."""

    def __init__(
        self, args: Sequence[str], *, stdin: int, stdout: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """`stdin`, `stdout`: descriptors, the caller's to close; None: discarded. Raises OSError."""
        null = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        out = (os.POSIX_SPAWN_DUP2, 2 if stdout is None else stdout, 1)
        actions = [null, (os.POSIX_SPAWN_DUP2, stdin, 0), out]

        def start() -> int:
            environment = os.environ if env is None else env
            return os.posix_spawn(args[0], list(args), environment, file_actions=actions, setsigdef=_DEFAULT)

        self._pid: int = _started(start)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, -N if signal N ended it; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float) -> int:
        """Wait for the exit code, letting greenlets run. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() >= end:
                raise TimeoutError
            time.sleep(LOOK)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


def _started(start: Callable[[], int]) -> int:
    # Not at the top: the helpers import this module, too, and have to start fast.
    from gevent import monkey
    from gevent import os as gevent_os

    if not monkey.is_module_patched("os"):
        return start()
    pid: int = gevent_os.fork_and_watch(fork=start)  # gevent reaps all children, so it has to know of this one
    return pid


def run(
    args: Sequence[str], given: bytes, *, seconds: float, env: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Run a program with `given` as its input. Returns its exit code and output. Raises TimeoutError, having killed it,
    and OSError if it cannot be started."""
    # Files, not pipes: a program that does not read or write cannot block anybody.
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output:
        source.write(given)
        source.seek(0)
        child = Child(args, stdin=source.fileno(), stdout=output.fileno(), env=env)
        try:
            code = child.wait(seconds)
        finally:
            child.kill()
            _reap(child)
        output.seek(0)
        return code, output.read()


def _reap(child: Child) -> None:
    """A killed program ends at once, unless the kernel holds it; then nobody waits for it."""
    with contextlib.suppress(TimeoutError):
        child.wait(5.0)
