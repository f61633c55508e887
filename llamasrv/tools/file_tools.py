"""The tools for files, seen from the server: each use is a process of its own.

What they read may block, and what they search for may take for ever: there it holds up nobody, and ends when its time
is up.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import orjson

from llamasrv.tools.command import Command, Stop
from llamasrv.tools.tool import Invocation, reply_json

SECONDS = 20.0
MOST_REPLY = 48 * 2**20  # bytes: the largest file that is read as base64, and a little
PACKAGES = str(Path(__file__).resolve().parents[2])


def run(invocation: Invocation, stop: Stop) -> bytes:
    """The reply, as JSON."""
    ask = {
        "tool": invocation.tool.name,
        "params": invocation.params,
        "cwd": invocation.cwd,
        "base64": invocation.as_base64,
        "runtime": "" if invocation.runtime is None else str(invocation.runtime),
        "seconds": math.ceil(SECONDS),
    }
    try:
        child = Command(
            [sys.executable, "-m", "llamasrv.tools.child"],
            cwd="/",
            seconds=SECONDS,
            most=MOST_REPLY,
            stop=stop,
            given=orjson.dumps(ask),
            env={"PYTHONPATH": PACKAGES},
            with_errors=False,
        )
    except OSError as error:
        return reply_json(error=f"it cannot be started: {error.strerror or error}")
    reply = b"".join(child.output())
    if child.timed_out:
        return reply_json(error=f"{invocation.tool.name} took more than {SECONDS:g} s")
    if child.exit_code or child.is_cut or not reply:
        return reply_json(error=f"{invocation.tool.name} failed: it ended with exit code {child.exit_code}")
    return reply
