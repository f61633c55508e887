"""Model management in llama-server's way: POST and DELETE /models, /models/load and /models/unload, /models/sse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.schema import String, WireSchema

SUCCESS = b'{"success":true}'


class ModelSchema(WireSchema):
    model = String("a name or alias", required=True)


class ModelNamed(SchemaEndpoint):
    """A body that names a model."""

    schema = ModelSchema

    def parse(self, body: Mapping[str, Any]) -> str:
        name: str = self._load(body)["model"]
        return name


# A model's states in llama-server's words.
_STATUS = {"waiting": "loading", "checking": "loading", "unloading": "loaded"}


def event(model: str, name: str, data: Mapping[str, Any] | None = None) -> bytes:
    """One event of GET /models/sse."""
    return orjson.dumps({"model": model, "event": name, "data": data or {}})


def status_event(model: str, state: str) -> bytes:
    return event(model, "model_status", {"status": _STATUS.get(state, state)})
