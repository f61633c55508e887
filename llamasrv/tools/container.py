"""The container that tools run in, started by the server and ended with it.

Its only process is a shell that waits for input. When the server closes that input, or dies, the shell ends and the
container is removed.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
import time

from llamasrv.tools.environment import environment
from llamasrv.tools.line_process import LineProcess
from llamasrv.tools.runtime import Image, Runtime

log = logging.getLogger("llamasrv")

START_SECONDS = 30.0  # includes pulling the image
LOOK = 0.05


class ContainerError(Exception):
    """The container could not be started; the message says why."""


class Container:
    def __init__(self, image: Image, start_seconds: float = START_SECONDS) -> None:
        self._image = image
        self._start_seconds = start_seconds
        self._starting = threading.Lock()
        self._process: LineProcess | None = None
        self._runtime: Runtime | None = None
        self._closed = False

    def start(self) -> None:
        """Start in the background. A failure is logged, and the first tool call tries again."""

        def start() -> None:
            try:
                self.runtime()
            except ContainerError as error:
                log.warning("tools cannot run: %s", error)

        threading.Thread(target=start, daemon=True).start()

    def runtime(self) -> Runtime:
        """The running container, or a new one. Raises ContainerError."""
        with self._starting:
            if self._runtime is None or self._process is None or not self._process.is_alive:
                self._runtime = self._start()
            return self._runtime

    def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.close()

    def wait(self, seconds: float) -> None:
        """Wait for the container to end."""
        if self._process is not None:
            self._process.wait(seconds)

    def _start(self) -> Runtime:
        if self._closed:
            raise ContainerError("the server is shutting down")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "id")
            args = [self._image.engine, "run", "--rm", "-i", "--cidfile", file, self._image.name, "sh"]
            try:
                process = LineProcess(args, cwd=None, env=environment(), on_line=_ignore, on_end=_nothing)
            except OSError as error:
                raise ContainerError(f"{self._image.engine} cannot be started: {error.strerror or error}") from None
            self._process = process
            deadline = time.monotonic() + self._start_seconds
            while process.is_alive and not self._closed and time.monotonic() < deadline:
                id = _content(file)
                if re.fullmatch(r"[0-9a-f]{12,64}", id):
                    log.info("tools run in the %s container %s", self._image.engine, id[:12])
                    return Runtime(self._image.engine, id)
                time.sleep(LOOK)
        process.close()
        process.wait(1.0)
        said = process.last_error_line[:200]
        raise ContainerError("the container cannot be started" + (f": {said}" if said else ""))


def _content(file: str) -> str:
    try:
        with open(file, encoding="ascii") as found:
            return found.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _ignore(line: bytes) -> bool:
    return False


def _nothing() -> None:
    pass
