"""The cases of llama-server's own tests that stay red, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("reasons.txt")


def read(text: str) -> dict[str, str]:
    """Test to reason. A line is `file.py::function  # reason`, or a single case of it; blank lines and comments part."""
    reasons: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, found, reason = line.partition("  # ")
        if not found or not reason.strip():
            raise ValueError(f"line {number} has no reason: {line}")
        if name in reasons:
            raise ValueError(f"line {number} repeats {name}")
        reasons[name] = reason.strip()
    return reasons


class Verdict(NamedTuple):
    unlisted: list[str]  # red, and nobody said why
    stale: list[str]  # listed, and green
    green: int
    red: int


def judge(outcomes: Mapping[str, str], reasons: Iterable[str]) -> Verdict:
    """`outcomes`: case to passed, failed, error or skipped. What did not run is neither."""
    listed = set(reasons)
    ran = {case: outcome for case, outcome in outcomes.items() if outcome != "skipped"}
    red = {case for case, outcome in ran.items() if outcome != "passed"}
    unlisted = sorted(case for case in red if not listed & {case, _function(case)})
    stale = sorted(case for case in ran.keys() - red if listed & {case, _function(case)})
    return Verdict(unlisted, stale, len(ran) - len(red), len(red))


def _function(case: str) -> str:
    return case.partition("[")[0]
