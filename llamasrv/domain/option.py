"""The declaration of an operator's option, as plain data next to the field that it sets.

`config/option.py` parses and writes the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "LLAMASRV_"  # of environment variables


@dataclass(frozen=True)
class Option:
    """The declaration of an option. `default` None means unset: the model or the machine decides."""

    key: str  # name in the TOML file, including the table
    flags: tuple[str, ...]
    kind: str
    help: str
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    unit: int = 1  # unit of a plain number, for sizes
    unset: tuple[str, ...] = ()  # spellings of None on the command line and in files
    words: Mapping[str, Any] = field(default_factory=dict)  # further spellings of values
    bare: str | None = None  # value of the flag given without one, if that is allowed
    off: tuple[str, ...] = ()  # further names of the negation
    place: tuple[str, str] = ("", "")  # where the value is stored: section and field of Settings

    @property
    def section(self) -> str:
        """The table in the TOML file."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """The option's name among parsed flags."""
        return self.key.replace(".", "_")

    @property
    def is_list(self) -> bool:
        return self.kind in ("list", "adapters", "endpoints", "samplers", "ratios", "cpus", "sizes")

    @property
    def variable(self) -> str:
        return PREFIX + self.long_flag[2:].replace("-", "_").upper()

    @property
    def long_flag(self) -> str:
        return next(flag for flag in self.flags if flag.startswith("--"))

    @property
    def expects(self) -> str:
        """What a valid value looks like, for error messages and tables."""
        if self.choices:
            return ", ".join(self.choices)
        words = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "text": "text",
            "path": "a path",
            "list": "a list",
            "adapters": "a list",
            "endpoints": "a list",
            "samplers": "a list",
            "ratios": "numbers, separated by commas",
            "cpus": "CPUs such as 0-3 or 0,2,4-7",
            "sizes": "sizes such as 512MiB, separated by commas",
            "layers": "two layers such as 10-20",
            "size": "a size like 4MiB",
            "ms": "a number",
            "json": "a JSON object",
            "currency": "a code of three letters such as USD or EUR",
            "prices": 'numbers for input, cached and output, such as {"input": 0.5, "cached": 0.1, "output": 1.5}',
        }[self.kind]
        if self.kind in ("size", "sizes") or (self.low is None and self.high is None):
            return words
        if self.high is None:
            return f"{words}, {_short(self.low)} or more"
        return f"{words}, {_short(self.low)} to {_short(self.high)}"


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:g}" if isinstance(number, float) else str(number)


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
    """A dataclass's field with its option. `key` is its name in the file if that differs from the field's."""
    option = Option(
        f"{section}.{key}", flags, kind, help, default, low, high, choices, secret, unit, unset, words or {}, bare, off
    )
    return field(default=default, repr=not secret, metadata={"option": option})
