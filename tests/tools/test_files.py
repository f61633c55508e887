"""read_file, write_file, get_info: what they do with paths, lines and sizes."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from llamasrv.tools.child import answer


def use(tool, cwd="/", as_base64=False, **params):
    return answer({"tool": tool, "params": params, "cwd": str(cwd), "base64": as_base64, "runtime": ""})


def text(tool, cwd, **params):
    return use(tool, cwd, **params)["plain_text_response"]


@pytest.fixture
def four(tmp_path):
    (tmp_path / "f.txt").write_text("one\ntwo\nthree\nfour")
    return tmp_path


def test_a_file_is_read_relative_to_the_folder(four):
    assert text("read_file", four, path="f.txt") == "one\ntwo\nthree\nfour\n"
    assert text("read_file", "/", path=str(four / "f.txt")) == "one\ntwo\nthree\nfour\n"
    assert text("read_file", four / "sub", path="../f.txt", end_line=1) == "one\n"


def test_a_range_of_lines_is_numbered(four):
    assert text("read_file", four, path="f.txt", start_line=2, end_line=3) == "two\nthree\n"
    assert text("read_file", four, path="f.txt", start_line=4, append_loc=True) == "4\u2192four\n"
    assert text("read_file", four, path="f.txt", start_line=9) == ""
    assert text("read_file", four, path="f.txt", start_line=-3, end_line=1) == "one\n"


def test_a_tilde_is_the_home_folder(four, monkeypatch):
    monkeypatch.setenv("HOME", str(four))
    assert text("read_file", "/", path="~/f.txt").startswith("one")
    assert text("read_file", "~", path="f.txt").startswith("one")


def test_a_large_file_is_read_in_parts(tmp_path):
    (tmp_path / "big").write_text("x" * 99 + "\n" * 1 + ("y" * 99 + "\n") * 300)
    assert "file too large (30100 bytes, max 16384). Use start_line" in use("read_file", tmp_path, path="big")["error"]
    part = text("read_file", tmp_path, path="big", end_line=250)
    assert part.endswith("\n[output truncated]") and len(part) <= 16_384 + 20


def test_undecodable_bytes_are_replaced(tmp_path):
    (tmp_path / "b").write_bytes(b"a\xffb\r\nc")
    assert text("read_file", tmp_path, path="b") == "a\ufffdb\r\nc\n"


def test_the_bytes_of_a_file_are_base64(tmp_path):
    (tmp_path / "b").write_bytes(b"\0\xff" * 20_000)
    reply = use("read_file", tmp_path, path="b", as_base64=True)
    assert base64.b64decode(reply["base64"]) == b"\0\xff" * 20_000 and reply["size_bytes"] == 40_000


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would block forever
    for path in ("pipe", ".", "/dev/zero"):
        assert "not a regular file" in use("read_file", tmp_path, path=path)["error"]
    assert use("read_file", tmp_path, path="none")["error"] == "cannot stat file: none"
    assert "NUL" in use("read_file", tmp_path, path="a\0b")["error"]


def test_a_file_is_written_with_its_folders(tmp_path):
    reply = use("write_file", tmp_path, path="a/b/c.txt", content="h\u00e9\r\n")
    assert reply == {"result": "file written successfully", "path": "a/b/c.txt", "bytes": 5}
    assert (tmp_path / "a/b/c.txt").read_bytes() == "h\u00e9\r\n".encode()
    use("write_file", tmp_path, path="a/b/c.txt", content="")
    assert (tmp_path / "a/b/c.txt").read_bytes() == b""


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "failed to write file: file/below" in use("write_file", tmp_path, path="file/below", content="x")["error"]
    assert "failed to write file" in use("write_file", tmp_path, path=".", content="x")["error"]


def test_get_info_names_the_system_and_the_folder(tmp_path):
    reply = use("get_info", tmp_path)
    assert reply["cwd"] == str(tmp_path) and reply["os"].startswith(os.uname().sysname)


def test_an_orphaned_tool_ends_at_its_cpu_limit(tmp_path):
    """Only the server's timeout ended a search for `(a+)+$`, so it ran forever when the server was killed."""
    (tmp_path / "f").write_text("a" * 60 + "!")
    ask = {
        "tool": "grep_search",
        "params": {"path": "f", "pattern": "(a+)+$"},
        "cwd": str(tmp_path),
        "base64": False,
        "runtime": "",
        "seconds": 1,
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "llamasrv.tools.child"], input=json.dumps(ask).encode(), timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
