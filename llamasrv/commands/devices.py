"""`--list-devices`: the devices llama.cpp can compute on besides the CPU."""

from __future__ import annotations

from llamasrv.engine.backend.rpc import described
from llamasrv.models.memory import as_gib


def run() -> int:
    print("Available devices:")
    for name, description, total, free in described():
        print(f"  {name}: {description} ({as_gib(total)}, {as_gib(free)} free)")
    return 0
