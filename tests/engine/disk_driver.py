"""An engine with a folder for prefixes, driven by hand."""

import os
import threading

import pytest
from engine_driver import Driver, end_of, no_leaks
from recording_backend import RecordingBackend

from llamasrv.engine.kv import state as state_file

SYSTEM = "a system prompt of some length " * 8
MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Skips waiting for data that only a power cut could lose."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class Served(Driver):
    """An engine with a disk, and a clock that makes computing expensive."""

    def __init__(self, folder, backend=None, **options):
        settings = {"parallel": 4, "disk_bytes": MEGABYTE, "disk_folder": folder, "digest": "m"} | options
        super().__init__(backend or RecordingBackend(), **settings)
        self.core.scheduler.cost.prompt_seconds = lambda count: count * 0.01

    def ask(self, prompt, **settings):
        """Number of reused tokens. Waits for the disk as the engine's own loop does."""
        stream = self.submit(prompt, **settings)
        while self.engine.num_open:
            self.now += 0.01
            self.engine.host.turn()
        return end_of(stream.take()).num_reused

    def written(self, number):
        while self.core.metrics.prefixes_written < number:
            self.engine.take_mail(1)

    def end(self):
        no_leaks(self)
        self.engine.host.close()


def slow_disk(monkeypatch):
    """Files are read only once the returned event is set."""
    gate, read = threading.Event(), state_file.read_state
    monkeypatch.setattr(state_file, "read_state", lambda *args: (gate.wait(10), read(*args))[1])
    return gate
