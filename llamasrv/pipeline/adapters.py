"""The LoRA adapters of a request: from names and numbers to the engine's set."""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.interface import Adapter
from llamasrv.errors import InvalidRequest


def chosen(
    there: tuple[Adapter, ...],
    named: str | None,
    asked: Iterable[tuple[str, float]] | None,
    standing: Adapters = (),
) -> Adapters:
    """`named` is the adapter that the model's name chooses, with its own scale; `asked`, by name or number, override
    it.

    A request that says nothing gets the `standing` adapters, at first none.
    """
    if named is None and asked is None:
        return standing
    numbers = {adapter.name.lower(): n for n, adapter in enumerate(there)}
    scales: dict[int, float] = {}
    if named is not None:
        number = numbers[named.lower()]
        scales[number] = there[number].scale
    for name, scale in asked or ():
        found = numbers.get(name.lower(), int(name) if name.isascii() and name.isdigit() else -1)
        if not 0 <= found < len(there):
            names = ", ".join(adapter.name for adapter in there) or "none"
            raise InvalidRequest(
                f"Invalid 'lora': no adapter is named '{name[:64]}'. Available: {names}.", param="lora"
            )
        scales[found] = scale
    return tuple(sorted((number, scale) for number, scale in scales.items() if scale))
