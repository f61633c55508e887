"""A model's projector: the configured file, or the one next to the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from llamasrv.config import Settings
from llamasrv.engine.options import EngineOptions
from llamasrv.errors import ConfigError
from llamasrv.models import gguf
from llamasrv.models.details import Details, digest, modalities
from llamasrv.models.scan import FolderModel, projector_beside


def projector_of(settings: Settings, header: gguf.Header, found: FolderModel | None) -> Path | None:
    """The projector's path, or None. Raises ConfigError if the configured file is not a projector."""
    path = settings.engine.mmproj
    if path is not None:
        if not modalities(gguf.read_header(path)):
            raise ConfigError(f"model.mmproj = {str(path)!r}: not a projector for images or audio")
        return path
    if not settings.model.mmproj_auto:
        return None
    return found.details.projector if found is not None else projector_beside(header.path)


def with_projector_of(details: Details, options: EngineOptions) -> EngineOptions:
    """The engine options for a model that takes images or audio."""
    if details.projector is None:
        return dataclasses.replace(options, mmproj=None)
    known = digest(gguf.read_header(details.projector))
    return dataclasses.replace(options, mmproj=details.projector, mmproj_digest=known)
