"""What another program's store adds to a model file: texts and parameters, as they are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelTexts:
    template: str = ""  # in Go's syntax
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # Ollama's names
    messages: tuple[Mapping[str, Any], ...] = ()  # role and content
    license: str = ""

    @property
    def changes_answers(self) -> bool:
        return bool(self.system or self.parameters or self.messages)
