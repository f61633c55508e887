"""file_glob_search and grep_search."""

from __future__ import annotations

import re
import time
from typing import Any

from llamasrv.tools.files import lines_of, shown
from llamasrv.tools.listing import ToolError, matches
from llamasrv.tools.places import Place

MOST_FOUND = 100
MOST_CONTEXT = 100  # lines before and after
LONGEST_LINE = 2000  # max characters to show per line
KINDS = {"file": (True, False), "dir": (False, True), "all": (True, True)}  # files, folders
CUT = "[results truncated: time budget or too many entries]\n"


def file_glob_search(params: dict[str, Any], place: Place) -> dict[str, Any]:
    kind, limit = params.get("type", "file"), params.get("limit", MOST_FOUND)
    if kind not in KINDS:
        raise ToolError(f'invalid type: {kind} (expected "file", "dir" or "all")')
    if limit < 1:
        raise ToolError(f"invalid limit: {limit} (expected 1 or more)")
    base = place.resolve(params["path"])
    of_files, of_folders = KINDS[kind]
    below = place.entries(base, files=of_files, folders=of_folders, depth=max(0, params.get("max_depth", 0)))
    found = [entry for entry in below.entries if _is_wanted(entry.path, params)]
    taken = found[: min(limit, MOST_FOUND)]
    text = "".join(f"{shown(entry.path)}{'/' if entry.is_folder else ''}\n" for entry in taken)
    text += f"\n---\nTotal matches: {len(found)}\n"
    if len(found) > len(taken):
        text += f"[{len(taken)} of {len(found)} matches shown. Refine the glob pattern to narrow the search.]\n"
    return {
        "plain_text_response": text + ("" if below.is_whole else CUT),
        "entries": [{"path": shown(entry.path), "type": "dir" if entry.is_folder else "file"} for entry in taken],
        "base": shown(base),
    }


def grep_search(params: dict[str, Any], place: Place) -> dict[str, Any]:
    path, requested = params["path"], params["pattern"]
    try:
        flags = re.IGNORECASE if params.get("ignore_case") else 0
        pattern = re.compile(re.escape(requested) if params.get("literal") else requested, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(f"invalid regex: {error}") from None
    base, deadline = place.resolve(path), time.monotonic() + place.limits.seconds
    is_whole = True
    if place.is_file(base):
        places = [(base, path)]
    elif place.is_folder(base):
        below = place.entries(base, files=True, folders=False)
        is_whole = below.is_whole
        wanted_paths = [entry.path for entry in below.entries if _is_wanted(entry.path, params)]
        places = [(f"{base.rstrip('/')}/{name}", name) for name in wanted_paths]
    else:
        raise ToolError(f"path does not exist: {path}")
    grep = Grep(pattern, params, place)
    for full, name in places:
        if grep.is_full or not (is_whole := is_whole and time.monotonic() < deadline):
            break
        grep.search(full, shown(name))
    return {"plain_text_response": grep.report() + ("" if is_whole else CUT)}


def _is_wanted(path: str, params: dict[str, Any]) -> bool:
    exclude = params.get("exclude", "")
    return matches(params.get("include", "**"), path) and not (exclude and matches(exclude, path))


class Grep:
    """Collects matches until a limit is reached."""

    def __init__(self, pattern: re.Pattern[str], params: dict[str, Any], place: Place) -> None:
        self._place = place
        self._pattern = pattern
        self._around = min(max(0, params.get("context_lines", 0)), MOST_CONTEXT)
        self._numbers = bool(params.get("return_line_numbers")) or self._around > 0
        self._out: list[str] = []
        self._size = 0
        self._found = 0

    @property
    def is_full(self) -> bool:
        return self._found >= MOST_FOUND or self._size >= self._place.limits.output

    def search(self, path: str, name: str) -> None:
        """Search one file; skips files that are too large, unreadable, or binary."""
        try:
            content = self._place.read(path, self._place.limits.file_bytes)
        except ToolError:
            return
        if b"\0" in content[:8192]:
            return
        lines = lines_of(content)
        for at, line in enumerate(lines):
            if self.is_full:
                return
            if self._pattern.search(line):
                self._show(lines, at, name)

    def _show(self, lines: list[str], at: int, name: str) -> None:
        for n in range(max(0, at - self._around), min(len(lines), at + self._around + 1)):
            sign = ":" if n == at else "-"
            text = f"{name}{sign}" + (f"{n + 1}{sign}" if self._numbers else "") + lines[n][:LONGEST_LINE] + "\n"
            self._out.append(text)
            self._size += len(text)
        if self._around:
            self._out.append("--\n")
        self._found += 1

    def report(self) -> str:
        more = "[limit reached. Narrow the path, the pattern or include to see more.]\n" if self.is_full else ""
        return "".join(self._out) + f"\n---\nTotal matches: {self._found}\n{more}"
