"""Pulls models from the Hugging Face Hub: find, download, verify, move into place.

    FOLDER/owner/repo/model-Q4_K_M.gguf    complete and verified; all that a listing of the folder may show
    FOLDER/.partial/sha256-1234...         downloads in progress or interrupted; the next pull resumes them

A file is moved into place once its checksum matches, and the first part of a split model is moved last, so that no name
exists without its bytes. Reports progress by a callback; knows no terminal and no server.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from llamasrv.models import hub_cache

PREFIXES = ("hf:", "hf.co/", "huggingface.co/")
DEFAULTS = ("Q4_K_M", "Q8_0", "Q4_0", "MXFP4", "F16", "BF16", "F32")
"""The quantisation to pull if none is requested: the first one available."""

MOST_FILES = 1000
SPARE = 256 * 2**20  # bytes of disk space to leave free
CHUNK = 2**20  # bytes per read: the most that a broken connection loses, and the interval of progress reports
TIMEOUT = 30  # read timeout in seconds
REACH = 5  # connect timeout in seconds of a search
TRIES = 4  # consecutive attempts without progress
PARTIAL_DAYS = 14  # age in days at which a partial file counts as abandoned
UNREACHABLE = "check this machine's network, or set HTTPS_PROXY to its proxy or HF_ENDPOINT to a mirror"

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read at import time, below

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REFERENCE = re.compile(rf"({_NAME}/{_NAME})(?:@([\w./-]{{1,200}}))?(?::([\w./ +-]{{1,200}}))?")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


class PullFailed(Exception):
    """The pull did not finish; the message is one line for the user, `status` what a server answers it with."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Reference:
    """What to pull: a repository, and a quantisation or a file in it ("": choose automatically)."""

    repo: str
    wanted: str = ""
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse `hf:owner/repo`, with `:Q4_K_M` or `:file.gguf`, and `@revision` before that. Raises PullFailed."""
        rest = text.strip()
        for prefix in ("https://", "http://", *PREFIXES):
            if rest.lower().startswith(prefix):
                rest = rest[len(prefix) :]
        match = _REFERENCE.fullmatch(rest)
        if match is None or ".." in rest:
            raise PullFailed(f"{text[:200]!r} is not a repository: expected hf:owner/repo[:quant|file]")
        wanted = match[3] or ""
        return cls(match[1], "" if wanted == "latest" else wanted, match[2] or "main")

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (f":{self.wanted}" if self.wanted else "")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """The progress of a pull. `status` is one of STATUSES; the other fields describe the file that it refers to, if
    any."""

    status: str
    file: str = ""
    digest: str = ""  # sha256:... of the finished file
    completed: int = 0
    total: int = 0


class Repository(NamedTuple):
    """What a search finds."""

    repo: str
    downloads: int
    gated: bool  # its terms must be accepted first


STATUSES = ("pulling manifest", "pulling", "verifying", "success")

Report = Callable[[PullProgress], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    path: str  # within the repository
    size: int
    digest: str  # sha256:..., or git:... for small files without LFS
    url: str = ""
    is_gguf: bool = True
    is_public: bool = False  # not the Hub's: it gets no token

    @property
    def partial(self) -> str:
        """The file's name while it is downloaded: derived from the content, so that any pull of the same file resumes
        it."""
        return self.digest.replace(":", "-")


def pull(
    text: str, folder: Path, *, report: Report = lambda progress: None, endpoint: str | None = None
) -> tuple[Path, ...]:
    """Download a model into `folder`; returns its files, the model's first part first. Resumes interrupted pulls and
    skips files that exist. `endpoint` is the Hub's URL if it is not the one in HF_ENDPOINT. Raises PullFailed."""
    reference = Reference.parse(text)
    report(PullProgress("pulling manifest"))
    files = _resolve(reference, endpoint)
    places = [folder / reference.repo / file.path for file in files]
    download(list(zip(files, places)), folder, report)
    report(PullProgress("success"))
    return tuple(places)


def download(files: list[tuple[RemoteFile, Path]], folder: Path, report: Report) -> None:
    """Download what is missing, then move all of it into place, the first file last. Raises PullFailed."""
    partials = folder / ".partial"
    try:
        partials.mkdir(parents=True, exist_ok=True)
        _delete_old(partials)
        missing = [(file, place) for file, place in files if not _in_place(file, place, report)]
        _check_space([file for file, _ in missing], partials)
        for file, _ in missing:
            _fetch(file, partials / file.partial, report)
        for file, place in reversed(missing):
            _put(partials / file.partial, place)
    except OSError as error:
        raise PullFailed(f"{folder}: {_reason(error)}", 507 if error.errno in _FULL else 500) from error


def pulled(text: str, folder: Path) -> Path | None:
    """The first part of a model pulled into `folder` before, or present in the Hub's own cache (which `folder` may be);
    None if there is neither."""
    reference = Reference.parse(text)
    cached = (hub_cache.snapshot(reference.repo, reference.revision, cache=cache) for cache in (folder, None))
    places = (folder / reference.repo, *(place for place in cached if place is not None))
    return next(filter(None, (_first_in(place, reference) for place in places)), None)


def _first_in(here: Path, reference: Reference) -> Path | None:
    checked = "sha256:" + "0" * 64  # it was verified when it was stored
    files = [RemoteFile(str(path.relative_to(here)), path.stat().st_size, checked) for path in here.rglob("*.gguf")]
    try:
        return here / choose(files, reference)[0].path
    except PullFailed:
        return None


# Listing


def _resolve(reference: Reference, endpoint: str | None) -> list[RemoteFile]:
    """The files of the requested model. Rejects names that would escape the folder."""
    from huggingface_hub import hf_hub_url

    there, commit = listed(reference, endpoint)
    return [
        replace(file, url=hf_hub_url(reference.repo, file.path, revision=commit, endpoint=endpoint))
        for file in choose(there, reference)
    ]


def repositories(words: str, most: int) -> list[Repository]:
    """Repositories with GGUF files that match the words, most downloaded first. Raises PullFailed."""
    from huggingface_hub import HfApi, constants

    try:
        _reach(constants.ENDPOINT)
        found = list(HfApi().list_models(search=words, filter="gguf", sort="downloads", limit=most))
    except Exception as error:
        raise PullFailed(*_refusal(error) or ("cannot be reached",)) from error
    return [Repository(one.id, one.downloads or 0, bool(one.gated)) for one in found]


def _reach(endpoint: str) -> None:
    """Raises OSError if the Hub accepts no connection: its library would retry for half a minute. Through a proxy the
    library finds out itself."""
    if not getproxies():
        address = urlsplit(endpoint)
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=REACH).close()


def listed(reference: Reference, endpoint: str | None = None) -> tuple[list[RemoteFile], str | None]:
    """All GGUF files of a repository, and its commit. Raises PullFailed."""
    from huggingface_hub import HfApi, constants

    repo, where = reference.repo, endpoint or constants.ENDPOINT
    try:
        _reach(where)
        info = HfApi(endpoint).model_info(repo, revision=reference.revision, files_metadata=True, timeout=30)
    except Exception as error:
        reason, *status = _refusal(error) or (f"cannot reach the Hub at {_shown(where)}: {UNREACHABLE}",)
        raise PullFailed(f"{repo}: {reason}", *status) from error
    there = [_remote(sibling) for sibling in info.siblings or [] if sibling.rfilename.lower().endswith(".gguf")]
    return there, info.sha


def _remote(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    digest = f"sha256:{lfs.sha256}" if lfs is not None else f"git:{sibling.blob_id}"
    return RemoteFile(sibling.rfilename, int(lfs.size if lfs is not None else sibling.size or 0), digest)


def choose(there: Iterable[RemoteFile], reference: Reference) -> list[RemoteFile]:
    """The model's parts in order, then its image projector if there is one. Raises PullFailed."""
    files = sorted((file for file in there if _is_safe(file)), key=lambda file: file.path)
    projectors = [file for file in files if "mmproj" in _base(file).lower()]
    models = [file for file in files if file not in projectors and "imatrix" not in _base(file).lower()]
    firsts = [file for file in models if (part := _PART.fullmatch(file.path)) is None or int(part[2]) == 1]
    if not firsts:
        raise PullFailed(f"{reference.repo}: the repository contains no GGUF file", 404)
    first = _wanted(firsts, reference)
    if first is None:
        names = ", ".join(_base(file) for file in firsts[:20])
        raise PullFailed(f"{reference.repo}: the repository has no {reference.wanted!r}; it has {names}", 404)
    chosen = _parts(first, {file.path: file for file in models})
    quant = reference.wanted if reference.wanted and not reference.wanted.lower().endswith(".gguf") else ""
    for wanted in filter(None, (quant, "F16", "BF16", "")):
        found = [file for file in projectors if has_quant(file.path, wanted)]
        if found:
            return [*chosen, found[0]]
    return [*chosen, *projectors[:1]]


def _wanted(firsts: list[RemoteFile], reference: Reference) -> RemoteFile | None:
    wanted = reference.wanted
    if not wanted:
        for quant in DEFAULTS:
            found = [file for file in firsts if has_quant(file.path, quant)]
            if found:
                return found[0]
        return firsts[0]
    exact = [file for file in firsts if wanted.lower() in (file.path.lower(), _base(file).lower())]
    return next(iter(exact or [file for file in firsts if has_quant(file.path, wanted)]), None)


def has_quant(path: str, quant: str) -> bool:
    """Whether the file name contains this quantisation as a separate word: `Q4_K` does not match `Q4_K_M`."""
    return re.search(rf"(?<![a-z0-9]){re.escape(quant)}(?![a-z0-9_])", path, re.IGNORECASE) is not None


def _parts(first: RemoteFile, models: dict[str, RemoteFile]) -> list[RemoteFile]:
    match = _PART.fullmatch(first.path)
    if match is None:
        return [first]
    count = int(match[3])
    if not 1 <= count <= MOST_FILES:
        raise PullFailed(f"{first.path}: {count} parts exceed the limit of {MOST_FILES}")
    paths = [f"{match[1]}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    missing = [path for path in paths if path not in models]
    if missing:
        raise PullFailed(f"{first.path}: part {missing[0]} is missing from the repository")
    return [models[path] for path in paths]


def _base(file: RemoteFile) -> str:
    return file.path.rpartition("/")[2]


def _is_safe(file: RemoteFile) -> bool:
    """Whether the name stays in its folder, is not hidden, and the digest can be verified."""
    steps = file.path.split("/")
    return (
        len(file.path) <= 400
        and all(step and step[0] != "." and "\\" not in step and step.isprintable() for step in steps)
        and re.fullmatch(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}", file.digest) is not None
        and file.size > 0
    )


# Downloading


def _in_place(file: RemoteFile, place: Path, report: Report) -> bool:
    """Whether the file exists already with the right checksum."""
    if not place.is_file() or place.stat().st_size != file.size:
        return False
    digest = _Digest(file)
    with open(place, "rb") as data:
        digest.read(data, report)
    return digest.right


def _check_space(missing: list[RemoteFile], partials: Path) -> None:
    need = 0
    for file in missing:
        partial = partials / file.partial
        need += file.size - (min(partial.stat().st_size, file.size) if partial.is_file() else 0)
    free = shutil.disk_usage(partials).free
    if need and need + SPARE > free:
        raise PullFailed(
            f"{partials.parent}: the download needs {_gib(need)}, but only {_gib(free)} is free, "
            f"of which {_gib(SPARE)} is kept in reserve",
            507,
        )


def _fetch(file: RemoteFile, partial: Path, report: Report) -> None:
    """Download the rest of a file. Afterwards `partial` is complete, on disk, with the right checksum."""
    with _locked(partial) as data:
        digest = _Digest(file)
        digest.read(data, report, status="pulling")
        data.truncate(digest.count)
        if digest.count < file.size:
            _download_rest(file, data, digest, report)
        report(PullProgress("verifying", file.path, file.digest, digest.count, file.size))
        if not digest.right:
            data.truncate(0)
            raise PullFailed(f"{file.path}: checksum mismatch; the download was discarded. Try again.")
        if file.is_gguf and digest.start != b"GGUF":
            data.truncate(0)
            raise PullFailed(f"{file.path}: not a GGUF file")
        data.flush()
        os.fsync(data.fileno())


def _download_rest(file: RemoteFile, data: BinaryIO, digest: _Digest, report: Report) -> None:
    """Download the rest of the file, retrying as long as there is progress. The library's own downloads discard partial
    files when the process dies, so the stream is written here."""
    from huggingface_hub.utils import logging

    logging.set_verbosity(logging.ERROR)  # we report errors ourselves
    in_vain = 0
    while digest.count < file.size:
        had = digest.count
        try:
            _stream(file, data, digest, report)
        except PullFailed:
            raise
        except Exception as error:  # any exception of the current HTTP library for a broken connection
            if (refusal := _refusal(error)) is not None:
                raise PullFailed(f"{file.path}: {refusal[0]}", refusal[1]) from error
            if isinstance(error, OSError) and error.errno is not None:
                raise
            in_vain = 0 if digest.count > had else in_vain + 1
            if in_vain == TRIES:
                where = f"the connection broke at {had} of {file.size} bytes"
                raise PullFailed(f"{file.path}: {where} ({type(error).__name__})") from error
            time.sleep(1)


def _stream(file: RemoteFile, data: BinaryIO, digest: _Digest, report: Report) -> None:
    """One response, starting at the end of the partial file."""
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

    headers = {} if file.is_public else build_hf_headers()
    headers |= {"Accept-Encoding": "identity", "Range": f"bytes={digest.count}-"}
    with http_stream_backoff(
        "GET", file.url, headers=headers, timeout=TIMEOUT, retry_on_exceptions=(), retry_on_status_codes=(408, 429)
    ) as response:
        hf_raise_for_status(response)
        if response.status_code != 206 and digest.count:  # the server does not support resuming: start over
            data.seek(0)
            data.truncate()
            digest.restart()
        for piece in response.iter_bytes(CHUNK):
            if digest.count + len(piece) > file.size:
                data.truncate(0)
                raise PullFailed(f"{file.path}: the download is larger than the {file.size} bytes announced")
            data.write(piece)
            digest.add(piece)
            report(PullProgress("pulling", file.path, file.digest, digest.count, file.size))


def _shown(url: str) -> str:
    """The URL without user and password."""
    return urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()


def _refusal(error: Exception) -> tuple[str, int] | None:
    """The Hub's error, worded for the user, and the status of PullFailed; None if it sent none."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return "the repository is gated: accept its terms, then set HF_TOKEN", 403
    if isinstance(error, RepositoryNotFoundError):
        return "no such repository, or it is private and needs HF_TOKEN", 404
    if isinstance(error, RevisionNotFoundError):
        return "no such revision", 404
    if isinstance(error, HfHubHTTPError):
        return f"the server returned {error.response.status_code}", 502
    return None


class _Digest:
    """The checksum of a file, updated as its bytes arrive."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.restart()

    def restart(self) -> None:
        kind, _, self._right = self._file.digest.partition(":")
        # Git hashes a header with the length before the content.
        head = b"" if kind == "sha256" else b"blob %d\0" % self._file.size
        self._hash = hashlib.sha256() if kind == "sha256" else hashlib.sha1(head)
        self.count = 0
        self.start = b""

    def add(self, piece: bytes) -> None:
        if self.count < 4:
            self.start = (self.start + piece)[:4]
        self._hash.update(piece)
        self.count += len(piece)

    def read(self, data: BinaryIO, report: Report, *, status: str = "verifying") -> None:
        """Add the content of a file, and leave its position at the end."""
        file = self._file
        data.seek(0)
        while self.count < file.size and (piece := data.read(min(4 * CHUNK, file.size - self.count))):
            self.add(piece)
            report(PullProgress(status, file.path, file.digest, self.count, file.size))

    @property
    def right(self) -> bool:
        return self.count == self._file.size and self._hash.hexdigest() == self._right


@contextmanager
def _locked(partial: Path) -> Iterator[BinaryIO]:
    """A partial file, locked for this process."""
    while True:
        with open(partial, "a+b") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PullFailed(f"{partial.name}: another process is fetching this file", 503) from None
            try:
                same = os.path.samestat(os.fstat(handle.fileno()), os.stat(partial))
            except FileNotFoundError:
                same = False
            if not same:
                continue  # its owner has moved it into place meanwhile
            with open(partial, "r+b", buffering=0) as data:
                yield data
            return


def _put(partial: Path, place: Path) -> None:
    """Move into place atomically and durably."""
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(partial, place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _delete_old(partials: Path) -> None:
    """Delete abandoned partial files."""
    for partial in partials.iterdir():
        if time.time() - partial.stat().st_mtime > PARTIAL_DAYS * 86_400:
            partial.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return _FULL.get(error.errno or 0, error.strerror or type(error).__name__)


_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
