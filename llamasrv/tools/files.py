"""read_file, write_file and get_info. Paths are relative to the client's working directory; `~` is the home directory.
"""

from __future__ import annotations

import base64
import os
import stat
from typing import Any

MOST_TEXT = 16 * 1024  # bytes of a file that are read at once
MOST_WHOLE = 32 * 2**20  # bytes of a file that is read as base64
MOST_READ = 64 * 2**20  # bytes of a file that is looked into at all


class Refused(Exception):
    """What the tool cannot do, in words for a model."""


def resolve(path: str, cwd: str) -> str:
    """The absolute path. Raises Refused."""
    if "\0" in path or "\0" in cwd:
        raise Refused("a path cannot contain NUL")
    return os.path.normpath(os.path.join(os.path.expanduser(cwd), os.path.expanduser(path)))


def shown(path: str) -> str:
    """A path as text, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "replace")


def read(path: str, cwd: str, most: int = MOST_READ) -> bytes:
    """The content of a regular file. Raises Refused."""
    full = resolve(path, cwd)
    try:
        found = os.stat(full)
    except OSError:
        raise Refused(f"cannot stat file: {path}") from None
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"not a regular file: {path}")
    if found.st_size > most:
        raise Refused(f"file too large ({found.st_size} bytes, max {most}).")
    try:
        with open(full, "rb") as file:
            return file.read(most + 1)[:most]
    except OSError:
        raise Refused(f"failed to open file: {path}") from None


def write(path: str, cwd: str, content: bytes) -> None:
    """Folders above the file are made. Raises Refused."""
    full = resolve(path, cwd)
    try:
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(content)
    except OSError as error:
        raise Refused(f"failed to write file: {path} ({error.strerror})") from None


def read_file(params: dict[str, Any], cwd: str) -> dict[str, Any]:
    path, first, last = params["path"], params.get("start_line", 1), params.get("end_line", -1)
    content = read(path, cwd)
    if len(content) > MOST_TEXT and last == -1:
        raise Refused(
            f"file too large ({len(content)} bytes, max {MOST_TEXT}). Use start_line/end_line to read a portion."
        )
    lines = content.decode("utf-8", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    wanted = lines[max(0, first - 1) : None if last == -1 else max(0, last)]
    out, size = [], 0
    for number, line in enumerate(wanted, max(1, first)):
        text = f"{number}\u2192{line}\n" if params.get("append_loc") else f"{line}\n"
        size += len(text.encode())
        if size > MOST_TEXT:
            out.append("[output truncated]")
            break
        out.append(text)
    return {"plain_text_response": "".join(out)}


def read_whole(params: dict[str, Any], cwd: str) -> dict[str, Any]:
    """The same for clients that want the bytes."""
    content = read(params["path"], cwd, MOST_WHOLE)
    return {"base64": base64.b64encode(content).decode(), "size_bytes": len(content)}


def write_file(params: dict[str, Any], cwd: str) -> dict[str, Any]:
    content = params["content"].encode()
    write(params["path"], cwd, content)
    return {"result": "file written successfully", "path": params["path"], "bytes": len(content)}


def get_info(params: dict[str, Any], cwd: str) -> dict[str, Any]:
    system = os.uname()
    return {
        "os": f"{system.sysname} {system.nodename} {system.release} {system.version} {system.machine}",
        "cwd": shown(cwd),
    }
