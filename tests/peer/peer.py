"""llama-server's own tests against llamasrv; README.md in this folder. Not part of the suite: `tox -e peer` runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from peer.reasons import LIST, judge, read

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(os.environ.get("PEER_SUITE", ROOT.parent / "shared" / "llama-server-suite"))

SETTINGS = {
    # What llama-server does where nothing else is said, and llamasrv only where the operator says so.
    "LLAMASRV_CORS_ORIGINS": "*",
    "LLAMASRV_CORS_CREDENTIALS": "true",
    "LLAMASRV_MODELS_MANAGE": "true",
    "LLAMASRV_CTX_PER_SEQUENCE": "share",
    # What llamasrv does where nothing else is said, and llama-server only with a flag.
    "LLAMASRV_METRICS": "false",
    # Nothing of a test outlives its server.
    "LLAMASRV_STORE": "memory",
}


def test_llama_servers_own_tests(tmp_path, pytestconfig):
    sources = os.environ.get("PEER_SOURCES")
    if not sources or not (Path(sources) / "tools" / "server" / "tests").is_dir():
        pytest.skip("PEER_SOURCES names no source of llama.cpp")
    if not (SUITE / "run.sh").is_file():
        pytest.skip(f"{SUITE} has no run.sh: PEER_SUITE names the folder that runs llama-server's tests")
    scratch = Path(os.environ.get("PEER_SCRATCH", tmp_path))
    results = tmp_path / "results.json"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LLAMASRV_")}
    environ |= SETTINGS | {
        "LLAMA_CPP_SRC": sources,
        "SUITE_SCRATCH": str(scratch),
        "SUITE_RESULTS": str(results),
        "SUITE_PRELOAD": "0",
        "SUITE_VENV": str(scratch / "venv"),
        "SHIM_TARGET": "llamasrv",
        "SHIM_BIN": _console_script(),
        "SUITE_PYTHON": sys.executable,
    }
    chosen = os.environ.get("PEER_TESTS", "").split()
    subprocess.run(["bash", str(SUITE / "run.sh"), *chosen], env=environ, check=False)
    assert results.is_file(), "the tests did not come to their end"
    outcomes = json.loads(results.read_text("utf-8"))["outcomes"]
    verdict = judge(outcomes, read(LIST.read_text("utf-8")))
    print(f"\n{verdict.green} green, {verdict.red} red")
    assert not verdict.unlisted, "red, and not listed in reasons.txt:\n" + "\n".join(verdict.unlisted)
    assert not verdict.stale, "listed in reasons.txt, and green:\n" + "\n".join(verdict.stale)


def _console_script() -> str:
    beside = Path(sys.executable).with_name("llamasrv")
    found = str(beside) if beside.is_file() else shutil.which("llamasrv")
    assert found, "llamasrv is not installed here"
    return found
