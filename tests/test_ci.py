"""`.ci/run` as it ends, with stand-ins for everything that it calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "run"

TOX = """#!/bin/sh
# The first run of each environment fails as it is told to; the second one, too, if it is told to.
name=py; [ "$1" != -e ] || name=$2
echo run >> "$name.runs"
[ "$name" != coverage ] || echo "TOTAL    2000    140    93%"
file="$name.$(wc -l < "$name.runs")"
[ ! -e "$file" ] || { cat "$file"; exit 1; }
echo "= 3 passed in 1.00s ="
"""


@pytest.fixture
def run(tmp_path):
    if not SCRIPT.exists():
        pytest.skip("not a checkout")
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci" / "run")
    stubs = tmp_path / "bin"
    stubs.mkdir()
    tools = dict.fromkeys(("nginx", "systemd-analyze", "redis-server", "chromium", "apt-get"), "#!/bin/sh\n")
    tools["python3"] = "#!/bin/sh\nmkdir -p .venv/bin && cp bin/pip bin/tox .venv/bin\n"
    tools["pip"] = "#!/bin/sh\n"
    tools["tox"] = TOX
    for name, text in tools.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)

    def go(**failing):
        for name, text in failing.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        environ = {"PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run([tmp_path / ".ci" / "run"], env=environ, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.splitlines()

    return go


def test_it_passes_where_nothing_fails(run):
    code, lines = run()
    assert code == 0 and lines[-1] == "= 3 passed in 1.00s ="
    assert "=== tests that needed their second run: 0" in lines


def test_it_prints_the_share_of_lines_that_tests_run(run):
    _, lines = run()
    assert any(line.startswith("=== lines of chat") and line.endswith(" 93%") for line in lines)


def test_it_names_the_tests_that_passed_only_the_second_time(run):
    """Nobody saw them: a test could need its second run for ever."""
    code, lines = run(
        py_1="FAILED tests/a.py::one - no\nERROR tests/b.py::two[x-1]\n= 2 failed in 1.00s =\n",
        min_1="FAILED tests/a.py::one - no\n",
    )
    assert code == 0
    at = lines.index("=== tests that needed their second run: 3")
    assert lines[at + 1 : at + 4] == ["tests: tests/a.py::one", "tests: tests/b.py::two[x-1]", "min: tests/a.py::one"]


def test_what_fails_twice_fails(run):
    code, lines = run(py_1="FAILED tests/a.py::one\nFAILED tests/a.py::two\n", py_2="FAILED tests/a.py::one\n")
    assert code == 1 and any(line.startswith("=== failed: tests ") for line in lines)
    at = lines.index("=== tests that needed their second run: 1")
    assert lines[at + 1] == "tests: tests/a.py::two"
