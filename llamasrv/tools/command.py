"""Runs one program and reads its output, with limits on time and size.

The program leads a session of its own. When it ends, times out or is cancelled, or this process is killed, everything
in that session is killed. Output beyond the limit is read and dropped, so that the program does not block. Works on
greenlets and on threads: in a patched process `select` does not block the hub.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from llamasrv.spawn import Child
from llamasrv.tools.environment import environment
from llamasrv.tools.lifeline import lifeline

PIECE = 65_536
LOOK = 0.1  # polling interval in seconds for exit and cancellation
GRACE = 1.0  # seconds to wait for a killed program to disappear

Stop = Callable[[], bool]


class ChildProcess:
    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: str,
        seconds: float,
        most: int,
        stop: Stop,
        given: bytes = b"",
        env: Mapping[str, str] | None = None,
        with_errors: bool = True,
    ) -> None:
        """Start the program. `given` is its standard input, `most` the bytes of output to keep. Raises OSError."""
        self._deadline = time.monotonic() + seconds
        self._left = most
        self._stop = stop
        self.timed_out = False
        self.is_cut = False
        lifeline().prepare()
        self._output, theirs = os.pipe()
        try:
            with _file_with(given) as source:
                self._process = Child(
                    args,
                    stdin=source.fileno(),
                    stdout=theirs,
                    stderr=theirs if with_errors else None,
                    cwd=cwd,
                    env=environment(env),
                    own_session=True,
                )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(theirs)
        lifeline().hold(self._process.pid)
        os.set_blocking(self._output, False)

    def output(self, pause: float = 3600.0) -> Iterator[bytes]:
        """Yield the output as it arrives, and b"" whenever nothing comes for `pause` seconds. Ends the program. Iterate
        once, and close."""
        poll, since = select.poll(), time.monotonic()
        poll.register(self._output, select.POLLIN)
        try:
            while not self._is_over():
                had_ended = self._process.poll() is not None
                if not poll.poll(LOOK * 1000):
                    if had_ended:
                        return  # the pipe is still open in background processes it started
                    if time.monotonic() - since >= pause:
                        since = time.monotonic()
                        yield b""
                    continue
                data = os.read(self._output, PIECE)
                if not data:
                    return self._wait()
                kept = data[: self._left]
                self._left -= len(kept)
                self.is_cut = self.is_cut or len(kept) < len(data)
                if kept:
                    yield kept
                since = time.monotonic()
        finally:
            self._end()

    @property
    def exit_code(self) -> int:
        """The exit code, valid after the end; -N if killed by signal N."""
        code = self._process.poll()
        return -signal.SIGKILL if code is None else code

    def _is_over(self) -> bool:
        self.timed_out = time.monotonic() >= self._deadline
        return self.timed_out or self._stop()

    def _wait(self) -> None:
        """Wait for the program after it closed its output."""
        while self._process.poll() is None and not self._is_over():
            with contextlib.suppress(TimeoutError):
                self._process.wait(LOOK)

    def _end(self) -> None:
        self._process.kill_group()
        with contextlib.suppress(TimeoutError):
            self._process.wait(GRACE)
        lifeline().release(self._process.pid)
        os.close(self._output)


def _file_with(data: bytes) -> IO[bytes]:
    """Standard input as a file rather than a pipe: a program that does not read it cannot block the writer."""
    if not data:
        return open(os.devnull, "rb")
    file = tempfile.TemporaryFile()
    file.write(data)
    file.seek(0)
    return file
