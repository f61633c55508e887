"""The Hugging Face Hub's own cache, which llama-server and most other programs fill: what it holds need not be fetched.

    models--OWNER--REPO/refs/main              the commit of the latest snapshot
    models--OWNER--REPO/snapshots/COMMIT/...   the files of the repository, mostly links

Only looked into: `llamasrv pull` has a folder of its own, where files are checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Where llama-server and the Hub's library look for it, the first that is set.
_VARIABLES = (
    ("LLAMA_CACHE", ""),
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    for name, inside in _VARIABLES:
        if environ.get(name):
            return Path(environ[name]).expanduser() / inside
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "huggingface" / "hub"


def snapshot(repo: str, revision: str = "main", *, cache: Path | None = None) -> Path | None:
    """The folder with a repository's files as they were last fetched; None if they were not. `revision`: a branch, a
    tag or a commit. `cache`: another folder with the same layout."""
    here = (cache or folder()) / f"models--{repo.replace('/', '--')}"
    try:
        commit = (here / "refs" / revision).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    found = here / "snapshots" / commit
    return found if commit and "/" not in commit and found.is_dir() else None
