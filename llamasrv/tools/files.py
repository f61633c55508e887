"""read_file, write_file and get_info."""

from __future__ import annotations

import base64
import os
from typing import Any

from llamasrv.tools.listing import ToolError
from llamasrv.tools.places import Place

MOST_TEXT = 16 * 1024  # max bytes to return from a text file
MOST_WHOLE = 32 * 2**20  # max bytes of a file read as base64


def shown(path: str) -> str:
    """A path as text; undecodable bytes are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def lines_of(content: bytes) -> list[str]:
    lines = content.decode("utf-8", "replace").split("\n")
    if lines[-1] == "":  # the text ends with a newline
        lines.pop()
    return lines


def read_file(params: dict[str, Any], place: Place) -> dict[str, Any]:
    path, first, last = params["path"], params.get("start_line", 1), params.get("end_line", -1)
    content = place.read(path)
    if len(content) > MOST_TEXT and last == -1:
        raise ToolError(
            f"file too large ({len(content)} bytes, max {MOST_TEXT}). Use start_line/end_line to read a portion."
        )
    lines = lines_of(content)
    requested = lines[max(0, first - 1) : None if last == -1 else max(0, last)]
    out, size = [], 0
    for number, line in enumerate(requested, max(1, first)):
        text = f"{number}\u2192{line}\n" if params.get("append_loc") else f"{line}\n"
        size += len(text.encode())
        if size > MOST_TEXT:
            out.append("[output truncated]")
            break
        out.append(text)
    return {"plain_text_response": "".join(out)}


def read_whole(params: dict[str, Any], place: Place) -> dict[str, Any]:
    """Read a file as base64."""
    content = place.read(params["path"], MOST_WHOLE)
    return {"base64": base64.b64encode(content).decode(), "size_bytes": len(content)}


def write_file(params: dict[str, Any], place: Place) -> dict[str, Any]:
    content = params["content"].encode()
    place.write(params["path"], content)
    return {"result": "file written successfully", "path": params["path"], "bytes": len(content)}


def get_info(params: dict[str, Any], place: Place) -> dict[str, Any]:
    system, cwd = place.system()
    return {"os": shown(system), "cwd": shown(cwd)}
