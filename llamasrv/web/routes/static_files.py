"""Files of the pages, compressed once for browsers that take gzip."""

from __future__ import annotations

import gzip
import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from flask import Response, request, send_from_directory

from llamasrv.concurrency import off_hub

WORTH = frozenset({".js", ".css", ".svg", ".json", ".webmanifest"})  # fonts are compressed already
SMALLEST = 500  # bytes
MAX_AGE = 3600  # seconds


_IMPORT = re.compile(r"""^import[^("']*["'](\.[^"']+)["']""", re.MULTILINE)


@lru_cache
def modules_of(folder: Path, name: str) -> tuple[str, ...]:
    """All modules that a script imports, itself included, by their paths in the folder. A browser fetches those that a
    page names at once, rather than one level of imports after the other."""
    found = [name]
    for one in found:  # grows
        for relative in _IMPORT.findall((folder / one).read_text("utf-8")):
            path = (folder / PurePosixPath(one).parent / relative).resolve().relative_to(folder.resolve()).as_posix()
            if path not in found:
                found.append(path)
    return tuple(found)


class _Compressed(NamedTuple):
    mtime_ns: int
    data: bytes


class StaticFiles:
    """Keeps what it has compressed: as much as the folder holds, a few hundred kilobytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compressed: dict[Path, _Compressed] = {}

    def send(self, name: str) -> Response:
        """The file of that name, as the current request asks for it. Raises werkzeug's NotFound, also for names that
        lead out of the folder."""
        response = send_from_directory(self._folder, name, max_age=MAX_AGE)
        path = self._folder / name
        if path.suffix not in WORTH or (response.content_length or 0) < SMALLEST:
            return response
        response.vary.add("Accept-Encoding")
        if response.status_code != 200 or not request.accept_encodings["gzip"]:
            return response
        etag, _ = response.get_etag()
        response.set_data(off_hub(self._gzip, path))
        response.content_encoding = "gzip"
        response.set_etag(f"{etag}-gzip")  # other bytes, another name
        response.make_conditional(request)
        return response

    def _gzip(self, path: Path) -> bytes:
        mtime_ns = path.stat().st_mtime_ns
        kept = self._compressed.get(path)
        if kept is None or kept.mtime_ns != mtime_ns:
            kept = self._compressed[path] = _Compressed(mtime_ns, gzip.compress(path.read_bytes(), 9, mtime=0))
        return kept.data
