"""Starts programs beside a process that holds gigabytes.

A fork copies the page tables of all memory: 100 ms for 2 GB of KV on a CPU, in which no thread computes and no stream
is written, whichever client asked for the program. posix_spawn shares the memory until the program begins.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

LOOK = 0.005  # seconds between two looks whether it has ended
PIECE = 65_536
NICE = 10  # of programs that compute what clients ask for beside models: the models' threads come first
LONGEST_LINE = 65_536  # bytes
_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)  # signals that Python ignores, and its children should not
_IN_FOLDER = ("/bin/sh", "-c", 'cd -- "$0" && unset OLDPWD && exec "$@"')  # posix_spawn cannot change the folder


class Child:
    """A running program, without any descriptor of this process beyond the three that it is given."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        own_session: bool = False,
        nice: int = 0,
    ) -> None:
        """`stdin`, `stdout`, `stderr`: descriptors, the caller's to close; None: /dev/null. `own_session`: the terminal
        does not signal it, and `kill_group` ends what it started, too. `nice`: how much lower its CPU priority is than
        ours, from its start on. On gevent's hub only. Raises OSError."""
        environment = os.environ if env is None else env
        command = [_path_of(args[0], cwd, environment), *args[1:]]
        if cwd is not None:
            command = [*_IN_FOLDER, os.path.abspath(cwd), *command]
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, to, os.devnull, os.O_RDWR, 0) if fd is None else (os.POSIX_SPAWN_DUP2, fd, to)
            for to, fd in ((0, stdin), (1, stdout), (2, stderr))
        ]

        actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()]

        def start(posix_spawn: Callable[..., int]) -> int:
            return posix_spawn(
                command[0], command, environment, file_actions=actions, setsigdef=_DEFAULT, setsid=own_session
            )

        self._code: int | None = None
        self._is_watched = False
        self._looking = threading.Lock()
        self.pid = self._start(start)
        if nice:
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, self.pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)

    def _start(self, start: Callable[[Callable[..., int]], int]) -> int:
        # Not at the top: the helpers import this module, too, and have to start fast.
        from gevent import get_hub, monkey
        from gevent import os as gevent_os

        if not monkey.is_module_patched("os"):
            return start(os.posix_spawn)
        # gevent's loop reaps all children, so it has to know of this one.
        self._is_watched = True
        get_hub().loop.install_sigchld()  # first: a short program may end before it is watched
        plain = monkey.get_original("os", "posix_spawn")
        pid: int = gevent_os.fork_and_watch(self._end, fork=lambda: start(plain))
        return pid

    def _end(self, watcher: Any) -> None:
        self._code = os.waitstatus_to_exitcode(watcher.rstatus)

    def poll(self) -> int | None:
        """The exit code, -N if signal N ended it; None while it runs."""
        with self._looking:
            if self._code is None and not self._is_watched:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float = math.inf) -> int:
        """Wait for the exit code, letting greenlets run. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() >= end:
                raise TimeoutError
            time.sleep(LOOK)
        return code

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill what is left of its own session, also when it has ended itself."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)


def _path_of(program: str, cwd: str | None, env: Mapping[str, str]) -> str:
    """The file of a program that runs in that folder. Raises OSError if one of the two cannot be used."""
    if cwd is not None:
        os.stat(cwd)
        if not os.path.isdir(cwd):
            raise _error(errno.ENOTDIR, cwd)
        if not os.access(cwd, os.X_OK):
            raise _error(errno.EACCES, cwd)
    number = errno.ENOENT
    for folder in [""] if "/" in program else os.get_exec_path(env):
        path = os.path.join(cwd or "", folder, program)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            number = errno.EACCES
    raise _error(number, program)


def _inheritable() -> Iterator[int]:
    """Descriptors that a program would get: what started this process may have left some open. Python's own are not."""
    try:
        names = os.listdir("/dev/fd")
    except OSError:  # where there is no /proc
        return
    for name in names:
        with contextlib.suppress(OSError):  # the folder's own is closed by now
            if int(name) > 2 and os.get_inheritable(int(name)):
                yield int(name)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def run(
    args: Sequence[str], given: bytes, *, seconds: float, env: Mapping[str, str] | None = None, nice: int = 0
) -> tuple[int, bytes]:
    """Run a program with `given` as its input. Returns its exit code and output. Raises TimeoutError, having killed it,
    and OSError if it cannot be started."""
    # Files, not pipes: a program that does not read or write cannot block anybody.
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output:
        source.write(given)
        source.seek(0)
        child = Child(args, stdin=source.fileno(), stdout=output.fileno(), env=env, nice=nice)
        try:
            code = child.wait(seconds)
        finally:
            child.kill()
            reap(child)
        output.seek(0)
        return code, output.read()


def reap(child: Child) -> None:
    """Wait for a killed program. It ends at once unless the kernel holds it; then this gives up."""
    with contextlib.suppress(TimeoutError):
        child.wait(5.0)


def with_output(
    args: Sequence[str], *, env: Mapping[str, str] | None = None, own_session: bool = False, nice: int = 0
) -> tuple[Child, int]:
    """Start a program. Returns it and a pipe with its output, the caller's to close. Raises OSError."""
    ours, theirs = os.pipe()
    try:
        return Child(args, stdout=theirs, env=env, own_session=own_session, nice=nice), ours
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


def lines(pipe: int) -> Iterator[bytes]:
    """Complete lines from a pipe until its writers have closed it, letting greenlets run. Raises ValueError for a line
    of more than LONGEST_LINE."""
    poll, rest = select.poll(), b""
    poll.register(pipe, select.POLLIN)
    while True:
        poll.poll()
        if not (data := os.read(pipe, PIECE)):
            return
        *complete, rest = (rest + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise ValueError(f"a line of more than {LONGEST_LINE} bytes")
        yield from complete
