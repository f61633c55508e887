"""Pulls models from Ollama's registry into a store of our own in the models folder.

    GET /v2/NAMESPACE/NAME/manifests/TAG    JSON: {"config": {...}, "layers": [{"mediaType", "digest", "size"}]}
    GET /v2/NAMESPACE/NAME/blobs/DIGEST     a layer, also from the middle (Range)

    FOLDER/ollama/manifests/HOST/NAMESPACE/NAME/TAG    written last: a manifest that exists has all its blobs
    FOLDER/ollama/blobs/sha256-HEX                     complete and verified
    FOLDER/.partial/sha256-HEX                         downloads in progress or interrupted; the next pull resumes them

Accounts and private models are not supported. Shapes: server/images.go and server/download.go of Ollama.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamasrv.atomic_file import replacing
from llamasrv.models.names import HOST, NAMESPACE
from llamasrv.models.pull import PullFailed, PullProgress, RemoteFile, Report, download

STORE = "ollama"  # the folder of the store within the models folder
LARGEST = 1 << 20  # max bytes of a manifest, or of a layer that is text
MOST_LAYERS = 100
TIMEOUT = 30  # seconds without an answer

_PREFIX = "ollama:"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_PLACE = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)(?::\d{1,5})?"
_NAME = re.compile(rf"(?:({_PLACE})/)?(?:({_WORD})/)?({_WORD})(?::({_WORD}))?")
_LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1)(?::\d+)?")
_KIND = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True, slots=True)
class RegistryName:
    """A model of the registry."""

    host: str
    namespace: str
    name: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> RegistryName | None:
        """`llama3.2`, `llama3.2:3b`, `ollama:me/model`, `HOST/NAMESPACE/NAME:TAG`; None for names of the Hub, which
        have a prefix or one slash."""
        text = text.strip()
        bare = text.removeprefix(_PREFIX)
        match = _NAME.fullmatch(bare)
        if match is None or ".." in bare or match[1] in ("hf.co", "huggingface.co"):
            return None
        if bare == text and match[2] is not None and match[1] is None:
            return None  # OWNER/REPO
        if bare == text and match[3] == "hf":
            return None
        return cls(match[1] or HOST, match[2] or NAMESPACE, match[3], match[4] or "latest")

    def __str__(self) -> str:
        return f"{self.host}/{self.namespace}/{self.name}:{self.tag}"

    @property
    def url(self) -> str:
        scheme = "http" if _LOCAL.fullmatch(self.host) else "https"
        return f"{scheme}://{self.host}/v2/{self.namespace}/{self.name}"


def pull(name: RegistryName, folder: Path, *, report: Report = lambda progress: None) -> tuple[Path, ...]:
    """Download a model; returns the file of its weights. Resumes interrupted pulls and skips blobs that exist. Raises
    PullFailed."""
    report(PullProgress("pulling manifest"))
    manifest = _manifest(name)
    files = _files(name, manifest)
    store = folder / STORE
    download([(file, store / "blobs" / file.partial) for file in files], folder, report)
    place = store / "manifests" / name.host / name.namespace / name.name / name.tag
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place, durable=True, mode=0o644) as file:
            file.write(manifest)
    except OSError as error:
        raise PullFailed(f"{place}: {error.strerror}") from None
    report(PullProgress("success"))
    return tuple(store / "blobs" / file.partial for file in files if file.is_gguf)


def _manifest(name: RegistryName) -> bytes:
    request = urllib.request.Request(f"{name.url}/manifests/{name.tag}", headers={"Accept": _KIND})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            content = reply.read(LARGEST + 1)
    except urllib.error.HTTPError as error:
        with error:
            reasons = {401: ("it is private, and accounts are not supported", 403), 404: ("no such model or tag", 404)}
            reason, status = reasons.get(error.code, (f"the registry returned {error.code}", 502))
            raise PullFailed(f"{name}: {reason}", status) from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        cause = getattr(cause, "strerror", None) or cause
        advice = "check this machine's network, or set HTTPS_PROXY to its proxy"
        raise PullFailed(f"{name}: cannot reach {name.host} ({cause}): {advice}") from None
    if len(content) > LARGEST:
        raise PullFailed(f"{name}: its manifest is larger than {LARGEST} bytes")
    return bytes(content)


def _files(name: RegistryName, manifest: bytes) -> list[RemoteFile]:
    """The blobs of a manifest, texts first."""
    try:
        wire = json.loads(manifest)
        layers = [layer for layer in (wire.get("config"), *wire["layers"]) if layer is not None]
        if len(layers) > MOST_LAYERS:
            raise ValueError
        files = {str(layer["digest"]): _file(name, layer) for layer in layers}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PullFailed(f"{name}: its manifest is malformed") from None
    if not any(file.is_gguf for file in files.values()):
        raise PullFailed(f"{name}: it has no GGUF file, which this server needs")
    return sorted(files.values(), key=lambda file: file.is_gguf)


def _file(name: RegistryName, layer: dict[str, Any]) -> RemoteFile:
    digest, size, kind = str(layer["digest"]), layer["size"], str(layer["mediaType"]).rpartition(".")[2]
    is_gguf = kind in ("model", "projector", "adapter")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest) or type(size) is not int or size < 0:
        raise ValueError
    if not is_gguf and size > LARGEST:
        raise ValueError
    url = f"{name.url}/blobs/{digest}"
    return RemoteFile(f"{name.name}:{name.tag} {kind}", size, digest, url, is_gguf=is_gguf, is_public=True)
