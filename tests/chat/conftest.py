"""Templates to try: a few of our own, and the collection beside the checkout where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
COLLECTION = SHARED / "chat-templates"


def collection() -> list[Path]:
    return sorted(COLLECTION.glob("*.jinja")) if COLLECTION.is_dir() else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`template_file` runs over the collection; without it, the test is skipped."""
    if "template_file" in metafunc.fixturenames:
        metafunc.parametrize("template_file", collection(), ids=lambda path: path.stem)
