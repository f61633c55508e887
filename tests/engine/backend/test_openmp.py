"""Settings of OpenMP, each in a process of its own, since they are read once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = "import os; from llamasrv.engine.backend import {}; print(os.environ.get('GOMP_SPINCOUNT'))"


def told(before: str = "openmp", **env: str) -> str:
    code = SHOW.format(
        "openmp; openmp.alone = True; from llamasrv.engine.backend import library" if before == "alone" else "library"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **env}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_server_sets_the_spin_count():
    """With 10,000 rounds threads fell asleep inside a step: one stream of a 0.5B model was 15 % slower."""
    assert int(told()) >= 100_000


def test_operator_settings_win():
    assert told(GOMP_SPINCOUNT="7") == "7"


@pytest.mark.parametrize("env, spin", [({}, "None"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_without_a_server_the_library_default_stays(env, spin):
    assert told("alone", **env) == spin
