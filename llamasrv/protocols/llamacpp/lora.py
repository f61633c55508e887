"""GET /lora-adapters: what a request may name in `lora`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

import orjson


def adapters_body(adapters: Iterable[tuple[str, str]]) -> bytes:
    """`adapters` are name and path of each. `scale` is what counts where a request names none: nothing."""
    return orjson.dumps([
        {"id": n, "name": name, "path": PurePath(path).name, "scale": 0.0, "task_name": "", "prompt_prefix": ""}
        for n, (name, path) in enumerate(adapters)
    ])
