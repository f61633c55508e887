"""POST /models/load and /models/unload, DELETE /models: llama-server's way to manage models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamasrv.protocols.limits import Limits
from llamasrv.protocols.schema import Loader, String, WireSchema

SUCCESS = b'{"success":true}'


class ModelSchema(WireSchema):
    model = String("a name or alias", required=True)


class ModelNamed:
    """A body that names a model."""

    def __init__(self, limits: Limits) -> None:
        self._load = Loader(ModelSchema, limits).load

    def parse(self, body: Mapping[str, Any]) -> str:
        name: str = self._load(body)["model"]
        return name
