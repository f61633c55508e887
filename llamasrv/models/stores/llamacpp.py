"""llama.cpp's own cache, as it was before it moved to the Hub's layout:

OWNER_REPO_FOLDER_FILE.gguf          a file of a repository; slashes are underscores
manifest=OWNER=REPO=TAG.json         {"ggufFile": {"rfilename": ...}, "mmprojFile": {"rfilename": ...}}
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from llamasrv.models.details import with_projector
from llamasrv.models.scan import FolderModel, scan, split_name, warn_once

LARGEST = 1 << 20  # max bytes of a manifest
MOST = 10_000  # max manifests


def folders(environ: Mapping[str, str]) -> list[Path]:
    if environ.get("LLAMA_CACHE"):
        return [Path(environ["LLAMA_CACHE"]).expanduser()]
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return [home / "Library" / "Caches" / "llama.cpp"]
    return [Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "llama.cpp"]


def models(folder: Path) -> list[FolderModel]:
    """The models of this cache. Files with a manifest are named after their repository, the others after their file."""
    names: dict[str, tuple[str, list[str], str | None]] = {}
    for repo, tag, file, projector in _manifests(folder):
        stem = split_name(file.rpartition("/")[2].removesuffix(".gguf"))
        name = f"{repo}:{stem[1] or tag}"
        names[_local(repo, file)] = (name, [f"{repo}:{tag}", repo], projector and _local(repo, projector))
    found = []
    for one in scan(folder):
        name, aliases, projector = names.get(one.header.path.name, (one.name, [], None))
        details = one.details
        if projector is not None and (folder / projector).is_file():
            details = with_projector(details, folder / projector)
        taken = tuple(dict.fromkeys([*aliases, *one.aliases, one.header.path.stem]))
        found.append(dataclasses.replace(one, name=name, aliases=taken, details=details))
    return found


def _local(repo: str, file: str) -> str:
    return f"{repo}/{file}".replace("/", "_")


def _manifests(folder: Path) -> Iterator[tuple[str, str, str, str | None]]:
    """Repository, tag, model file and projector of each readable manifest."""
    for path in sorted(folder.glob("manifest=*=*=*.json"))[:MOST]:
        _, owner, repo, tag = path.name.removesuffix(".json").split("=", 3)
        try:
            if path.stat().st_size > LARGEST:
                raise ValueError("too large")
            wire = json.loads(path.read_text("utf-8"))
            projector = wire.get("mmprojFile")
            yield (
                f"{owner}/{repo}",
                tag,
                str(wire["ggufFile"]["rfilename"]),
                str(projector["rfilename"]) if projector else None,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            warn_once(f"skipping {path}: not a manifest of llama.cpp's cache ({error})")
