"""No pattern that meets what clients send takes longer than its text is long."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import time

import pytest

import llamasrv.protocols
import llamasrv.web

SIZE = 1 << 16  # characters; a pattern that is quadratic takes seconds for them
MOST = 0.5  # seconds of CPU
LONGEST = {"llamasrv.protocols.ollama.fields._DURATION": 64}
"""What is measured before it meets the pattern."""

PIECES = (
    " ",
    "\t",
    "\n",
    "a",
    "A",
    "_",
    "0",
    "1h",
    "9.",
    "-",
    "/",
    "//",
    "/v1",
    "/api",
    '"',
    '\\"',
    "\\",
    "[",
    "{",
    "=",
    "+",
    "a:",
    "\\u00",
    "format",
    "json ",
)


def patterns():
    for package in (llamasrv.protocols, llamasrv.web):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    # `match` and `fullmatch` begin at the start alone; everything else looks anywhere.
                    used = set(re.findall(rf"\b{name}\.(\w+)\(", inspect.getsource(module)))
                    methods = {method if method in ("match", "fullmatch") else "search" for method in used}
                    id = f"{found.name}.{name}"
                    yield pytest.param(value, sorted(methods), LONGEST.get(id, 2 * SIZE), id=id)


@pytest.mark.parametrize("pattern, methods, longest", list(patterns()))
def test_a_pattern_takes_no_longer_than_its_text_is_long(pattern, methods, longest):
    """One pattern took eight seconds for a body of four kilobytes, and held the interpreter meanwhile."""
    for piece in PIECES:
        for text in (
            piece * (SIZE // len(piece)),
            piece * (SIZE // len(piece)) + "\x00!",
            "[" + piece * 1000 + "]" + piece * 1000,
        ):
            given = text[:longest].encode() if isinstance(pattern.pattern, bytes) else text[:longest]
            for method in methods:
                began = time.thread_time()
                getattr(pattern, method)(given)
                assert time.thread_time() - began < MOST, (method, piece)
