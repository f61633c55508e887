"""Scans a folder for model files and names them.

A split model counts as one, and projectors (mmproj) belong to a model next to them. Skips whatever is incomplete:
hidden files and folders, partial downloads, parts without the others, broken files. Follows no link out of the folder
twice, and looks at a limited number of entries. Loads nothing.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from llamasrv.errors import ConfigError
from llamasrv.models.details import Details, describe
from llamasrv.models.gguf import Header, read_header
from llamasrv.models.model_texts import ModelTexts

log = logging.getLogger("llamasrv")

MOST_ENTRIES = 100_000  # max entries in the folder and below
DEEPEST = 6

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
_QUANT = re.compile(
    r"(?P<base>.+?)[-._](?P<quant>(?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|B?F16|F32|FP16|FP32|MXFP4(?:_MOE)?))", re.I
)
_CACHED = re.compile(r"models--(?P<owner>.+?)--(?P<repo>.+)")  # a repository in the Hugging Face Hub's own cache
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_PROJECTOR = re.compile(r"(?:.*[-._])?mmproj(?:[-._].*)?", re.I)


@dataclass(frozen=True)
class FolderModel:
    """A model file with its header. `name` is its name on this server; `aliases` are further unambiguous names."""

    name: str
    aliases: tuple[str, ...]
    header: Header
    details: Details
    origin: str = "folder"  # or the store of another program
    adapters: tuple[Path, ...] = ()  # LoRA adapters that belong to it
    texts: ModelTexts | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", plain_name(self.name))
        object.__setattr__(self, "aliases", tuple(map(plain_name, self.aliases)))


def plain_name(text: str) -> str:
    """A name that JSON and terminals can show, from that of a file, which may have any bytes: control characters, and
    bytes that are not UTF-8, become underscores."""
    return _UNPRINTABLE.sub("_", text).strip() or "_"


def scan(folder: Path) -> list[FolderModel]:
    """All models in a folder, sorted by name. Raises ConfigError if it is unreadable."""
    if not folder.is_dir():
        raise ConfigError(f"models.dir = {str(folder)!r}: not a folder")
    headers: list[tuple[Path, Header]] = []
    projectors: list[Path] = []
    for path in _files(folder):
        stem = path.name[: -len(".gguf")]
        part = _PART.fullmatch(stem)
        if (part is not None and int(part[2]) != 1) or _is_outdated(path):
            continue
        if _PROJECTOR.fullmatch(stem):
            projectors.append(path)
            continue
        try:
            header = read_header(path)
        except ConfigError as error:
            warn_once(f"skipping {error}")
            continue
        if header.architecture == "clip":
            projectors.append(path)
        elif header.tensors and header.metadata.get("general.type", "model") == "model":
            # The others are vocabularies or adapters.
            headers.append((path, header))
    names = _names(folder, headers)
    found = []
    for (path, header), (name, aliases) in zip(headers, names):
        found.append(
            FolderModel(name, aliases, header, describe(header, projector=_projector_of(path, folder, projectors)))
        )
    return sorted(found, key=lambda one: one.name.lower())


@lru_cache(maxsize=10_000)
def warn_once(line: str) -> None:
    """Log a warning that has not been logged before: a folder is read several times."""
    log.warning("%s", line)


def _files(folder: Path) -> Iterator[Path]:
    left = MOST_ENTRIES
    seen: set[str] = set()
    stack = [(folder, 0)]
    while stack:
        place, depth = stack.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            warn_once(f"skipping {place}: {error.strerror}")
            continue
        for entry in entries:
            left -= 1
            if left < 0:
                warn_once(f"{folder} has more than {MOST_ENTRIES} entries: skipping the rest")
                return
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                real = os.path.realpath(entry.path)
                if depth < DEEPEST and real not in seen:
                    seen.add(real)
                    stack.append((Path(entry.path), depth + 1))
            elif entry.name.lower().endswith(".gguf") and entry.is_file():
                yield Path(entry.path)


def _is_outdated(path: Path) -> bool:
    """Whether the Hub's cache has a later snapshot of its repository."""
    snapshot = path.parent
    if snapshot.parent.name != "snapshots" or not _CACHED.fullmatch(snapshot.parent.parent.name):
        return False
    try:
        return (snapshot.parent.parent / "refs" / "main").read_text("ascii").strip() != snapshot.name
    except (OSError, UnicodeDecodeError):
        return False  # nothing says which is the latest


def _names(folder: Path, headers: list[tuple[Path, Header]]) -> list[tuple[str, tuple[str, ...]]]:
    """For each file its name and further names: from the file name, from the folder it was pulled to, and from its
    metadata.

    `Qwen2.5-7B-Instruct-Q4_K_M.gguf` is `Qwen2.5-7B-Instruct:Q4_K_M`; in the Hub's own cache it is named after its
    repository, `OWNER/REPO:Q4_K_M`, as in llama-server. A further name that two files could have belongs to neither.
    """
    own: list[str] = []
    others: list[list[str]] = []
    for path, header in headers:
        stem = path.name[: -len(".gguf")]
        part = _PART.fullmatch(stem)
        stem = part[1] if part is not None else stem
        base, quant = split_name(stem)
        name = f"{base}:{quant}" if quant else base
        further = [stem, base]
        inside = path.parent.relative_to(folder).parts
        cached = _CACHED.fullmatch(inside[-3]) if len(inside) >= 3 and inside[-2] == "snapshots" else None
        if cached is not None:
            further.append(name)
            repo = f"{cached['owner']}/{cached['repo']}"
            name = f"{repo}:{quant or header.file_type}"
            further += [repo, f"hf.co/{name}", f"hf.co/{repo}"]
        elif len(inside) == 1:  # a folder for a model, as llama-server calls it
            further.append(inside[0])
        elif len(inside) == 2:  # owner/repo, as pulled
            repo = "/".join(inside)
            tag = quant or header.file_type
            further += [f"{repo}:{tag}", repo, f"hf.co/{repo}:{tag}", f"hf.co/{repo}"]
        said = re.sub(r"[^\w.-]+", "-", header.name).strip("-.")[:100]
        if said:
            further += [f"{said}:{quant or header.file_type}", said]
        own.append(name)
        others.append([alias for alias in dict.fromkeys(further) if alias and alias != name])
    count = Counter(name.lower() for name in own)
    for i, (path, _) in enumerate(headers):
        if count[own[i].lower()] > 1:  # the same file name in two folders
            own[i] = "/".join([*path.parent.relative_to(folder).parts, own[i]])
    taken = Counter(alias.lower() for aliases in others for alias in aliases) + Counter(name.lower() for name in own)
    return [
        (name, tuple(alias for alias in aliases if taken[alias.lower()] == 1)) for name, aliases in zip(own, others)
    ]


def split_name(stem: str) -> tuple[str, str]:
    """A file name without its suffix, split into model and quantisation: ("Qwen3-8B", "Q4_K_M"); "" if it has none."""
    match = _QUANT.fullmatch(stem)
    return (match["base"], match["quant"]) if match is not None else (stem, "")


def projector_beside(path: Path) -> Path | None:
    """The projector of a model that was not found in a folder of models: the one that shares its name."""
    beside = [other for other in path.parent.glob("*.gguf") if _PROJECTOR.fullmatch(other.name[: -len(".gguf")])]
    return _projector_of(path, path.parent, beside)


def _projector_of(path: Path, folder: Path, projectors: list[Path]) -> Path | None:
    """The projector beside a model: any in a folder of its own, or, in a shared folder, one whose name begins like the
    model's."""
    beside = [other for other in projectors if other.parent == path.parent]
    if path.parent == folder:
        base = split_name(path.name[: -len(".gguf")])[0].lower()
        beside = [other for other in beside if base in other.name.lower()]
    return min(beside, key=lambda other: ("f16" not in other.name.lower(), other.name), default=None)
