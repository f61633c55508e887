"""Programs end with this process, however it ends: a small one beside it (reaper.py) kills what is left of them.

A process that is killed does nothing more, and Linux's own signal for orphans reaches a program but not what that has
started. The reaper knows each program's process group, and learns of the end by its input, which nobody else holds.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from llamasrv.tools.environment import environment

log = logging.getLogger("llamasrv")

REAPER = Path(__file__).with_name("reaper.py")


class Lifeline:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._reaper: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def prepare(self) -> None:
        """Before a program is started: what is known of it at once cannot be missed."""
        with self._lock:
            if self._reaper is None:
                self._try_to_start()

    def hold(self, group: int) -> None:
        """A program has been started that leads this process group."""
        with self._lock:
            self._groups.add(group)
            self._tell(b"+%d\n" % group)

    def release(self, group: int) -> None:
        """It has ended."""
        with self._lock:
            self._groups.discard(group)
            self._tell(b"-%d\n" % group)

    def _tell(self, line: bytes) -> None:
        if self._reaper is not None:
            try:
                os.write(self._pipe, line)
                return
            except BlockingIOError:
                return  # it was stopped; to close its input would end what runs
            except OSError:  # it was killed
                self._reaper.wait()
                os.close(self._pipe)
                self._reaper = None
        self._try_to_start()

    def _try_to_start(self) -> None:
        try:
            self._start()
        except OSError as error:
            log.warning("tools would outlive a killed server: %s", error.strerror or error)

    def _start(self) -> None:
        theirs, ours = os.pipe()
        try:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(REAPER)], stdin=theirs, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, cwd="/", env=environment(), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._pipe = ours
        os.write(ours, b"".join(b"+%d\n" % group for group in self._groups))


@cache
def lifeline() -> Lifeline:
    """The one of this process. Made when it is first used: a lock that is made before the worker patches its locks
    would stop the hub."""
    return Lifeline()
