"""Lists the files below a folder and matches paths against glob patterns.

In a git repository lists the files that git tracks or would add. Elsewhere skips the content of folders with generated
files (NOT_ENTERED). Does not follow links to folders.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple


class ToolError(Exception):
    """A tool failed; the message is worded for a model."""


class SearchLimits(NamedTuple):
    """Bounds of one search; at one of them the result is what was found so far."""

    seconds: float = 12.0
    entries: int = 200_000
    file_bytes: int = 16 * 2**20  # larger files are not searched
    output: int = 256 * 1024  # characters


SEARCH_LIMITS = SearchLimits()


NOT_ENTERED = frozenset((
    ".git", ".svn", ".hg", "node_modules", "__pycache__", ".venv", "venv", "dist", "build", "target", ".cache", ".idea",
    ".vscode",
))  # fmt: skip

# A repository's own configuration may name programs for git to run: switch those off.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", "core.hooksPath=/dev/null")
GIT_LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")


class PathEntry(NamedTuple):
    path: str  # relative, with slashes
    is_folder: bool


class Listing(NamedTuple):
    entries: list[PathEntry]
    is_whole: bool


def entries_below(base: str, limits: SearchLimits, *, files: bool, folders: bool, depth: int = 0) -> Listing:
    """Everything below `base`, down to `depth` levels (0: unlimited). Raises ToolError."""
    if not os.path.isdir(base):
        raise ToolError(f"path does not exist or is not a directory: {base}")
    deadline = time.monotonic() + limits.seconds
    if files and not folders:
        known = _known_to_git(base, limits.seconds)
        if known is not None:
            near = listed_by_git(known, depth)
            near = (one for one in near if os.path.isfile(os.path.join(base, one.path)))
            return bounded(near, limits.entries, deadline)
    found = (one for one in _walk(base, depth, deadline) if (folders if one.is_folder else files))
    return bounded(found, limits.entries, deadline)


def bounded(found: Iterable[PathEntry], most: int, deadline: float = math.inf) -> Listing:
    entries: list[PathEntry] = []
    for entry in found:
        if len(entries) == most or time.monotonic() > deadline:
            return Listing(entries, False)
        entries.append(entry)
    return Listing(entries, time.monotonic() <= deadline)


def listed_by_git(output: bytes, depth: int) -> Iterator[PathEntry]:
    """The files in the output of GIT_LIST, down to `depth` levels (0: unlimited)."""
    paths = sorted(set(map(os.fsdecode, output.split(b"\0"))) - {""})
    return (PathEntry(path, False) for path in paths if not depth or path.count("/") < depth)


def _known_to_git(base: str, seconds: float) -> bytes | None:
    """The output of GIT_LIST; None outside a repository, or without git."""
    try:
        done = subprocess.run(
            [*GIT, "-C", base, *GIT_LIST],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _walk(base: str, depth: int, deadline: float) -> Iterator[PathEntry]:
    waiting = [("", 1)]
    while waiting and time.monotonic() <= deadline:
        folder, level = waiting.pop()
        try:
            with os.scandir(os.path.join(base, folder)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue  # no permission
        below = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                yield PathEntry(path, True)
                if not entry.is_symlink() and entry.name.lower() not in NOT_ENTERED and level != depth:
                    below.append((path, level + 1))
            elif entry.is_file():
                yield PathEntry(path, False)
        waiting += reversed(below)


def matches(pattern: str, path: str) -> bool:
    """Whether a glob pattern matches. Without a slash it matches names at any depth; with one it matches paths,
    starting at any folder unless it begins with a slash."""
    if "/" not in pattern:
        return _glob(pattern).fullmatch(path.rpartition("/")[2]) is not None
    if pattern.startswith("/"):
        return _glob(pattern[1:]).fullmatch(path) is not None
    return _glob(pattern if pattern.startswith("**/") else f"**/{pattern}").fullmatch(path) is not None


_PART = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_MEANS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@lru_cache(maxsize=8)
def _glob(pattern: str) -> re.Pattern[str]:
    def meaning(part: str) -> str:
        if len(part) > 2 and part[0] == "[":
            return "[" + ("^" if part[1] == "!" else "") + re.escape(part[1:-1].lstrip("!")).replace(r"\-", "-") + "]"
        return _MEANS.get(part) or re.escape(part)

    try:
        return re.compile("".join(meaning(part[0]) for part in _PART.finditer(pattern)), re.DOTALL)
    except re.error:
        raise ToolError(f"invalid glob pattern: {pattern}") from None
