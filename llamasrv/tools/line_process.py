"""A child program that speaks in lines over standard input and output.

Each line goes to a callback as it arrives; standard error goes to the log, and its tail is kept. The program leads a
session of its own, and everything in that session ends with it. Works on greenlets and on threads: in a patched process
`threading` and `select` do not block the hub.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from llamasrv.spawn import Child
from llamasrv.tools.lifeline import lifeline

log = logging.getLogger("llamasrv")

ERROR_TAIL_BYTES = 1000  # bytes of standard error to keep
PIECE = 65_536
MOST_PIECES = 16  # max pieces of standard error to read after the end
LOOK = 0.1  # polling interval in seconds of a writer, to notice the program's end
GRACE = 0.5  # seconds to exit after its input is closed, before it is killed


class OutputLimits(NamedTuple):
    """What a program may write before it is ended. Lines that no one waits for pass a token bucket."""

    longest_line: int = 8 * 2**20  # bytes
    unsolicited_burst: int = 8 * 2**20  # bytes
    unsolicited_rate: int = 65_536  # bytes per second


OUTPUT_LIMITS = OutputLimits()


class LineProcess:
    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        on_line: Callable[[bytes], bool],
        on_end: Callable[[], None],
        limits: OutputLimits = OUTPUT_LIMITS,
    ) -> None:
        """Start the program. `on_line` gets each line and returns whether it was expected; `on_end` is called once at
        the end, both on a thread of their own. Raises OSError."""
        self._on_line, self._on_end, self._limits = on_line, on_end, limits
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self.is_alive = True
        self._error_tail = b""
        self._unsolicited, self._counted_at = 0.0, time.monotonic()
        lifeline().prepare()
        theirs, ours = _pipes()
        self._stdin, self._stdout, self._stderr, self._wake, self._waker = ours
        try:
            self._process = Child(
                args, stdin=theirs[0], stdout=theirs[1], stderr=theirs[2], cwd=cwd, env=env, own_session=True
            )
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        lifeline().hold(self._process.pid)
        threading.Thread(target=self._pump, daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def last_error_line(self) -> str:
        """The last line written to standard error, or ""."""
        lines = self._error_tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def send(self, line: bytes, deadline: float) -> None:
        """Write one line (newline excluded). Raises OSError if the program is gone, TimeoutError if it does not
        read."""
        if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            self._write(line + b"\n", deadline)
        finally:
            self._writing.release()

    def _write(self, data: bytes, deadline: float) -> None:
        poll, rest = select.poll(), memoryview(data)
        poll.register(self._stdin, select.POLLOUT)
        while rest:
            if not self.is_alive:
                raise BrokenPipeError
            if time.monotonic() > deadline:
                if len(rest) < len(data):
                    self.close()  # half a line is written: nothing can follow it
                raise TimeoutError
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                poll.poll(LOOK * 1000)

    def close(self) -> None:
        """End the program soon: close its input, then kill it after GRACE."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b".")

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def _pump(self) -> None:
        try:
            self._read()
        finally:
            self.is_alive = False
            self._end()
            self._on_end()
            self._ended.set()

    def _read(self) -> None:
        """Read until the output ends, or `close` is called."""
        buffer = bytearray()
        poll = select.poll()
        for fd in (self._stdout, self._stderr, self._wake):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    return
                try:
                    data = os.read(fd, PIECE)
                except BlockingIOError:
                    continue
                if fd == self._stdout:
                    if not data or not self._take(buffer, data):
                        return
                elif data:
                    self._log_errors(data)
                    if self._floods(len(data)):
                        return
                else:
                    poll.unregister(fd)

    def _take(self, buffer: bytearray, data: bytes) -> bool:
        """Deliver complete lines. Returns False if a line is too long or the program floods us."""
        last = data.rfind(b"\n")
        if last < 0:
            buffer += data
            return len(buffer) <= self._limits.longest_line
        lines = (bytes(buffer) + data[:last]).split(b"\n")
        buffer[:] = data[last + 1 :]
        unsolicited = 0
        for line in lines:
            if not line.strip() or not self._on_line(line):
                unsolicited += len(line) + 1
        return not self._floods(unsolicited)

    def _floods(self, unsolicited: int) -> bool:
        """Whether the program has exceeded its budget of unsolicited output; reading it takes CPU time from all
        requests."""
        now = time.monotonic()
        refilled = (now - self._counted_at) * self._limits.unsolicited_rate
        self._unsolicited = max(0.0, self._unsolicited - refilled) + unsolicited
        self._counted_at = now
        if self._unsolicited <= self._limits.unsolicited_burst:
            return False
        log.warning("killing process %d: it floods the server with unsolicited output", self._process.pid)
        return True

    def _log_errors(self, data: bytes) -> None:
        self._error_tail = (self._error_tail + data)[-ERROR_TAIL_BYTES:]
        log.debug("process %d: %s", self._process.pid, data.decode("utf-8", "replace").rstrip())

    def _end(self) -> None:
        with self._writing:
            os.close(self._stdin)
        with contextlib.suppress(TimeoutError):
            self._process.wait(GRACE)
        self._process.kill_group()
        with contextlib.suppress(TimeoutError):
            self._process.wait(GRACE)
        lifeline().release(self._process.pid)
        with contextlib.suppress(BlockingIOError):  # read its last words on standard error
            for _ in range(MOST_PIECES):
                if not (data := os.read(self._stderr, PIECE)):
                    break
                self._log_errors(data)
        for fd in (self._stdout, self._stderr, self._wake):
            os.close(fd)
        waker, self._waker = self._waker, -1
        os.close(waker)


def _pipes() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the program's ends of three pipes, our non-blocking ends of them plus a pipe to wake the reader)."""
    made: list[int] = []
    try:
        for _ in range(4):
            made += os.pipe()
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    ours = (made[1], made[2], made[4], made[6], made[7])
    for fd in ours:
        os.set_blocking(fd, False)
    return (made[0], made[3], made[5]), ours
