"""One flag or variable of another server (llama-server, vLLM, TGI, LM Studio, Ollama), and what llamasrv does with it.

same       an option with the same name, short form and meaning
maps       another option does it; `sets` converts the value
already    accepted: llamasrv does that anyway, or it has no effect here
no         refused, with a hint what to use instead

Specifications use the notation of llama-server's help, with negated names after a slash; NAME... takes several words.
A variable without a flag has an empty one. `ok` are values that request only what llamasrv does anyway; `off` is why
the negation is refused. The flags themselves are in llama_flags.py, vllm_flags.py and other_flags.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Sets = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class ForeignFlag:
    spec: str
    verdict: str
    variable: str | None = None  # environment variable
    note: str = ""
    option: str = ""  # key of the option
    sets: Sets | None = None  # converts the given text to values by option name
    ok: tuple[str, ...] = ()
    off: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return _names(self.spec.partition(" / ")[0])

    @property
    def negations(self) -> tuple[str, ...]:
        return _names(self.spec.partition(" / ")[2])

    @property
    def hint(self) -> str:
        """The placeholder for the value in the help; "" for flags without one."""
        if not self.spec:
            return "VALUE"
        return self.spec.partition(" / ")[0].split(", ")[-1].partition(" ")[2]

    @property
    def has_two(self) -> bool:
        """Whether it takes two values."""
        return bool(re.fullmatch(r"[A-Z]+ [A-Z]+", self.hint))

    @property
    def has_several(self) -> bool:
        """Whether all words up to the next flag are its values."""
        return bool(re.fullmatch(r"[A-Z=]+\.\.\.", self.hint))

    @property
    def long_name(self) -> str:
        """The long flag, else the first, else the variable."""
        return next((name for name in self.names if name.startswith("--")), (*self.names, self.variable or "")[0])


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"(?:^|, )(--?[A-Za-z][\w.-]*)", text))


def same(spec: str, option: str, variable: str | None = None) -> ForeignFlag:
    return ForeignFlag(spec, "same", variable, option=option)


def maps(spec: str, note: str, sets: Sets, variable: str | None = None) -> ForeignFlag:
    return ForeignFlag(spec, "maps", variable, note, sets=sets)


def already(spec: str, note: str, variable: str | None = None, off: str = "") -> ForeignFlag:
    return ForeignFlag(spec, "already", variable, note, off=off)


def no(spec: str, note: str, variable: str | None = None, ok: tuple[str, ...] = ()) -> ForeignFlag:
    return ForeignFlag(spec, "no", variable, note, ok=ok)
