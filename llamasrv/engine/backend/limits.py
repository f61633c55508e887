"""Architectures that the library loads but computes wrongly or aborts at, and the restrictions that some need.

Checked when a model is loaded: later the process would abort or produce garbage.
"""

from __future__ import annotations

from typing import Any

from llamasrv.engine.backend.library import C
from llamasrv.engine.base.interface import LoadFailed, Together

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
    "qwen3tts": "it makes speech, not text",
    "pockettts": "it makes speech, not text",
    "wavtokenizer-dec": "it makes speech, not text",
}


def check_generates(path: str, model: Any, architecture: str) -> None:
    """Raises LoadFailed for a model that cannot generate text here."""
    reason = _REFUSED.get(architecture)
    if C.llama_model_is_diffusion(model):
        reason = "it writes by diffusion, not token by token"
    elif C.llama_model_has_encoder(model):
        reason = "it reads prompts with an encoder of its own (T5), which is not served"
    if reason is not None:
        raise LoadFailed(f"{path}: {architecture} models cannot be served: {reason}")


def together(architecture: str) -> Together:
    return _TOGETHER.get(architecture, Together.ANY)
