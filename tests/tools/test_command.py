"""Programs with limits: their output, their time, and the processes they leave behind."""

from __future__ import annotations

import os
import time

import pytest
from clients.talk import is_running, wait_for

from llamasrv.tools.command import ChildProcess


def start(script, *, seconds=20, most=10_000, stop=lambda: False, **more):
    return ChildProcess(["sh", "-c", script], cwd="/", seconds=seconds, most=most, stop=stop, **more)


def test_it_returns_both_outputs_and_the_exit_code():
    command = start("echo out; echo err >&2; exit 3")
    assert b"".join(command.output()) == b"out\nerr\n" and command.exit_code == 3


def test_standard_error_can_be_left_out():
    assert b"".join(start("echo out; echo err >&2", with_errors=False).output()) == b"out\n"


def test_it_reads_standard_input():
    assert b"".join(start("cat", given=b"x" * 9000).output()) == b"x" * 9000
    assert b"".join(start("cat").output()) == b""


@pytest.mark.parametrize("name", [
    "LLAMASRV_API_KEY", "LLAMA_API_KEY", "HF_TOKEN", "LLAMASRV_HF_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "LLAMASRV_STORE",
    "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "NOTIFY_SOCKET", "SOMETHING",
])  # fmt: skip
def test_it_sees_only_the_allowed_environment(monkeypatch, name):
    """With a list of forbidden names, the tokens of the Hub and of telemetry leaked."""
    monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_TIME", "C")
    assert b"".join(start(f"echo $LC_TIME ${name}; env").output()).startswith(b"C\n")
    seen = b"".join(start("env", env={"MINE": "yes"}).output())
    assert b"secret" not in seen and b"MINE=yes\n" in seen and b"PATH=" in seen


def test_output_beyond_the_limit_is_dropped_and_the_program_continues():
    command = start("head -c 300000 /dev/zero; exit 4", most=100)
    assert b"".join(command.output()) == bytes(100)
    assert command.is_cut and command.exit_code == 4


def test_a_timeout_ends_it():
    command = start("echo first; sleep 60", seconds=0.2)
    began = time.monotonic()
    assert b"".join(command.output()) == b"first\n"
    assert command.timed_out and command.exit_code == -9 and time.monotonic() - began < 10


def test_cancelling_ends_it():
    requested = [True]
    command = start("echo first; sleep 60", stop=lambda: not requested)
    output = command.output()
    assert next(output) == b"first\n"
    requested.clear()
    assert list(output) == [] and not command.timed_out and command.exit_code == -9


def test_a_silent_program_yields_pauses():
    output = start("sleep 60").output(pause=0.05)
    assert next(output) == b""
    output.close()


def test_its_background_processes_end_with_it():
    command = start("sleep 60 & echo $!; exit 0")
    began = time.monotonic()
    pid = int(b"".join(command.output()))
    assert time.monotonic() - began < 10 and command.exit_code == 0
    wait_for(lambda: not is_running(pid))


def test_it_waits_for_a_program_that_closed_its_output():
    command = start("exec >&- 2>&-; sleep 0.2; exit 5")
    assert list(command.output()) == [] and command.exit_code == 5


def test_a_missing_folder_is_an_error():
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ChildProcess(["true"], cwd="/no/such/folder", seconds=1, most=1, stop=lambda: False)
    assert len(os.listdir("/proc/self/fd")) == files


def test_it_leaves_no_file_open():
    list(start("true").output())
    files = len(os.listdir("/proc/self/fd"))
    list(start("true").output())
    assert len(os.listdir("/proc/self/fd")) == files
