"""GET /api/v0/models: the served models as LM Studio lists them. Plain facts go in, JSON comes out.

Fields: https://lmstudio.ai/docs/developer/rest/endpoints
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson


class StudioModel(NamedTuple):
    """One model; `context` is the max tokens of a sequence, 0 if unknown."""

    name: str
    architecture: str = ""
    quantisation: str = ""
    capabilities: Sequence[str] = ()
    context: int = 0
    trained_context: int = 0
    is_loaded: bool = False


def list_body(models: Iterable[StudioModel]) -> bytes:
    return orjson.dumps({"object": "list", "data": [_entry(model) for model in models]})


def one_body(model: StudioModel) -> bytes:
    return orjson.dumps(_entry(model))


def _entry(model: StudioModel) -> dict[str, Any]:
    able = model.capabilities
    kind = "vlm" if "vision" in able else "embeddings" if "embedding" in able and "completion" not in able else "llm"
    entry = {
        "id": model.name,
        "object": "model",
        "type": kind,
        "publisher": model.name.rpartition("/")[0],
        "arch": model.architecture,
        "compatibility_type": "gguf",
        "quantization": model.quantisation,
        "state": "loaded" if model.is_loaded else "not-loaded",
        "max_context_length": model.trained_context or model.context,
        "capabilities": ["tool_use"] if "tools" in able else [],
    }
    return entry | ({"loaded_context_length": model.context} if model.is_loaded and model.context else {})
