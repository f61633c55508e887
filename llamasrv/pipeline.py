"""Where chat and engine meet: a GenerateRequest in, domain events out; the same for every protocol."""

from __future__ import annotations

from llamasrv.models.registry import Registry


class Pipeline:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
