"""Helper programs start without a fork of the whole process, and always end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from llamasrv.spawn import Child, lines, run, with_output

PYTHON = sys.executable


def test_it_returns_the_exit_code_and_the_output():
    code = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(3)"
    assert run([PYTHON, "-c", code], b"abc", seconds=60) == (3, b"ABC")


def test_input_and_output_beyond_a_pipes_room_do_not_block():
    assert run([PYTHON, "-c", "print('x' * 300_000)"], b"y" * 300_000, seconds=60) == (0, b"x" * 300_000 + b"\n")


def test_a_signal_that_ended_it_is_its_code():
    assert run([PYTHON, "-c", "import os; os.kill(os.getpid(), 9)"], b"", seconds=60)[0] == -signal.SIGKILL


def test_one_that_takes_too_long_is_killed():
    with pytest.raises(TimeoutError):
        run([PYTHON, "-c", "import time; time.sleep(600)"], b"", seconds=0.01)
    assert not subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "time.sleep.600"], capture_output=True).stdout


def test_it_may_leave_the_cores_to_others_from_its_start_on():
    read, write = os.pipe()
    child = Child([PYTHON, "-c", "import os, sys; sys.stdin.read(); sys.exit(os.nice(0))"], stdin=read, nice=7)
    os.close(read)
    os.close(write)  # now it looks
    assert child.wait(60) == min(os.nice(0) + 7, 19)
    child, pipe = with_output(["sh", "-c", "sleep 600"], nice=7)
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(os.nice(0) + 7, 19)
    child.kill()
    os.close(pipe)


def test_a_program_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        run(["/nope"], b"", seconds=1)


def test_its_environment_is_what_it_is_given():
    code = "import os; print(sorted(os.environ.keys() & {'HOME', 'ONE'}), end='')"
    assert run([PYTHON, "-c", code], b"", seconds=60, env={"ONE": "1"}) == (0, b"['ONE']")


def test_it_stops_no_thread_of_a_patched_process():
    """A fork copied the page tables of all memory with the interpreter's lock held: 100 ms for 2 GB, at a client's word.
    gevent, which reaps all children, must not take this one's exit code, whenever it is asked for."""
    code = """
from gevent import monkey; monkey.patch_all()
import os, signal, subprocess, sys, gevent
from llamasrv.spawn import run
assert run(['true'], b'', seconds=20)[0] == 0  # it ends before anything looks
def forked(): raise AssertionError('a fork')
os.register_at_fork(before=forked)
ticks = []
def tick():
    while True:
        ticks.append(1); gevent.sleep(0.001)
gevent.spawn(tick)
jobs = [gevent.spawn(run, [sys.executable, '-c', f'import sys, time; time.sleep(0.1); sys.exit({n})'], b'', seconds=60) for n in range(5)]
gevent.joinall(jobs, raise_error=True)
assert [job.value[0] for job in jobs] == [0, 1, 2, 3, 4], [job.value for job in jobs]
assert len(ticks) > 10
from llamasrv import spawn
os.dup2(0, 7, inheritable=True)
child, pipe = spawn.with_output([sys.executable, '-c', 'import os; print(os.getcwd(), len(os.listdir("/dev/fd"))); raise SystemExit(7)'], own_session=True)
assert list(spawn.lines(pipe)) == [f'{os.getcwd()} 4'.encode()]
gevent.sleep(0.1)
gevent.os._reap_children(0)
assert child.wait(60) == 7 == child.poll()
for wrong, cwd in ((['/nope'], None), (['true'], '/nope')):
    try:
        spawn.Child(wrong, cwd=cwd)
    except FileNotFoundError:
        continue
    raise AssertionError(wrong)
assert len(gevent.os._watched_children) == 0
"""
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0 and b"a fork" not in done.stderr, done.stderr.decode()


def test_poll_tells_a_running_program_from_one_that_was_killed():
    read, write = os.pipe()
    child = Child([PYTHON, "-c", "import sys; sys.stdin.read()"], stdin=read)
    os.close(read)
    assert child.poll() is None
    child.kill()
    os.close(write)
    assert child.wait(60) == -signal.SIGKILL == child.poll()
    child.kill()


def test_lines_are_complete_and_of_a_bounded_length():
    code = "import sys, time; sys.stdout.write('a\\nb'); sys.stdout.flush(); time.sleep(0.01); print('c\\nd', end='')"
    child, pipe = with_output([PYTHON, "-c", code])
    assert list(lines(pipe)) == [b"a", b"bc"] and child.wait(60) == 0
    os.close(pipe)
    child, pipe = with_output(["head", "-c", "200000", "/dev/zero"])
    with pytest.raises(ValueError, match="a line of more than"):
        list(lines(pipe))
    os.close(pipe)
    child.wait(60)


def test_what_it_left_running_ends_with_its_group():
    child, pipe = with_output(["sh", "-c", "sleep 600 & echo"], own_session=True)
    assert child.wait(60) == 0
    child.kill_group()
    assert list(lines(pipe)) == [b""]  # everybody who could write to it is gone
    os.close(pipe)
