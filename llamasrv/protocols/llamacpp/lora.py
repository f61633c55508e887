"""/lora-adapters: what a request may name in `lora`, and the defaults when it names nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import orjson

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import loader_of
from llamasrv.protocols.common.sampling import Lora
from llamasrv.protocols.common.schema import Number, String, WireSchema
from llamasrv.protocols.limits import Limits


class StandingSchema(WireSchema):
    """The body, which is an array, under the name of the field it stands for."""

    lora = Lora('[{"id", "scale"}]: adapters that are not listed are off')


class LoadSchema(WireSchema):
    """The body as an object: one more adapter, from a file in the operator's folder."""

    path = String("a file in the folder of `--lora-dir`")
    name = String("what requests call it; absent: the file's name")
    scale = Number(-100.0, 100.0, "what it counts where a request names it without one; absent: 1")


class AdapterSchema(WireSchema):
    """vLLM's body of POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

    lora_name = String("what requests call it")
    lora_path = String("a file in the folder of `--lora-dir`")


class StandingAdapters:
    def __init__(self, limits: Limits) -> None:
        self._load = loader_of(StandingSchema, limits).load
        self._load_one = loader_of(LoadSchema, limits).load
        self._load_named = loader_of(AdapterSchema, limits).load

    def parse(self, body: list[Any]) -> tuple[tuple[str, float], ...]:
        """The (name or number, scale) of each adapter."""
        adapters: tuple[tuple[str, float], ...] = self._load({"lora": body})["lora"]
        return adapters

    def parse_one(self, body: dict[str, Any]) -> tuple[str, str, float]:
        """The path, name and scale of an adapter to load."""
        data = self._load_one(body)
        if not data.get("path"):
            raise InvalidRequest("path is required", param="path", code="missing_required_parameter")
        return data["path"], data.get("name", ""), data.get("scale", 1.0)

    def parse_named(self, body: dict[str, Any], *fields: str) -> tuple[str, ...]:
        """vLLM's fields, all of them required."""
        data = self._load_named(body)
        for field in fields:
            if not data.get(field):
                raise InvalidRequest(f"{field} is required", param=field, code="missing_required_parameter")
        return tuple(data[field] for field in fields)


def adapters_body(adapters: Iterable[tuple[str, str]], standing: Iterable[tuple[int, float]]) -> bytes:
    """`adapters`: name and path of each; `standing`: number and scale of those that apply where a request names
    none."""
    scales = dict(standing)
    return orjson.dumps(
        [
            {
                "id": n,
                "name": name,
                "path": PurePath(path).name,
                "scale": scales.get(n, 0.0),
                "task_name": "",
                "prompt_prefix": "",
            }
            for n, (name, path) in enumerate(adapters)
        ]
    )


def loaded_body(number: int, name: str) -> bytes:
    return orjson.dumps({"success": True, "id": number, "name": name})
