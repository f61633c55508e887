"""Declares a field of a settings section together with the option that sets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from llamasrv.config.option import Option


def option_field(
    section: str,
    kind: str,
    default: Any,
    *flags: str,
    help: str,
    key: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    unit: int = 1,
    unset: tuple[str, ...] = (),
    words: Mapping[str, Any] | None = None,
    bare: str | None = None,
    off: tuple[str, ...] = (),
) -> Any:
    """A section's field with its option. `key` is its name in the file if that differs from the field's."""
    option = Option(
        f"{section}.{key}", flags, kind, help, default, low, high, choices, secret, unit, unset, words or {}, bare, off
    )
    return field(default=default, repr=not secret, metadata={"option": option})
