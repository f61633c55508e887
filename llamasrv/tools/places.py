"""Where file tools work: on this machine, or through a runtime in a container or on another machine.

Both implementations raise ToolError, worded for a model.
"""

from __future__ import annotations

import os
import stat
import subprocess
from typing import Protocol

from llamasrv.tools import listing
from llamasrv.tools.listing import SEARCH_LIMITS, Listing, SearchLimits, ToolError
from llamasrv.tools.runtime import Runtime, read_runtime

MOST_READ = 64 * 2**20  # max bytes of a file to read
MOST_LISTED = 8 * 2**20  # max bytes of a directory listing
SECONDS = 15.0  # timeout of one remote command


class Place(Protocol):
    limits: SearchLimits

    def resolve(self, path: str) -> str: ...
    def read(self, path: str, most: int = MOST_READ) -> bytes: ...
    def write(self, path: str, content: bytes) -> None: ...
    def is_file(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    def entries(self, base: str, *, files: bool, folders: bool, depth: int = 0) -> Listing: ...
    def system(self) -> tuple[str, str]: ...


def place_of(cwd: str, runtime: str, limits: SearchLimits = SEARCH_LIMITS) -> Place:
    return RemotePlace(read_runtime(runtime), cwd, limits) if runtime else LocalPlace(cwd, limits)


def _check(path: str) -> None:
    if "\0" in path:
        raise ToolError("a path cannot contain NUL")


def too_large(size: int, most: int) -> ToolError:
    return ToolError(f"file too large ({size} bytes, max {most}).")


class LocalPlace:
    def __init__(self, cwd: str, limits: SearchLimits = SEARCH_LIMITS) -> None:
        self.limits = limits
        self._cwd = os.path.expanduser(cwd)

    def resolve(self, path: str) -> str:
        _check(path)
        return os.path.normpath(os.path.join(self._cwd, os.path.expanduser(path)))

    def read(self, path: str, most: int = MOST_READ) -> bytes:
        full = self.resolve(path)
        try:
            found = os.stat(full)
        except OSError:
            raise ToolError(f"cannot stat file: {path}") from None
        if not stat.S_ISREG(found.st_mode):
            raise ToolError(f"not a regular file: {path}")
        if found.st_size > most:
            raise too_large(found.st_size, most)
        try:
            with open(full, "rb") as file:
                return file.read(most + 1)[:most]
        except OSError:
            raise ToolError(f"failed to open file: {path}") from None

    def write(self, path: str, content: bytes) -> None:
        full = self.resolve(path)
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as file:
                file.write(content)
        except OSError as error:
            raise ToolError(f"failed to write file: {path} ({error.strerror})") from None

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def entries(self, base: str, *, files: bool, folders: bool, depth: int = 0) -> Listing:
        return listing.entries_below(base, self.limits, files=files, folders=folders, depth=depth)

    def system(self) -> tuple[str, str]:
        """(operating system, current folder)."""
        return " ".join(os.uname()), self._cwd


class RemotePlace:
    def __init__(self, runtime: Runtime, cwd: str, limits: SearchLimits = SEARCH_LIMITS) -> None:
        self.limits = limits
        self._runtime = runtime
        self._cwd = cwd

    def resolve(self, path: str) -> str:
        _check(path)
        return path if path.startswith("/") or not self._cwd else f"{self._cwd.rstrip('/')}/{path}"

    def read(self, path: str, most: int = MOST_READ) -> bytes:
        full = self.resolve(path)
        size = self._run('[ -f "$1" ] && wc -c < "$1"', full)
        if size is None or not size.strip().isdigit():
            raise ToolError(f"cannot stat file: {path}")
        if int(size) > most:
            raise too_large(int(size), most)
        content = self._run('head -c "$2" < "$1"', full, str(most))
        if content is None:
            raise ToolError(f"failed to open file: {path}")
        return content

    def write(self, path: str, content: bytes) -> None:
        if self._run('mkdir -p "$(dirname "$1")" && cat > "$1"', self.resolve(path), given=content) is None:
            raise ToolError(f"failed to write file: {path}")

    def is_file(self, path: str) -> bool:
        return self._run('[ -f "$1" ]', path) is not None

    def is_folder(self, path: str) -> bool:
        return self._run('[ -d "$1" ]', path) is not None

    def entries(self, base: str, *, files: bool, folders: bool, depth: int = 0) -> Listing:
        if not self.is_folder(base):
            raise ToolError(f"path does not exist or is not a directory: {base}")
        if files and not folders:
            known = self._run('cd "$1" && ' + " ".join([*listing.GIT, *listing.GIT_LIST]), base)
            if known is not None:
                return listing.bounded(listing.listed_by_git(known, depth), self.limits.entries)
        found = [*self._found(base, "d", depth)] if folders else []
        found += [*self._found(base, "f", depth)] if files else []
        return listing.bounded(found, self.limits.entries)

    def _found(self, base: str, kind: str, depth: int) -> list[listing.PathEntry]:
        junk = " -o ".join(f"-name {name}" for name in sorted(listing.NOT_ENTERED))
        bound = f" -maxdepth {depth}" if depth else ""
        shown = "-print -o -type d -print" if kind == "d" else "-o -type f -print"
        below = f"find . -mindepth 1{bound} \\( -type d \\( {junk} \\) \\) -prune {shown}"
        out = self._run(f'cd "$1" && {below} | head -c {MOST_LISTED}', base)
        lines = sorted(os.fsdecode(out or b"").splitlines())
        return [listing.PathEntry(line.removeprefix("./"), kind == "d") for line in lines]

    def system(self) -> tuple[str, str]:
        """(operating system, current folder)."""
        system = self._run("uname -a")
        cwd = os.fsencode(self._cwd) if self._cwd else self._run("pwd")
        return _line(system), _line(cwd)

    def _run(self, script: str, *args: str, given: bytes | None = None) -> bytes | None:
        """The output of a script; None if it fails."""
        command = self._runtime.command(["sh", "-c", script, "_", *args])
        try:
            done = subprocess.run(
                command,
                input=given or b"",
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                check=False,
            )
        except OSError as error:
            raise ToolError(f"{command[0]} cannot be started: {error.strerror or error}") from None
        except subprocess.TimeoutExpired:
            raise ToolError(f"{self._runtime} did not respond within {SECONDS:g} s") from None
        return None if done.returncode else done.stdout


def _line(output: bytes | None) -> str:
    return "unknown" if output is None else os.fsdecode(output).strip()
