"""Runs each call of a file tool in a child process.

A read may block and a search may take forever: in a child they block no other request, and a timeout ends them.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import orjson

from llamasrv.tools.command import ChildProcess, Stop
from llamasrv.tools.tool import Invocation, reply_json

SECONDS = 20.0  # time limit of a call
MOST_REPLY = 48 * 2**20  # bytes: the largest file as base64, plus some
PACKAGES = str(Path(__file__).resolve().parents[2])


def run(invocation: Invocation, stop: Stop, seconds: float = SECONDS) -> bytes:
    """Run the tool and return its reply as JSON."""
    ask = {
        "tool": invocation.tool.name,
        "params": invocation.params,
        "cwd": invocation.cwd,
        "base64": invocation.as_base64,
        "runtime": "" if invocation.runtime is None else str(invocation.runtime),
        "seconds": math.ceil(seconds) + 1,  # of CPU time: our own limit comes first, and says so
    }
    try:
        child = ChildProcess(
            [sys.executable, "-m", "llamasrv.tools.child"],
            cwd="/",
            seconds=seconds,
            most=MOST_REPLY,
            stop=stop,
            given=orjson.dumps(ask),
            env={"PYTHONPATH": PACKAGES},
            with_errors=False,
        )
    except OSError as error:
        return reply_json(error=f"cannot start the tool: {error.strerror or error}")
    reply = b"".join(child.output())
    if child.timed_out:
        return reply_json(error=f"{invocation.tool.name} took more than {seconds:g} s")
    if child.exit_code or child.is_cut or not reply:
        return reply_json(error=f"{invocation.tool.name} failed with exit code {child.exit_code}")
    return reply
