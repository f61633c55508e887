"""How many cores this process may use (affinity, cgroup quota), and how idle all are. Reads only /proc and /sys."""

from __future__ import annotations

import math
import os
from pathlib import Path


def available_cpus(root: Path = Path("/")) -> int:
    """Number of logical CPUs that this process may use at once."""
    return _within_quota(len(_allowed()), root)


def available_cores(root: Path = Path("/")) -> int:
    """Number of physical cores that this process may use at once."""
    return _within_quota(len({_siblings(root, cpu) for cpu in _allowed()}), root)


def idle_seconds(root: Path = Path("/")) -> float | None:
    """Seconds that all cores together have been idle since the system started; None where there is no such figure."""
    try:
        return float(words(root / "proc/uptime")[1])
    except (ValueError, IndexError):
        return None


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _within_quota(number: int, root: Path) -> int:
    for group in groups(root):
        quota = words(group / "cpu.max")
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
            number = min(number, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    return max(1, number)


def _siblings(root: Path, cpu: int) -> str:
    found = words(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return found[0] if found else str(cpu)


def groups(root: Path) -> list[Path]:
    """The process's control group (version 2) and its ancestors."""
    top = root / "sys/fs/cgroup"
    for line in lines(root / "proc/self/cgroup"):
        if line.startswith("0::"):
            path = top / line[3:].lstrip("/")
            return [path, *(parent for parent in path.parents if parent == top or top in parent.parents)]
    return []


def words(path: Path) -> list[str]:
    return " ".join(lines(path)).split()


def lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
