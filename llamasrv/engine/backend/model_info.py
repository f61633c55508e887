"""Metadata and sizes of a loaded model."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from llamasrv.engine.backend.library import C
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.base.interface import ModelInfo, sampling_defaults


def info_of(path: str, model: Any, vocab: LlamaVocabulary) -> ModelInfo:
    metadata = _metadata(model)
    templates = {}
    for name in ("tool_use", "rerank"):
        if template := C.llama_model_chat_template(model, name.encode()):
            templates[name] = template.decode("utf-8", "replace")
    template = C.llama_model_chat_template(model, None)
    description = ctypes.create_string_buffer(256)
    C.llama_model_desc(model, description, 256)
    # llama.cpp writes "?B" for sizes that it has no name for.
    text = description.value.decode("utf-8", "replace").replace("?B", f"{C.llama_model_n_params(model) / 1e6:.3g}M")
    return ModelInfo(
        name=metadata.get("general.name") or os.path.splitext(os.path.basename(path))[0],
        path=path,
        description=text,
        architecture=metadata.get("general.architecture", ""),
        num_params=C.llama_model_n_params(model),
        size_bytes=C.llama_model_size(model),
        context_train=C.llama_model_n_ctx_train(model),
        n_embd=C.llama_model_n_embd(model),
        n_layer=C.llama_model_n_layer(model),
        n_vocab=vocab.size,
        vocab_type=C.llama_vocab_type(vocab.pointer),
        file_type=text.rpartition(" ")[2],
        chat_template=template.decode("utf-8", "replace") if template else None,
        templates=templates,
        bos_token=vocab.text(vocab.bos),
        eos_token=vocab.text(vocab.eos),
        sampling_defaults=sampling_defaults(metadata),
        metadata=metadata,
    )


def _metadata(model: Any) -> dict[str, str]:
    out = {}
    buffer = ctypes.create_string_buffer(1 << 16)
    for i in range(C.llama_model_meta_count(model)):
        C.llama_model_meta_key_by_index(model, i, buffer, 512)
        key = buffer.value.decode("utf-8", "replace")
        if C.llama_model_meta_val_str_by_index(model, i, buffer, len(buffer)) >= 0 and key != "tokenizer.chat_template":
            out[key] = buffer.value.decode("utf-8", "replace")
    return out
