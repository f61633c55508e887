"""What is shown while a model loads."""

from __future__ import annotations

import io
import logging

from rich.console import Console

from llamasrv.startup import progress
from llamasrv.startup.progress import LoadingDisplay


def test_on_a_terminal_it_is_a_bar_that_is_gone_afterwards():
    stream = io.StringIO()
    with LoadingDisplay("some", console=Console(file=stream, force_terminal=True, width=80)) as display:
        display.update(0.25)
        assert "loading some" in stream.getvalue() and "25%" in stream.getvalue()
        display.update(1.0)
        assert "warming up some" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[2K")


def test_without_a_terminal_it_is_a_line_every_second(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, "llamasrv")
    monkeypatch.setattr(logging.getLogger("llamasrv"), "propagate", True)
    with LoadingDisplay("some", console=Console(file=io.StringIO())) as display:
        for tenth in range(25):
            now[0] = tenth / 10
            display.update(tenth / 24)
    assert [record.getMessage() for record in caplog.records] == ["loading some: 41 %", "loading some: 83 %"]
