"""Tests over the collection of templates beside the checkout, where there is one."""

from __future__ import annotations

import pytest
from vectors import COLLECTION


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`template_file` runs over the collection; without it, the test is skipped."""
    if "template_file" in metafunc.fixturenames:
        files = sorted(COLLECTION.glob("*.jinja")) if COLLECTION.is_dir() else []
        metafunc.parametrize("template_file", files, ids=lambda path: path.stem)
