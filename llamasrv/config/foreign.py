"""Flags and variables of other servers, accepted next to llamasrv's own and converted to option values.

A flag for a feature that llamasrv lacks raises ConfigError with one line; a flag for what llamasrv does anyway is
logged once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llamasrv.config.foreign_flag import ForeignFlag
from llamasrv.config.llama_flags import FLAGS
from llamasrv.config.option import convert, nearest, written
from llamasrv.config.other_flags import LM_STUDIO, OLLAMA, TGI
from llamasrv.config.settings import OPTIONS
from llamasrv.config.vllm_flags import VLLM
from llamasrv.domain.option import Option
from llamasrv.errors import ConfigError

PREFIX = "LLAMA_ARG_"  # of llama-server's variables
RIVALS: Mapping[str, tuple[ForeignFlag, ...]] = {"vLLM": VLLM, "TGI": TGI, "LM Studio": LM_STUDIO, "Ollama": OLLAMA}
ON, OFF = "on", "off"  # a flag without a value; its negation

_RIVAL_VARIABLES = {flag.variable: flag for flags in RIVALS.values() for flag in flags if flag.variable}
# Kubernetes puts these into every pod that can see a service named "ollama".
_SERVICE_LINK = re.compile(r"OLLAMA_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)")
_TRUE, _FALSE = ("true", "1", "on", "enabled"), ("false", "0", "off", "disabled")
_OPTIONS: Mapping[str, Option] = {option.key: option for option in OPTIONS}


@dataclass
class Taken:
    """The result of reading flags: values by option name, and lines for the log."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, flag: ForeignFlag, text: str, where: str) -> None:
        """Add one flag as given; `where` is the prefix of error lines."""
        if flag.verdict == "same":
            option = _OPTIONS[flag.option]
            self.values[option.name] = convert(option, text, where)
        elif flag.sets is not None:
            self._set(flag, text, where)
        elif flag.verdict == "already":
            if text == OFF and flag.off:
                raise ConfigError(f"{where}: not supported: {flag.off}")
            self.notes.append(f"{where}: nothing to do: {flag.note}")
        elif text in flag.ok or (text == OFF and not flag.hint):
            self.notes.append(f"{where}: nothing to do")
        else:
            raise ConfigError(f"{where}: not supported: {flag.note}")

    def as_flags(self) -> dict[str, Any]:
        """The values in the form in which flags are given."""
        return {
            option.name: written(option, self.values[option.name]) for option in OPTIONS if option.name in self.values
        }

    def _set(self, flag: ForeignFlag, text: str, where: str) -> None:
        assert flag.sets is not None
        if text == OFF and not flag.negations and not flag.hint:
            return
        try:
            values = flag.sets(text)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        for name, value in values.items():
            option = next(option for option in OPTIONS if option.name == name)
            made = convert(option, value, where)
            self.values[name] = (*self.values.get(name, ()), *made) if option.is_list else made


def foreign() -> tuple[ForeignFlag, ...]:
    """The flags that are not llamasrv's own options."""
    others = (flag for flags in RIVALS.values() for flag in flags if flag.spec)
    own = (flag for flag in FLAGS if flag.verdict != "same" and flag.long_name not in ("--help", "--version"))
    return (*own, *others)


def is_read(variable: str) -> bool:
    """Whether an environment variable of another server sets an option here."""
    return variable.startswith(PREFIX) or variable in _RIVAL_VARIABLES


def joined(words: Iterable[str]) -> list[str]:
    """The words of a command line, where a flag with several values has them in one word, separated by commas."""
    several = {name for flag in foreign() if flag.has_several for name in flag.names}
    result: list[str] = []
    taking = False
    words = iter(words)
    for word in words:
        if word == "--":
            result += (word, *words)
        elif word.startswith("-"):
            taking = word.replace("_", "-") in several
            result.append(word)
        elif taking and not result[-1].startswith("-"):
            result[-1] += f",{word}"
        else:
            result.append(word)
    return result


def from_flags(given: Iterable[tuple[ForeignFlag, str]]) -> Taken:
    """`given` has each flag with its value; ON and OFF for flags without one."""
    taken = Taken()
    for flag, text in given:
        name = flag.negations[-1] if text == OFF and flag.negations else flag.long_name
        taken.take(flag, text, f"{name} {text!r}" if flag.hint else name)
    return taken


def from_environment(environ: Mapping[str, str]) -> Taken:
    """Read the variables of other servers, llama-server's last; unknown ones of llama-server and Ollama are logged."""
    taken = Taken()
    for variable, rival in _RIVAL_VARIABLES.items():
        if text := environ.get(variable, "").strip():
            where = f"environment: {variable}={'***' if variable.endswith('_KEY') else repr(text)}"
            taken.take(rival, text, where)
            if rival.sets is not None:
                taken.notes.append(f"{where}: used as {rival.note}")
    taken.notes += [
        f"environment: {variable}: unknown variable, ignored{nearest(variable, _RIVAL_VARIABLES)}"
        for variable in sorted(environ)
        if variable.startswith("OLLAMA_") and variable not in _RIVAL_VARIABLES and not _SERVICE_LINK.fullmatch(variable)
    ]
    taken.values.update(_vertex(environ))
    known = {flag.variable: flag for flag in FLAGS if flag.variable}
    for variable in sorted(environ):
        negated = variable.startswith(PREFIX + "NO_") and variable not in known
        name = PREFIX + variable.removeprefix(PREFIX + "NO_") if negated else variable
        text = environ[variable].strip()
        flag = known.get(name)
        if flag is None:
            if variable.startswith(PREFIX):
                taken.notes.append(f"environment: {variable}: unknown variable, ignored")
        elif text:
            where = f"environment: {variable}={'***' if name == 'LLAMA_API_KEY' else repr(text)}"
            taken.take(flag, _read(flag, text, negated, where), where)
    return taken


def _vertex(environ: Mapping[str, str]) -> dict[str, Any]:
    """The variables that Vertex AI sets in a container for predictions."""
    if environ.get("AIP_MODE") != "PREDICTION":
        return {}
    values: dict[str, Any] = {"server_predict_route": _path(environ.get("AIP_PREDICT_ROUTE") or "/predict")}
    if environ.get("AIP_HEALTH_ROUTE"):
        values["server_health_route"] = _path(environ["AIP_HEALTH_ROUTE"])
    if port := environ.get("AIP_HTTP_PORT"):
        option = next(option for option in OPTIONS if option.name == "server_port")
        values[option.name] = convert(option, port, f"environment: AIP_HTTP_PORT={port!r}")
    return values


def _path(text: str) -> str:
    return text if text.startswith("/") else f"/{text}"


def _read(flag: ForeignFlag, text: str, negated: bool, where: str) -> str:
    if negated:
        return OFF
    if flag.hint:
        return text
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{where}: must be true or false")
    return ON if text.lower() in _TRUE else OFF
