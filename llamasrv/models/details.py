"""What is known about a model without loading it: for listings, estimates, and for telling files apart.

Read from the header of a GGUF file; a model without a file has the same fields, mostly empty. Knows no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llamasrv.errors import ConfigError
from llamasrv.models.gguf import Header, read_header

DIGEST_TENSORS = 512  # tensors whose first bytes enter a digest
DIGEST_BYTES = 4096  # bytes per tensor
DIGEST_PART = 1 << 20  # bytes of each further part of a split model

_RANK = 4  # pooling type of rerankers
_THINKING = (
    "<think>",
    "enable_thinking",
    "reasoning_content",
    "<|channel|>",
    "[THINK]",
    "<thinking>",
    "<|think|>",
    "thinking_budget",
)
_FIM = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")


@dataclass(frozen=True)
class Details:
    """Facts for listings. `digest` is "sha256:" and 64 digits: a hash of the metadata and the first bytes of the
    tensors."""

    path: Path | None = None
    parts: tuple[Path, ...] = ()  # all files of a split model, `path` first
    projector: Path | None = None  # the file next to it that turns images into embeddings
    architecture: str = ""
    num_params: int = 0
    quantisation: str = ""
    context: int = 0  # trained context in tokens
    n_embd: int = 0
    template: str | None = None
    # Subset of completion, tools, thinking, insert, embedding, rerank, vision, audio, speech.
    capabilities: tuple[str, ...] = ("completion",)
    size: int = 0  # bytes of all files
    digest: str = ""
    modified: float = 0.0  # seconds since 1970
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as in the file; long arrays without items


def describe(header: Header, *, template: str | None = None, projector: Path | None = None) -> Details:
    """`template` replaces the file's own template."""
    source = template if template is not None else header.chat_template
    details = Details(
        path=header.path,
        parts=header.paths,
        architecture=header.architecture,
        num_params=header.num_params,
        quantisation=header.file_type,
        context=header.number("context_length"),
        n_embd=header.number("embedding_length"),
        template=source,
        capabilities=capabilities(header, source),
        size=header.size,
        digest=digest(header),
        modified=max(path.stat().st_mtime for path in header.paths),
        metadata=header.metadata,
    )
    return details if projector is None else with_projector(details, projector)


def with_projector(details: Details, projector: Path | None) -> Details:
    """The model with this projector; None removes it. An unreadable file is ignored."""
    able = [name for name in details.capabilities if name not in MODALITIES.values()]
    if able == ["speech"]:
        able = ["completion"]
    if projector is not None and "completion" in able:
        try:
            header = read_header(projector)
        except ConfigError:
            projector = None
        else:
            speaks = details.architecture != "" and speech_kind(header) == details.architecture
            able = ["speech"] if speaks else able + modalities(header)
    return replace(details, projector=projector, capabilities=tuple(able))


MODALITIES = {"clip.has_vision_encoder": "vision", "clip.has_audio_encoder": "audio"}


def modalities(projector: Header) -> list[str]:
    """What a projector accepts: vision, audio or both. The voice encoder of one that generates speech hears nothing."""
    if speech_kind(projector):
        return []
    return [name for key, name in MODALITIES.items() if projector.metadata.get(key)]


def speech_kind(projector: Header) -> str:
    """The architecture of the models that this projector gives a voice; "" if it generates no speech."""
    kind = projector.metadata.get("clip.gen.audio.projector_type")
    return kind.removesuffix("_gen") if isinstance(kind, str) else ""


_OF_A_PART = (
    "projector_type",
    "projection_dim",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.head_count",
    "attention.layer_norm_epsilon",
)
_OF_SPEECH = (
    "clip.has_audio_encoder",
    "clip.has_gen_audio_encoder",
    "clip.audio.num_mel_bins",
    *(f"clip.{part}.{key}" for part in ("audio", "gen.audio") for key in _OF_A_PART),
)


def missing_of_speech(projector: Header) -> str:
    """The first key that the library needs of a projector that generates speech and that is not there; "" if all are.

    Without one it loads nothing, or aborts (the last of Qwen3-TTS).
    """
    kind = speech_kind(projector)
    needed = _OF_SPEECH if kind == "pockettts" else (*_OF_SPEECH, "clip.gen.audio.attention.head_count_kv")
    lacking = (key for key in needed if projector.metadata.get(key) in (None, False))
    return next(lacking, "") if kind else ""


def capabilities(header: Header, template: str | None) -> tuple[str, ...]:
    """What the model was made for, according to its file."""
    if header.number("pooling_type") == _RANK:
        return ("rerank",)
    if header.only_embeds:
        return ("embedding",)
    found = ["completion"]
    if template is not None and "tools" in template:
        found.append("tools")
    if template is not None and any(mark in template for mark in _THINKING):
        found.append("thinking")
    if any(key in header.metadata for key in _FIM):
        found.append("insert")
    return tuple(found)


def digest(header: Header) -> str:
    """A hash of the metadata, the sizes and the first bytes of the tensors: hashing whole files would take minutes, and
    tensors with other weights differ from their first bytes on."""
    found = hashlib.sha256()
    for path in header.paths:
        found.update(path.stat().st_size.to_bytes(8, "little"))
    for path in header.paths[1:]:
        with open(path, "rb", buffering=0) as file:
            found.update(file.read(DIGEST_PART))
    every = max(1, len(header.tensors) // DIGEST_TENSORS)
    with open(header.path, "rb", buffering=0) as file:
        left = header.data_start
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            found.update(block)
            left -= len(block)
        for tensor in header.tensors[: header.num_own_tensors : every]:
            file.seek(header.data_start + tensor.offset)
            found.update(file.read(DIGEST_BYTES))
    return f"sha256:{found.hexdigest()}"
