"""Pulls next to a running server: each in a child process, followed by any number of readers.

Downloading, hashing and writing would block this process's streams, and a crashing child harms no one. A child ends
with its pull, on a signal, or when no one reads its progress; the next pull resumes.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from llamasrv import spawn
from llamasrv.concurrency import Notice
from llamasrv.errors import InvalidRequest, LlamasrvError, QueueFull
from llamasrv.models.ollama_registry import RegistryName
from llamasrv.models.pull import PullFailed, PullProgress, Reference

log = logging.getLogger("llamasrv")

MOST = 2  # concurrent pulls
MOST_REMEMBERED = 50  # finished pulls to remember


def reference(name: str) -> str:
    """The full name of what to pull: from Ollama's registry or from the Hub. Raises PullFailed."""
    return str(RegistryName.parse(name) or Reference.parse(name))


class Pull:
    """One pull: its progress so far, with the latest state of each file."""

    def __init__(self, name: str, notice: Notice) -> None:
        self.name = name
        self.history: list[PullProgress] = [PullProgress("pulling manifest")]
        self.version = 0  # counts updates
        self.error: LlamasrvError | None = None
        self.done = False
        self._notice = notice

    def follow(self, keepalive: float | None = None) -> Iterator[PullProgress | None]:
        """Yield the progress from the start, skipping intermediate states, and None after `keepalive` seconds of
        silence. Ends with the pull; raises LlamasrvError if it failed."""
        at, version, last = 0, -1, None
        while True:
            if not self._notice.wait(partial(self._is_past, version), keepalive):
                yield None
                continue
            version, done, error = self.version, self.done, self.error
            news = self.history[at:]
            at = max(0, at + len(news) - 1)  # the last state may still change
            for progress in news:
                if progress != last:
                    yield progress
                last = progress
            if done:
                if error is not None:
                    raise error.but()
                return

    def _is_past(self, version: int) -> bool:
        return self.version != version

    def hear(self, progress: PullProgress) -> None:
        last = self.history[-1]
        if (last.status, last.file) == (progress.status, progress.file):
            self.history[-1] = progress
        else:
            self.history.append(progress)
        self.version += 1
        self._notice.tell()

    def end(self, error: LlamasrvError | None) -> None:
        self.error, self.done = error, True
        self.version += 1
        self._notice.tell()


class Pulls:
    """All pulls of a server. `on_pulled` is called after each successful pull, before its readers learn of it."""

    def __init__(
        self, folder: Path, *, notice: Notice | None = None, on_pulled: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = folder
        self.on_pulled = on_pulled
        self.notice = notice or Notice()  # signalled on any progress
        self._pulls: dict[str, Pull] = {}  # by reference, oldest first
        self._children: dict[str, spawn.Child] = {}

    def __iter__(self) -> Iterator[Pull]:
        return iter(list(self._pulls.values()))

    def start(self, name: str) -> Pull:
        """Start a pull, or join a running one. It continues until it is cancelled. Raises InvalidRequest, QueueFull."""
        try:
            key = reference(name)
        except PullFailed as error:
            raise InvalidRequest(str(error), param="model") from None
        if key in self._children:
            return self._pulls[key]
        if len(self._children) >= MOST:
            raise QueueFull(f"{MOST} pulls are already running. Try again later.")
        try:
            child, pipe = spawn.with_output(
                [sys.executable, "-m", "llamasrv", "pull", key, "--json", "--models-dir", str(self.folder)],
                env={name: value for name, value in os.environ.items() if not name.startswith("LLAMASRV_")},
                own_session=True,
                nice=spawn.NICE,  # it hashes gigabytes
            )
        except OSError as error:
            raise LlamasrvError(f"Cannot start the pull: {error.strerror}.") from None
        pull = Pull(name, self.notice)
        self._children[key] = child
        self._pulls.pop(key, None)
        self._pulls[key] = pull
        while len(self._pulls) > MOST_REMEMBERED:
            del self._pulls[next(key for key, old in self._pulls.items() if old.done)]
        threading.Thread(target=self._listen, args=(key, pull, child, pipe), daemon=True).start()
        return pull

    def cancel(self, name: str) -> bool:
        """Stop a running pull; the next one resumes. Returns False if there is none."""
        try:
            child = self._children.get(reference(name))
        except PullFailed:
            return False
        if child is None:
            return False
        child.kill(signal.SIGTERM)
        return True

    def _listen(self, key: str, pull: Pull, child: spawn.Child, pipe: int) -> None:
        error = LlamasrvError("the pull was interrupted: pull again to resume it", status=503)
        complete = False
        try:
            for line in spawn.lines(pipe):
                said = json.loads(line)
                if "error" in said:
                    error = LlamasrvError(str(said["error"]), status=int(said["status"]))
                    continue
                progress = PullProgress(**said)
                complete = progress.status == "success"
                if not complete:
                    pull.hear(progress)
        except (OSError, ValueError, TypeError):
            log.exception("cannot follow the pull of %s", pull.name)
            child.kill()
        finally:
            os.close(pipe)
        code = child.wait()
        complete = complete and code == 0
        if complete:
            try:
                self.on_pulled()
            except Exception:
                log.exception("pulled %s, but cannot serve it", pull.name)
            pull.hear(PullProgress("success"))
        log.info("pull of %s: %s", pull.name, "complete" if complete else error.message)
        del self._children[key]
        pull.end(None if complete else error)
