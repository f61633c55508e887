"""The process that ends what a killed server leaves running.

    python reaper.py

Reads lines from its standard input: `+N`, there is a process group N; `-N`, it is gone. When the input ends, so has the
server, and the groups that are left are killed. Needs nothing but the interpreter.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after the server, not with the others of a terminal or service
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
