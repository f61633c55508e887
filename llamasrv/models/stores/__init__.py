"""Models that other programs have downloaded, served from where they are.

    ollama      manifests and blobs; $OLLAMA_MODELS, else ~/.ollama/models and the folders of Ollama's service
    lmstudio    PUBLISHER/REPO/FILE.gguf in ~/.lmstudio/models
    hub         the Hugging Face Hub's cache, which most programs share
    llama.cpp   OWNER_REPO_FILE.gguf beside manifest=OWNER=REPO=TAG.json, in llama.cpp's own cache

Only reads: nothing is copied, written or locked in these folders.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from llamasrv.models import hub_cache
from llamasrv.models.scan import FolderModel, scan
from llamasrv.models.stores import llamacpp, lmstudio, ollama

Store = tuple[Callable[[Mapping[str, str]], list[Path]], Callable[[Path], list[FolderModel]]]
"""Its folders in an environment, and the models in a folder."""

STORES: Mapping[str, Store] = {
    "ollama": (ollama.folders, ollama.models),
    "lmstudio": (lmstudio.folders, scan),
    "hub": (lambda environ: [hub_cache.folder(environ)], scan),
    "llama.cpp": (llamacpp.folders, llamacpp.models),
}
ALL = "auto"


def models(
    names: Collection[str] = (ALL,),
    environ: Mapping[str, str] = os.environ,
    stores: Mapping[str, Store] = STORES,
) -> Iterator[FolderModel]:
    """The models of these stores, each with its `origin`. A folder that is in several of them is read once."""
    seen: set[Path] = set()
    for name, (folders, read) in stores.items():
        for folder in folders(environ) if name in names or ALL in names else ():
            real = folder.resolve()
            if real in seen or not folder.is_dir():
                continue
            seen.add(real)
            for one in read(folder):
                yield dataclasses.replace(one, origin=name)


def at(path: Path, names: Collection[str]) -> FolderModel | None:
    """The model whose file is one of Ollama's blobs, preferably with one of these names; None for other files."""
    folder = ollama.folder_of(path)
    return None if folder is None else ollama.model_of(folder, path, names)
