"""Tests over the collection of templates beside the checkout, where there is one."""

from __future__ import annotations

import os

import pytest
from vectors import COLLECTION


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`template_file` runs over a third of the collection, in the soak over all of it; without it, the test is
    skipped."""
    if "template_file" in metafunc.fixturenames:
        files = sorted(COLLECTION.glob("*.jinja")) if COLLECTION.is_dir() else []
        if not os.environ.get("WHOLE_COLLECTION"):
            files = files[::3]
        metafunc.parametrize("template_file", files, ids=lambda path: path.stem)
