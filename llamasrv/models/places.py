"""How many sequences run at once where the operator leaves it open.

In a unified pool of cells a place costs next to nothing by itself, so there are as many as batches gain from; fewer
where each takes a state or a window of its own, or where the context is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from llamasrv.engine.options import DEFAULT_PLACES
from llamasrv.models import memory
from llamasrv.models.gguf import Header

ON_DEVICES = 32  # a device gains from more rows than a CPU does
CELLS_ON_DEVICES = 1024  # of each place, where there are so many
LEAST_CELLS = 256  # of each place, where the context is chosen, too
OWN_SHARE = 4  # of the memory beside the weights, at most this part is for states and windows


def within(header: Header, shape: memory.MemoryShape, available: Callable[[], int], most: int = DEFAULT_PLACES) -> int:
    """`most`, or half of it, and so on, until what the places themselves take is a small part of the `available`
    bytes. `available` is called only where it matters."""
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
    """As many as a chosen context leaves room for."""
    return max(1, min(places, cells // LEAST_CELLS))
