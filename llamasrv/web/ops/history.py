"""The last hour of each model's figures, so that a page that opens has something to plot.

Sampled even when no page is open; numbers only. The totals count since the start: pages take differences.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from llamasrv.models.model import Model
from llamasrv.models.registry import Registry

EVERY = 15.0  # seconds between samples
HOUR = 240  # samples kept


class FigureHistory:
    def __init__(self, registry: Registry, most: int = HOUR) -> None:
        self._registry = registry
        self.samples: deque[dict[str, Any]] = deque(maxlen=most)

    def keep(self) -> None:
        """Sample forever."""
        while True:
            self.sample()
            time.sleep(EVERY)

    def sample(self) -> None:
        models = {model.name: _sample(model) for model in self._registry.models if model.state == "loaded"}
        self.samples.append({"t": time.time(), "models": models})


def _sample(model: Model) -> dict[str, Any]:
    snapshot = model.engine.snapshot()
    return {
        "running": len(snapshot["running"]),
        "num_waiting": snapshot["num_waiting"],
        "totals": totals(model),
    }


def totals(model: Model) -> dict[str, Any]:
    m = model.engine.metrics
    return {
        "generated": m.generated_tokens,
        "prompt": m.prompt_tokens,
        "cached": m.cached_tokens,
        "drafted": m.drafted_tokens,
        "accepted": m.accepted_tokens,
        "sources": {"computed": m.prompt_tokens, **m.reused_tokens},
        "steps": m.steps,
        "parts": {name: histogram.total for name, histogram in m.step_part_seconds.items()},
    }
