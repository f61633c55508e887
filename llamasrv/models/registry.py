"""The models that are served, by name.

Names follow Ollama's rules: `name[:tag]` with optional host and namespace in front, a missing tag is `latest`,
an exact match wins, otherwise each part is compared without regard to case. There is no fuzzy matching beyond
that. The alias `*` answers to every name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llamasrv.engine.engine import Engine
from llamasrv.errors import ModelNotFound

CATCH_ALL = "*"
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"


@dataclass(eq=False)
class Model:
    """One served model: its engine, its names and what the operator set for it."""

    name: str
    engine: Engine
    aliases: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)  # the operator's defaults, names of SamplingParams
    chat_template: str | None = None  # Jinja source that replaces the model's own
    max_tokens: int | None = None  # most tokens of one choice, also where a request asks for more
    created: int = field(default_factory=lambda: int(time.time()))


class Registry:
    """Finds a model by what a client calls it. The first one answers where a client names none."""

    def __init__(self, models: Sequence[Model]) -> None:
        if not models:
            raise ValueError("at least one model is needed")
        self.models = tuple(models)
        self._exact: dict[str, Model] = {}
        self._folded: dict[str, Model] = {}
        self._catch_all: Model | None = None
        for model in self.models:
            for name in (model.name, *model.aliases):
                if name == CATCH_ALL:
                    self._catch_all = self._catch_all or model
                    continue
                self._exact.setdefault(name, model)
                self._folded.setdefault(canonical(name), model)

    @property
    def default(self) -> Model:
        return self.models[0]

    def find(self, name: str | None) -> Model:
        if name is None:
            return self.models[0]
        model = self._exact.get(name) or self._folded.get(canonical(name)) or self._catch_all
        if model is None:
            raise ModelNotFound(f"Model '{name}' not found", param="model")
        return model


def canonical(name: str) -> str:
    """The full name in lower case, with the parts that may be left out filled in: `Llama3` is
    `registry.ollama.ai/library/llama3:latest`."""
    path, _, last = name.lower().rpartition("/")
    last, _, tag = last.partition(":")
    parts = path.split("/") if path else []
    if not parts:
        parts = [_HOST, _NAMESPACE]
    elif len(parts) == 1:
        parts = [_HOST, parts[0]]
    return f"{'/'.join(parts)}/{last}:{tag or _TAG}"
