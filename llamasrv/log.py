"""Logging: one line per event on standard error, as text or JSON.

A record may carry `extra={"fields": {...}}`: JSON merges them in, text appends them as name=value. Control characters
are escaped, so that nothing a client sent can forge a line or move a cursor.

    llamasrv            the server itself            llamasrv.llama     messages of llama.cpp
    llamasrv.request    one line per request         gunicorn.error     the process manager
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_ESCAPES = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}
_ESCAPES |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}

# Lines of the process manager that only repeat an error we have explained already.
_ECHOES = (
    "Worker (pid:%s) exited with code %s.",
    "Worker (pid:%s) exited with code %s",
    "Shutting down: %s",
    "Reason: %s",
)


def configure(
    *,
    level: str = "info",
    form: str = "text",
    requests: bool = True,
    llama: bool = False,
    path: Path | None = None,
) -> None:
    """Set up the loggers above. A repeated call replaces the setup and reopens the file. Raises OSError if the file
    cannot be written, and then changes nothing."""
    handler: logging.Handler = StandardError() if path is None else FileHandler(path)
    journal = path is None and _is_journal(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(journal=journal))
    handler.addFilter(_is_news)
    levels = {
        "llamasrv": level.upper(),
        "llamasrv.request": ("DEBUG" if level == "debug" else "INFO") if requests else "CRITICAL",
        "llamasrv.llama": "DEBUG" if llama else "WARNING",
        "gunicorn.error": "DEBUG" if level == "debug" else "WARNING",
    }
    for name, least in levels.items():
        logger = logging.getLogger(name)
        logger.setLevel(least)
        if "." not in name or name.startswith("gunicorn"):
            for old in logger.handlers:
                if isinstance(old, FileHandler):
                    old.close()
            logger.handlers[:] = [handler]
            logger.propagate = False


def reopen() -> None:
    """Continue in a new file of the same name, after the old one was renamed."""
    for handler in logging.getLogger("llamasrv").handlers:
        if isinstance(handler, FileHandler):
            handler.close()  # the next line opens it


class StandardError(logging.Handler):
    """Writes to the current `sys.stderr`: a progress bar replaces it to print lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            self.flush()
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        sys.stderr.flush()


class FileHandler(logging.FileHandler):
    """A log file. Lines that cannot be written (disk full) are dropped: the service goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        pass


# No line shows where it was logged, so logging need not find out; see "Optimization" in its documentation.
logging._srcfile = None
logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def escape(text: str) -> str:
    """The text on one line, with every control character shown as an escape."""
    return text if text.isprintable() else text.translate(_ESCAPES)


@lru_cache(maxsize=2)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


class TextFormatter(logging.Formatter):
    """`time LEVEL message name=value ...`; under systemd its priority mark instead of time and level."""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__()
        self.journal = journal

    def format(self, record: logging.LogRecord) -> str:
        fields = [
            f"{name}={value:.3f}" if type(value) is float else f"{name}={_quoted(value)}"
            for name, value in _fields(record).items()
        ]
        line = " ".join((escape(record.getMessage()), *fields))
        if self.journal:
            head = f"<{_PRIORITY.get(record.levelno, 6)}>"
        else:
            head = f"{_clock(int(record.created))} {record.levelname.lower():<7} "
        if record.exc_info:
            # A traceback keeps its lines; each is escaped on its own.
            line += "".join("\n  " + escape(part) for part in self.formatException(record.exc_info).splitlines())
        return head + line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _quoted(value: object) -> str:
    text = str(value)
    if text.isalnum():  # most values: nothing to escape
        return text
    return json.dumps(text) if " " in text or not text else escape(text)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _is_news(record: logging.LogRecord) -> bool:
    return record.name != "gunicorn.error" or record.msg not in _ECHOES


def _is_journal(stream: TextIO) -> bool:
    """Whether the stream goes to systemd's journal, according to the variable that systemd sets."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
