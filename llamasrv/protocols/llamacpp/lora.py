"""/lora-adapters: what a request may name in `lora`, and what counts where it names nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import orjson

from llamasrv.protocols.common.lora import Lora
from llamasrv.protocols.common.schema import Loader, WireSchema
from llamasrv.protocols.limits import Limits


class StandingSchema(WireSchema):
    """The body, which is an array, under the name of the field that it stands for."""

    lora = Lora('[{"id", "scale"}]: adapters that are not in it do not count')


class StandingAdapters:
    def __init__(self, limits: Limits) -> None:
        self._load = Loader(StandingSchema, limits).load

    def parse(self, body: list[Any]) -> tuple[tuple[str, float], ...]:
        """(name or number, scale) of each."""
        return self._load({"lora": body})["lora"]


def adapters_body(adapters: Iterable[tuple[str, str]], standing: Iterable[tuple[int, float]]) -> bytes:
    """`adapters`: name and path of each; `standing`: number and scale of what counts where a request names none."""
    scales = dict(standing)
    return orjson.dumps([
        {
            "id": n, "name": name, "path": PurePath(path).name, "scale": scales.get(n, 0.0), "task_name": "",
            "prompt_prefix": "",
        }
        for n, (name, path) in enumerate(adapters)
    ])  # fmt: skip
