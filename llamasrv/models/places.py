"""The default number of parallel sequences.

In a unified cell pool a place is almost free, so there are as many as batching gains from; fewer if each needs a state
or a window of its own, or if the context is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from llamasrv.engine.base.options import DEFAULT_PLACES
from llamasrv.models import memory
from llamasrv.models.gguf import Header

ON_DEVICES = 32  # devices gain from more rows than CPUs
CELLS_ON_DEVICES = 1024  # min cells per place for that many
LEAST_CELLS = 256  # min cells per place, if the context is chosen as well
OWN_SHARE = 4  # states and windows may take at most 1/4 of the memory left by the weights


def within(header: Header, shape: memory.MemoryShape, available: Callable[[], int], most: int = DEFAULT_PLACES) -> int:
    """`most`, halved until the places' own memory is a small part of the `available` bytes. Calls `available` only if
    it matters."""
    if not own_bytes(header, dataclasses.replace(shape, parallel=most)):
        return most
    room = max(0, available() - header.size) // OWN_SHARE
    while most > 1 and own_bytes(header, dataclasses.replace(shape, parallel=most)) > room:
        most //= 2
    return most


def own_bytes(header: Header, shape: memory.MemoryShape) -> int:
    """Bytes of states and windows."""
    need = memory.estimate(header, memory.wanted_cells(header, shape), shape)
    return need.states + need.windows


def for_context(places: int, cells: int) -> int:
    """The number of places that this context has room for."""
    return max(1, min(places, cells // LEAST_CELLS))
