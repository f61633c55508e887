"""The `lora` field in llama.cpp's form: the adapters of a request."""

from __future__ import annotations

from typing import Any

from llamasrv.protocols.common.schema import Array, Invalid, check_length, wrong_type

MOST = 16  # of one request
_LARGEST = 100.0


class Lora(Array):
    """[{"id": number or name, "scale": number}]; adapters that are not listed are off."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[tuple[str, float], ...]:
        check_length(value, MOST, "entries")
        return tuple(self._entry(entry, at) for at, entry in enumerate(value))

    def _entry(self, entry: Any, at: int) -> tuple[str, float]:
        if type(entry) is not dict:
            raise wrong_type("an object", entry, at)
        name: Any = entry.get("id")
        scale: Any = entry.get("scale")
        if type(name) not in (int, str):
            raise wrong_type("a number or a name", name, at, "id")
        if type(scale) not in (int, float):
            raise wrong_type("a number", scale, at, "scale")
        if not -_LARGEST <= scale <= _LARGEST:
            raise Invalid(f"number out of range. Expected a value from -{_LARGEST:g} to {_LARGEST:g}.", at, "scale")
        return str(name), float(scale)
