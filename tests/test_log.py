"""Log lines: one for each event, with fields, and nothing in them that could forge another."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from llamasrv import log


@pytest.fixture(autouse=True)
def restored():
    """Loggers as they were, after each test."""
    names = ("llamasrv", "llamasrv.request", "llamasrv.llama", "gunicorn.error")
    kept = [(logging.getLogger(n), logging.getLogger(n).level, logging.getLogger(n).handlers[:]) for n in names]
    propagated = [logging.getLogger(n).propagate for n in names]
    yield
    for (logger, level, handlers), propagate in zip(kept, propagated):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


@pytest.fixture
def lines(capsys):
    """Configures logging; what is written from then on, line by line."""

    def configure(**options):
        log.configure(**options)
        return lambda: capsys.readouterr().err.split("\n")[:-1]

    return configure


def test_a_line_has_time_level_message_and_fields(lines):
    read = lines()
    logging.getLogger("llamasrv.request").info(
        "request", extra={"fields": {"id": "r1", "seconds": 0.12345, "why": "a b"}}
    )
    assert read()[0][8:] == ' info    request id=r1 seconds=0.123 why="a b"'


def test_a_json_line_has_the_same(lines):
    read = lines(form="json")
    logging.getLogger("llamasrv.request").info("request %s", 1, extra={"fields": {"id": "r1", "seconds": 0.5}})
    entry = json.loads(read()[0])
    assert entry.pop("time").endswith("Z")
    assert entry == {"level": "info", "logger": "llamasrv.request", "message": "request 1", "id": "r1", "seconds": 0.5}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("forged", ["a\nINFO forged", "a\r\nx", "\x1b[2J", "\x00", "\u2028x", "\x9b31m"])
def test_control_characters_are_escaped(lines, form, forged):
    read = lines(form=form)
    logging.getLogger("llamasrv").info("message %s", forged, extra={"fields": {"field": forged}})
    (line,) = read()
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or ord(c) in (0x2028, 0x2029) for c in line)


def test_under_systemd_a_line_has_its_priority(lines):
    formatter = log.TextFormatter(journal=True)
    record = logging.LogRecord("llamasrv", logging.WARNING, "", 0, "careful", None, None)
    assert formatter.format(record) == "<4>careful"


def test_a_traceback_keeps_its_lines_and_is_escaped(lines):
    read = lines()
    try:
        raise ValueError("bad \x1b[2J")
    except ValueError:
        logging.getLogger("llamasrv").exception("it failed")
    written = read()
    assert "it failed" in written[0] and len(written) > 2
    assert written[-1] == "  ValueError: bad \\x1b[2J"


def test_levels_hold(lines):
    read = lines(level="warning", requests=False)
    logging.getLogger("llamasrv").info("quiet")
    logging.getLogger("llamasrv.request").info("quiet")
    logging.getLogger("llamasrv.llama").debug("quiet")
    logging.getLogger("llamasrv").warning("loud")
    assert [line.split()[-1] for line in read()] == ["loud"]


def test_llama_cpp_can_be_heard(lines):
    read = lines(llama=True)
    logging.getLogger("llamasrv.llama").debug("load: special tokens")
    assert "special tokens" in read()[0]


def test_an_end_that_was_explained_is_not_reported_again(lines):
    read = lines()
    logger = logging.getLogger("gunicorn.error")
    logger.error("Worker (pid:%s) exited with code %s.", 1, 78)
    logger.error("Shutting down: %s", "Master")
    logger.error("Reason: %s", "x")
    logger.error("something else")
    assert [line.rpartition("  ")[2].strip() for line in read()] == ["something else"]


def test_configuring_twice_does_not_double_lines(lines):
    lines()
    read = lines()
    logging.getLogger("llamasrv").info("once")
    assert len(read()) == 1


def test_every_handler_has_a_lock(lines):
    """Python 3.13 enters it without a look whether there is one."""
    for handler in logging.getLogger("llamasrv").handlers:
        with handler.lock:
            pass
    with log.StandardError().lock:
        pass


def test_a_line_goes_to_standard_error_as_it_is_at_that_time(lines, monkeypatch):
    """Lines were written into a progress bar, which replaces `sys.stderr` while it is drawn."""
    read = lines()
    instead = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", instead)
        logging.getLogger("llamasrv").info("above the bar")
    assert instead.getvalue().endswith("above the bar\n") and read() == []


def test_lines_of_debug_requests_are_shown_at_debug_alone(lines):
    read = lines()
    logging.getLogger("llamasrv.request").debug("a poll")
    assert read() == []
    read = lines(level="debug")
    logging.getLogger("llamasrv.request").debug("a poll")
    assert len(read()) == 1
