"""Ollama's store.

    manifests/HOST/NAMESPACE/NAME/TAG    JSON: {"layers": [{"mediaType": ..., "digest": "sha256:...", "size": ...}]}
    blobs/sha256-HEX                     the layers; older versions write sha256:HEX

A model's layers are a GGUF file, and optionally a projector, adapters, a prompt template (in Go's syntax), a system
prompt, parameters, example messages and licences. Shapes: docs/modelfile.mdx and server/images.go of Ollama.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from llamasrv.errors import ConfigError
from llamasrv.models.details import describe
from llamasrv.models.gguf import read_header
from llamasrv.models.model_texts import ModelTexts
from llamasrv.models.names import HOST, NAMESPACE, canonical
from llamasrv.models.scan import FolderModel, warn_once

MOST = 10_000  # max manifests
LARGEST = 1 << 20  # max bytes of a manifest, or of a layer that is text
MOST_LAYERS = 100
# of the system service on Linux, by Ollama's installer and by distributions
SERVICE_FOLDERS = (Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/models"))
DEEPEST = 6  # max depth of folders below `manifests`

_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LAYER = "application/vnd.ollama.image."


def folders(environ: Mapping[str, str], service: Iterable[Path] = SERVICE_FOLDERS) -> list[Path]:
    if environ.get("OLLAMA_MODELS"):
        return [Path(environ["OLLAMA_MODELS"]).expanduser()]
    home = Path(environ.get("HOME") or Path.home())
    return [home / ".ollama" / "models", *service]


def is_store(folder: Path) -> bool:
    return (folder / "manifests").is_dir() and (folder / "blobs").is_dir()


def models(folder: Path) -> list[FolderModel]:
    """All models of the store, by name. Those that cannot be served are skipped with a warning."""
    found = []
    for path in _manifests(folder):
        try:
            found.append(_model(folder, path))
        except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            warn_once(f"skipping Ollama's {_name(folder, path)}: {_reason(error)}")
    return sorted(found, key=lambda one: one.name.lower())


def folder_of(path: Path) -> Path | None:
    """The store that has this file among its blobs."""
    folder = path.parent.parent
    return folder if path.parent.name == "blobs" and _DIGEST.fullmatch(path.name) and is_store(folder) else None


def model_of(folder: Path, blob: Path, names: Collection[str]) -> FolderModel | None:
    """The model with this file; of several, the one with one of these names, else the first."""
    found = [one for one in models(folder) if one.header.path.name == blob.name]
    wanted = set(map(canonical, names))
    return next((one for one in found if canonical(one.name) in wanted), found[0] if found else None)


def remove(folder: Path, blob: Path) -> list[Path]:
    """Delete the manifests that name this blob, and then the blobs that no manifest names; returns what is gone. Only
    for a store of our own. Raises OSError."""
    kept, gone = set(), []
    for path in _manifests(folder):
        digests = {match[1] for match in _DIGEST.finditer(_text(path))}
        if blob.name.removeprefix("sha256-") in digests:
            gone.append(path)
        else:
            kept |= digests
    gone += [path for path in (folder / "blobs").glob("sha256-*") if path.name.removeprefix("sha256-") not in kept]
    for path in gone:
        path.unlink(missing_ok=True)
    return gone


def _manifests(folder: Path) -> Iterator[Path]:
    root, left = folder / "manifests", MOST
    stack = [(root, 0)]
    while stack:
        place, depth = stack.pop()
        try:
            entries = sorted(place.iterdir())
        except OSError as error:
            warn_once(f"skipping {place}: {error.strerror}")
            continue
        for entry in entries:
            left -= 1
            if left < 0:
                warn_once(f"{root} has more than {MOST} entries: skipping the rest")
                return
            if entry.name.startswith("."):
                continue
            if entry.is_dir() and not entry.is_symlink() and depth < DEEPEST:
                stack.append((entry, depth + 1))
            elif entry.is_file() and depth:
                yield entry


def _name(folder: Path, path: Path) -> str:
    """The name as Ollama lists it: without its own host and namespace, with the tag."""
    *place, name, tag = path.relative_to(folder / "manifests").parts
    if place[:1] == [HOST]:
        place = place[1:]
        if place == [NAMESPACE]:
            place = []
    return "/".join([*place, f"{name}:{tag}"])


def _model(folder: Path, path: Path) -> FolderModel:
    layers = [
        (str(layer["mediaType"]).removeprefix(_LAYER), _blob(folder, str(layer["digest"])))
        for layer in json.loads(_text(path))["layers"][:MOST_LAYERS]
    ]
    files = [blob for kind, blob in layers if kind == "model"]
    if len(files) != 1:
        raise ValueError(f"its manifest names {len(files)} model files" if files else "its manifest names no GGUF file")
    header = read_header(files[0])
    projectors = [blob for kind, blob in layers if kind == "projector"]
    if len(projectors) > 1:
        warn_once(f"Ollama's {_name(folder, path)} has {len(projectors)} projectors: using the first")
    name = _name(folder, path)
    details = describe(header, projector=projectors[0] if projectors else None)
    return FolderModel(
        name,
        (name.removesuffix(":latest"),) if name.endswith(":latest") else (),
        header,
        dataclasses.replace(details, modified=path.stat().st_mtime),
        adapters=tuple(blob for kind, blob in layers if kind == "adapter"),
        texts=_texts([(kind, blob) for kind, blob in layers if kind in _TEXTS]),
    )


_TEXTS = ("template", "prompt", "system", "params", "messages", "license")


def _texts(layers: list[tuple[str, Path]]) -> ModelTexts:
    text = {kind: _text(blob) for kind, blob in layers}
    parameters = json.loads(text.get("params", "{}"))
    messages = json.loads(text.get("messages", "[]"))
    if not isinstance(parameters, dict) or not isinstance(messages, list):
        raise ValueError("its parameters or messages are malformed")
    return ModelTexts(
        text.get("template") or text.get("prompt", ""),
        text.get("system", ""),
        parameters,
        tuple(messages),
        "\n".join(_text(blob) for kind, blob in layers if kind == "license"),
    )


def _blob(folder: Path, digest: str) -> Path:
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise ValueError(f"{digest[:80]!r} is not a digest")
    for path in (folder / "blobs" / f"sha256-{match[1]}", folder / "blobs" / f"sha256:{match[1]}"):
        if path.is_file():
            return path
    raise ValueError(f"blob sha256-{match[1][:12]}... is missing; `ollama pull` restores it")


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path.name} is larger than {LARGEST} bytes")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text") from None


def _reason(error: Exception) -> str:
    is_json = isinstance(error, (json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError))
    return "its manifest is malformed" if is_json else str(error)
