"""The files a model is loaded with: its projector, and where its drafts come from. Loads nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from llamasrv.config import Settings
from llamasrv.engine.base.options import EngineOptions
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.models.details import Details, digest, missing_of_speech, modalities, speech_kind
from llamasrv.models.scan import FolderModel, projector_beside
from llamasrv.startup.model_options import drafts, library_has_module, shape_of


def projector_of(settings: Settings, header: gguf.Header, found: FolderModel | None) -> Path | None:
    """The projector's path, or None. Raises ConfigError if the configured file is not a projector."""
    path = settings.engine.mmproj
    if path is not None:
        projector = gguf.read_header(path)
        if speech_kind(projector) not in ("", header.architecture):
            raise ConfigError(
                f"model.mmproj = {str(path)!r}: it generates speech for {speech_kind(projector)} models; "
                f"{header.path} is a {header.architecture} model"
            )
        if missing := missing_of_speech(projector):
            raise ConfigError(
                f"model.mmproj = {str(path)!r}: not a whole projector of a speech model: it has no {missing}"
            )
        if not modalities(projector) and not speech_kind(projector):
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


# Architectures whose MTP layer was tested. With others the library may abort: it asserts that certain tensors exist.
MTP_ARCHITECTURES = ("cohere2moe", "deepseek2", "glm4moe", "qwen35", "qwen35moe")
_TENSORS = ("eh_proj", "enorm", "hnorm")


def with_drafts(settings: Settings, header: gguf.Header) -> Settings:
    """Resolve open settings about drafts: recurrent states for rollback, and the model's own MTP layer. Raises
    ConfigError if that layer is requested and unusable."""
    engine = settings.engine
    reason = mtp_refusal(header)
    if engine.spec == "mtp" and reason:
        raise ConfigError(f"engine.spec = 'mtp': {reason}")
    wants_mtp = engine.spec == "mtp" or (engine.spec == "auto" and engine.draft_model is None)
    return settings.having(
        engine={
            "draft_rollback": memory.rollback(header, shape_of(settings)),
            "mtp": drafts(settings) and wants_mtp and not reason,
        }
    )


def mtp_refusal(header: gguf.Header) -> str:
    """Why the model's MTP layer cannot draft; "" if it can."""
    count, layers = header.number("nextn_predict_layers"), header.number("block_count")
    architecture = header.architecture
    if not count:
        return f"{header.path} has no MTP layer; name a draft model with --model-draft, or leave the choice to auto"
    names = {tensor.name for tensor in header.tensors}
    missing = [name for part in _TENSORS if (name := f"blk.{layers - 1}.nextn.{part}.weight") not in names]
    if missing:
        return f"{header.path} was converted without its MTP layer: {missing[0]} is missing"
    if count > 1:
        return f"{header.path} has {count} MTP layers, but llamasrv supports only one"
    if architecture not in MTP_ARCHITECTURES:
        return (
            f"the MTP layer of {architecture!r} is untested, and the library aborts if a tensor is missing; "
            f"llamasrv supports those of {', '.join(MTP_ARCHITECTURES)}"
        )
    if architecture == "glm4moe" and header.get("rope.dimension_sections"):
        return "llama.cpp aborts on positions of several dimensions in the MTP layer of 'glm4moe'"
    if not library_has_module("llama_cpp_ext"):
        return "this llama-cpp-python lacks llama_cpp_ext, the functions for MTP; install 0.3.36 or newer"
    return ""
