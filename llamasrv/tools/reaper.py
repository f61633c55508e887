"""Kills the process groups that a killed server leaves behind.

    python reaper.py

Reads lines from standard input: `+N` registers process group N, `-N` unregisters it. End of input means that the server
is gone: all registered groups are killed. Needs nothing but the interpreter.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # must outlive the server when a terminal or service signals all
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass


if __name__ == "__main__":
    main()
