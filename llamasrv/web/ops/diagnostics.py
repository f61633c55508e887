"""Diagnostics for debugging: each engine's state and each thread's stack. No content."""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import sys
from collections import Counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from gevent import Greenlet

if TYPE_CHECKING:
    from llamasrv.web.service import Service

log = logging.getLogger("llamasrv")

_DEPTH = 12  # max innermost frames to show
_STACKS = 50  # max distinct stacks to show; thousands of connections wait at the same line


def state(service: Service) -> dict[str, Any]:
    """The state as plain values, for JSON."""
    return {
        "models": {
            model.name: {"state": model.state, "engine": _engine(model.current)} for model in service.registry.models
        },
        "requests": {"open": service.stats.num_open},
        "keys": {name: {"open": q.num_open, "refused": q.num_refused} for name, q in service.access.quotas.items()},
        "threads": [_stack(frame) for frame in sys._current_frames().values()],
        "greenlets": _greenlets(),
    }


def to_log(service: Service) -> None:
    log.warning("state of the server: %s", json.dumps(state(service), default=str))


def _engine(engine: Any) -> dict[str, Any] | None:
    if engine is None:
        return None
    figures = engine.snapshot()
    figures["status"] = dataclasses.asdict(figures["status"])
    return {**figures, "stalled_seconds": round(engine.stalled_seconds, 3)}


def _greenlets() -> list[dict[str, Any]]:
    """Stacks of the waiting greenlets with their counts, most common first."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for one in gc.get_objects():
        if isinstance(one, Greenlet) and one.gr_frame is not None:
            stacks[tuple(_stack(one.gr_frame))] += 1
    return [{"count": count, "stack": list(stack)} for stack, count in stacks.most_common(_STACKS)]


def _stack(frame: FrameType | None) -> list[str]:
    """The locations of a stack, innermost first, without values: those could be users' text."""
    places: list[str] = []
    while frame is not None and len(places) < _DEPTH:
        code = frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return places
