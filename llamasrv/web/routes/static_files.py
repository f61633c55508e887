"""Files of the pages, compressed once for browsers that take gzip."""

from __future__ import annotations

import gzip
import mimetypes
import os
import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from flask import Response, request
from werkzeug.exceptions import NotFound
from werkzeug.security import safe_join

from llamasrv.concurrency import off_hub

WORTH = frozenset({".js", ".css", ".svg", ".json", ".webmanifest"})  # fonts are compressed already
SMALLEST = 500  # min bytes of a file worth compressing
MAX_AGE = 3600  # seconds that browsers may cache a file


_IMPORT = re.compile(r"""^import[^("']*["'](\.[^"']+)["']""", re.MULTILINE)


@lru_cache
def modules_of(folder: Path, name: str) -> tuple[str, ...]:
    """All modules that a script imports, itself included, by their paths in the folder. A browser fetches those that a
    page names at once, rather than one level of imports after the other."""
    found = [name]
    for one in found:  # the list grows while it is walked
        for relative in _IMPORT.findall((folder / one).read_text("utf-8")):
            path = (folder / PurePosixPath(one).parent / relative).resolve().relative_to(folder.resolve()).as_posix()
            if path not in found:
                found.append(path)
    return tuple(found)


class _Forms(NamedTuple):
    """A file's content, as read, and compressed."""

    mtime_ns: int
    size: int
    kind: str  # content type
    plain: bytes
    packed: bytes | None  # gzip; None: not worth it


class StaticFiles:
    """Keeps what it has read and compressed: as much as the folder holds, about two megabytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, _Forms] = {}

    def send(self, name: str) -> Response:
        """The file of that name, as the current request asks for it. Raises werkzeug's NotFound, also for names that
        lead out of the folder."""
        path = safe_join(str(self._folder), name)
        if path is None or not os.path.isfile(path):
            raise NotFound
        stat = os.stat(path)
        kept = self._kept.get(path)
        if kept is None or (kept.mtime_ns, kept.size) != (stat.st_mtime_ns, stat.st_size):
            kept = self._kept[path] = off_hub(_read, path)
        headers = {"Cache-Control": f"public, max-age={MAX_AGE}"}
        etag, data = f"{kept.mtime_ns:x}-{kept.size:x}", kept.plain
        if kept.packed is not None:
            headers["Vary"] = "Accept-Encoding"
            if request.accept_encodings["gzip"]:
                headers["Content-Encoding"] = "gzip"
                etag, data = f"{etag}-gzip", kept.packed  # other bytes need another ETag
        response = Response(data, 200, headers, content_type=kept.kind)
        response.set_etag(etag)
        response.make_conditional(request)
        return response


def _read(path: str) -> _Forms:
    stat, plain = os.stat(path), Path(path).read_bytes()
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    worth = Path(path).suffix in WORTH and len(plain) >= SMALLEST
    packed = gzip.compress(plain, 9, mtime=0) if worth else None
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    return _Forms(stat.st_mtime_ns, stat.st_size, kind, plain, packed)
