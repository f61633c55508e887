"""`.ci/run` as it ends, with stand-ins for everything that it calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "run"

SHELL = "awk bash cat cp date dirname grep ls mkdir mktemp rm sed sort tail tee tr uniq wc xargs".split()

TOX = """#!/bin/sh
# The first run of each environment fails as it is told to; the second one, too, if it is told to.
name=py; [ "$1" != -e ] || name=$2
echo run >> "$name.runs"
echo "tox looks at $TOX_DISCOVER, pip at $PIP_FIND_LINKS"
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
    for name in SHELL:
        (stubs / name).symlink_to(shutil.which(name))

    def go(*pythons, seconds=0, **failing):
        for path in pythons:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text("#!/bin/sh\n")
            (tmp_path / path).chmod(0o755)
        for name, text in failing.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        environ = {"PATH": str(stubs), "PYENV_ROOT": str(tmp_path / "pyenv"), "SECONDS": str(seconds)}
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


def test_it_says_that_the_newest_python_is_missing_and_goes_on(run):
    """On 3.13 every line of the log failed, and nothing had run there."""
    code, lines = run()
    assert code == 0 and any(line.startswith("=== No Python 3.13: newest is SKIPPED") for line in lines)
    assert any(line.startswith("=== No Python 3.10: min ") for line in lines)
    assert not any(line.startswith("=== newest: ") for line in lines)


def test_it_runs_the_suite_on_the_newest_python_that_pyenv_has(run, tmp_path):
    """PATH names pyenv's Pythons, but these end at once where they are not switched on."""
    oldest, newest = "pyenv/versions/3.10.13/bin/python", "pyenv/versions/3.13.0/bin/python"
    (tmp_path / "bin/python3.13").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "bin/python3.13").chmod(0o755)
    code, lines = run(oldest, newest)
    assert code == 0 and f"tox looks at {tmp_path / oldest}:{tmp_path / newest}, pip at " in lines
    assert any(line.startswith("=== newest: ") for line in lines)
    assert not any("No Python" in line for line in lines)


def test_it_leaves_the_newest_python_out_after_50_minutes_and_says_so(run):
    """The whole run has an hour and a half."""
    code, lines = run("bin/python3.13", seconds=3001)
    assert code == 0 and any(line.startswith("=== newest: SKIPPED") for line in lines)
    passed = next(line for line in lines if line.startswith("=== all passed: "))
    assert "gateway" in passed and "newest" not in passed


def test_it_leaves_the_newest_python_out_where_the_tests_ran_on_it(run, tmp_path):
    python3 = (tmp_path / "bin/python3").read_text()
    (tmp_path / "bin/python3").write_text(f"{python3}echo Python 3.13.0\n")
    code, lines = run("bin/python3.13")
    assert code == 0 and any(line.endswith("newest would repeat them, and is left out") for line in lines)
    assert not any(line.startswith("=== newest: ") for line in lines)


def test_what_one_python_has_compiled_serves_the_others(run, tmp_path):
    """pip keeps a wheel for each version of Python: each compiled llama-cpp-python for four minutes."""
    (tmp_path / "bin/pip").write_text("#!/bin/sh\n[ $1 != cache ] || echo /kept/a/llama.whl\n")
    code, lines = run()
    looked = [line.partition(" pip at ")[2] for line in lines if " pip at " in line]
    assert code == 0 and looked == ["", *["/kept/a "] * (len(looked) - 1)] and len(looked) > 10
