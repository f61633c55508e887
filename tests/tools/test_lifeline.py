"""What happens to child programs when their parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from clients.talk import is_running, wait_for

from llamasrv.tools.lifeline import Lifeline

LEAVES = "sleep 600 & echo $$ $!; sleep 600"


def killed(script):
    """Run a script that prints process ids and ends by SIGKILL; the ids."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, timeout=60, text=True
    )
    assert done.returncode == -signal.SIGKILL
    return [int(pid) for pid in done.stdout.split()]


@pytest.mark.parametrize(
    "script",
    [
        f"""
    import os
    from llamasrv.tools.command import ChildProcess
    output = ChildProcess(["sh", "-c", {LEAVES!r}], cwd="/", seconds=600, most=1000, stop=lambda: False).output()
    print(next(output).decode(), flush=True)
    os.kill(os.getpid(), 9)
    """,
        f"""
    import os, threading
    from llamasrv.tools.line_process import LineProcess
    heard = threading.Event()
    def hear(line):
        print(line.decode(), flush=True)
        heard.set()
    LineProcess(["sh", "-c", {LEAVES!r}], cwd="/", env={{}}, on_line=hear, on_end=print)
    heard.wait()
    os.kill(os.getpid(), 9)
    """,
    ],
)
def test_programs_and_their_children_end_with_a_killed_parent(script):
    """A search for `(a+)+$` kept a core busy forever after the server was killed."""
    pids = killed(script)
    assert len(pids) == 2
    wait_for(lambda: not any(is_running(pid) for pid in pids))


@pytest.fixture
def group():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def closed(lifeline):
    """As when the process is gone."""
    os.close(lifeline._pipe)
    assert lifeline._reaper.wait(30) == 0


def test_a_released_group_is_not_killed(group):
    """Its number may belong to another program by then."""
    lifeline = Lifeline()
    lifeline.hold(group.pid)
    lifeline.release(group.pid)
    closed(lifeline)
    assert group.poll() is None


def test_a_killed_reaper_is_replaced_and_knows_the_groups(group):
    lifeline = Lifeline()
    lifeline.hold(group.pid)
    os.kill(lifeline._reaper.pid, signal.SIGKILL)
    lifeline._reaper.wait(30)
    lifeline.hold(2**22 + 1)  # no process has that number
    closed(lifeline)
    assert group.wait(30) == -signal.SIGKILL


def test_a_reaper_ignores_signals_of_terminals_and_services(group):
    lifeline = Lifeline()
    lifeline.hold(group.pid)
    lifeline.release(group.pid)
    wait_for(
        lambda: (
            "SigIgn" in (status := open(f"/proc/{lifeline._reaper.pid}/status").read())
            and int(status.partition("SigIgn:")[2].split()[0], 16) & 1 << signal.SIGTERM - 1
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(lifeline._reaper.pid, number)
    assert lifeline._reaper.poll() is None
    closed(lifeline)
