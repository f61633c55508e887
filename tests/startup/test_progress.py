"""What is shown while a model loads."""

from __future__ import annotations

import io
import sys

from rich.console import Console

from llamasrv.startup.progress import LoadingDisplay


def test_on_a_terminal_it_is_a_bar_that_is_gone_afterwards():
    stream = io.StringIO()
    with LoadingDisplay("some", console=Console(file=stream, force_terminal=True, width=80)) as display:
        display.update(0.25)
        assert "loading some" in stream.getvalue() and "25%" in stream.getvalue()
        display.update(1.0)
        assert "warming up some" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[2K")


def test_a_line_of_the_log_is_printed_whole_above_the_bar(monkeypatch):
    """It began behind the bar, on the same line."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    line = "the model is loaded " + "x" * 300
    with LoadingDisplay("some") as display:
        display.update(1.0)
        print(line, file=sys.stderr)
    assert f"\r\x1b[2K{line}\nwarming up some" in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_nothing_is_drawn():
    stream = io.StringIO()
    with LoadingDisplay("some", console=Console(file=stream)) as display:
        display.update(0.25)
    assert stream.getvalue() == ""
