"""What a model's drafts may come from, as its file and the library allow. Starts nothing, loads nothing."""

from __future__ import annotations

from llamasrv.config import Settings
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.startup.model_options import drafts, library_has_module, shape_of

# Whose MTP layer llamasrv was tried with. Of others the library may abort: it asserts what the file must have.
MTP_ARCHITECTURES = ("cohere2moe", "deepseek2", "glm4moe", "qwen35", "qwen35moe")
_TENSORS = ("eh_proj", "enorm", "hnorm")


def with_drafts(settings: Settings, header: gguf.Header) -> Settings:
    """The settings with open choices about drafts made: states to roll back to, and the model's own MTP layer. Raises
    ConfigError if that layer is asked for and cannot be used."""
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
    """Why drafts cannot come from the model's MTP layer; "" if they can."""
    count, layers = header.number("nextn_predict_layers"), header.number("block_count")
    architecture = header.architecture
    if not count:
        return f"{header.path} has no MTP layer; name a draft model with --model-draft, or leave the choice to auto"
    names = {tensor.name for tensor in header.tensors}
    missing = [name for part in _TENSORS if (name := f"blk.{layers - 1}.nextn.{part}.weight") not in names]
    if missing:
        return f"{header.path} was made without its MTP layer: there is no {missing[0]}"
    if count > 1:
        return f"{header.path} has {count} MTP layers, and llamasrv drafts with one"
    if architecture not in MTP_ARCHITECTURES:
        return (
            f"the MTP layer of {architecture!r} was never tried, and where a tensor is missing the library aborts; "
            f"llamasrv drafts with those of {', '.join(MTP_ARCHITECTURES)}"
        )
    if architecture == "glm4moe" and header.get("rope.dimension_sections"):
        return "llama.cpp aborts on positions of several dimensions in the MTP layer of 'glm4moe'"
    if not library_has_module("llama_cpp_ext"):
        return "this llama-cpp-python has no llama_cpp_ext, with the functions for MTP; install 0.3.36 or newer"
    return ""
