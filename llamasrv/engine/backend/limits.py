"""Architectures that the library loads but computes wrongly or aborts at, and the restrictions that some need.

Checked when a model is loaded: later the process would abort or produce garbage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamasrv.engine.backend.library import C
from llamasrv.engine.base.interface import LoadFailed, Together
from llamasrv.engine.base.options import EngineOptions

# Their graphs mix up sequences with more than one token in a batch; plamo2's may also abort.
_TOGETHER = {
    "rwkv6qwen2": Together.ONE_PROMPT,
    "arwkv7": Together.ONE_PROMPT,
    "plamo2": Together.ONE_LANE,
}
_REFUSED = {
    "chameleon": "llama.cpp has half an implementation of it, which aborts the process",
    "plm": "llama.cpp aborts the process at its values",
    "cogvlm": "llama.cpp reads its logits from the wrong rows",
    "eagle3": "it drafts for another model: give it with --model-draft",
    "dflash": "it drafts for another model: give it with --model-draft",
    "gemma4-assistant": "it drafts for another model: give it with --model-draft",
    "qwen3tts": "it makes speech: give the projector that belongs to it with --mmproj",
    "pockettts": "it makes speech: give the projector that belongs to it with --mmproj",
    "wavtokenizer-dec": "it makes speech, not text",
}
_HEADS = frozenset(("kev", "laya", "clef", "lfm2-d1-omni", "vllm-d3"))
"""Decision models that answer with a head of their own, which the library has not; others read tokens."""


def check_generates(path: str, model: Any, architecture: str, metadata: Mapping[str, str]) -> None:
    """Raises LoadFailed for a model that cannot generate text here."""
    decides = metadata.get(f"{architecture}.decision.type")
    if decides in _HEADS:
        raise LoadFailed(f"{path}: decision models of type {decides} cannot be served: llama.cpp lacks their head")
    reason = _REFUSED.get(architecture)
    if C.llama_model_is_diffusion(model):
        reason = "it writes by diffusion, not token by token"
    elif C.llama_model_has_encoder(model):
        reason = "it reads prompts with an encoder of its own (T5), which is not served"
    if reason is not None:
        raise LoadFailed(f"{path}: {architecture} models cannot be served: {reason}")


def together(architecture: str) -> Together:
    return _TOGETHER.get(architecture, Together.ANY)


def rows_and_ubatch(o: EngineOptions, *, least: int, whole: int, has_window: bool) -> tuple[int, int]:
    """Max rows of a batch, and how many of them the library computes together. `least`: lanes, each of which may have
    a row. `whole`: max rows of an image that must be computed in one step.

    With a sliding window a batch is one ubatch. The library looks for the cells of all ubatches before it computes the
    first (llama_kv_cache::prepare). A later one may take cells that will have left the window by then, and
    apply_ubatch purges all earlier positions of their sequence with them; prepare brings back only the cells taken, so
    the first ubatch lacks part of its window.
    """
    rows = max(min(o.batch_size, o.ubatch_size) if has_window else o.batch_size, least, whole)
    return rows, rows if has_window else min(max(o.ubatch_size, whole), rows)
