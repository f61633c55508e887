"""Ties child programs to this process: a reaper process next to it (reaper.py) kills what is left of them.

A killed process cannot clean up, and Linux's parent-death signal reaches only direct children. The reaper knows the
process group of each program, and notices the end of this process when its standard input closes.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from functools import cache
from pathlib import Path

from llamasrv.spawn import Child, reap
from llamasrv.tools.environment import environment

log = logging.getLogger("llamasrv")

REAPER = Path(__file__).with_name("reaper.py")


class Lifeline:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._reaper: Child | None = None
        self._pipe = -1

    def prepare(self) -> None:
        """Start the reaper. Call before starting a program, so that it can be registered at once."""
        with self._lock:
            if self._reaper is None:
                self._try_to_start()

    def hold(self, group: int) -> None:
        """Register the process group of a program that was just started."""
        with self._lock:
            self._groups.add(group)
            self._tell(b"+%d\n" % group)

    def release(self, group: int) -> None:
        """Unregister a process group that has ended."""
        with self._lock:
            self._groups.discard(group)
            self._tell(b"-%d\n" % group)

    def _tell(self, line: bytes) -> None:
        if self._reaper is not None:
            try:
                os.write(self._pipe, line)
                return
            except BlockingIOError:
                return  # the reaper is stopped; closing its input would make it kill what runs
            except OSError:  # the reaper was killed
                reap(self._reaper)
                os.close(self._pipe)
                self._reaper = None
        self._try_to_start()

    def _try_to_start(self) -> None:
        try:
            self._start()
        except OSError as error:
            log.warning("cannot start the reaper, so tools may outlive a killed server: %s", error.strerror or error)

    def _start(self) -> None:
        theirs, ours = os.pipe()
        try:
            self._reaper = Child(
                [sys.executable, "-I", "-S", str(REAPER)], stdin=theirs, cwd="/", env=environment(), own_session=True
            )
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
    """The one of this process. Created on first use: a lock created before the worker is monkey-patched would block the
    hub."""
    return Lifeline()
