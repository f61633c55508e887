"""The top level of the repository has a fixed shape: what tests and examples write belongs elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {
    ".ci", ".github", ".gitignore", ".pre-commit-config.yaml", ".ruff.toml", "CHANGES.md", "LICENSE", "README.md", "conf",
    "llamasrv", "setup.cfg", "setup.py", "templates", "tests", "tox.ini",
}  # fmt: skip


def test_the_top_level_has_its_shape():
    """A sound that an example had written was in the repository for weeks."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert {path.partition("/")[0] for path in listed.stdout.split("\0") if path} == TOP_LEVEL
