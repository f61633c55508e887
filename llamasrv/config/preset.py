"""--models-preset: llama-server's INI file of models, converted to llamasrv's own tables.

A section is a model, [*] applies to all; a key is a flag without its dashes, short or long, or a variable.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llamasrv.config.foreign import OFF, ON, Taken
from llamasrv.config.foreign_flag import ForeignFlag
from llamasrv.config.llama_flags import FLAGS
from llamasrv.config.option import convert, nearest, reason
from llamasrv.config.settings import OPTIONS, TABLE_KEYS, ModelTable
from llamasrv.domain.option import Option
from llamasrv.errors import ConfigError

ALL = "*"
_HEAD = "\0"  # section name for lines before the first section
_LOAD = "load-on-startup"
_DEDUP = "dedup-cache-models"
_IGNORED = ("version", "stop-timeout")  # there are no child processes to stop
_TRUE, _FALSE = ("true", "1", "on", "yes", "enabled"), ("false", "0", "off", "no", "disabled")


class _Parser(configparser.ConfigParser):
    """Keeps the case of names."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def read(path: Path, given: Mapping[str, Any]) -> tuple[tuple[ModelTable, ...], list[str]]:
    """The models in the file, and lines for the log. Options of the command line (`given`) override the file."""
    parser = _Parser(delimiters="=", comment_prefixes=(";", "#"), interpolation=None, strict=False, default_section="")
    try:
        parser.read_string(f"[{_HEAD}]\n{path.read_text('utf-8')}", str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    except configparser.Error as error:
        raise ConfigError(f"{path}: not a valid INI file: {' '.join(str(error).split())}") from None
    shared = _Section(path, ALL)
    if ALL in parser:
        shared.take(parser[ALL])
    tables, notes = [], list(shared.taken.notes)
    for name in parser.sections():
        if name in (ALL, _HEAD):
            continue
        section = _Section(path, name)
        section.take(parser[name])
        values = {**shared.taken.values, **section.taken.values}
        kept = {key: value for key, value in values.items() if key not in given and key in _TABLE_NAMES}
        load, dedup = ({**shared.switches, **section.switches}.get(key, False) for key in (_LOAD, _DEDUP))
        tables.append(ModelTable(name, kept, load=load, shows_file=not dedup))
        notes += section.taken.notes
    return tuple(tables), notes


_TABLE_NAMES = {option.name for option in TABLE_KEYS.values()}
_OPTION_FLAGS = {flag: option for option in OPTIONS for flag in option.flags}
_FLAGS = {name: flag for flag in FLAGS for name in (*flag.names, *flag.negations)}
_VARIABLES = {flag.variable: flag for flag in FLAGS if flag.variable}


class _Section:
    def __init__(self, path: Path, name: str) -> None:
        self.where = f"{path}: [{name}]"
        self.taken = Taken()
        self.switches: dict[str, bool] = {}

    def take(self, lines: Mapping[str, str]) -> None:
        for key, text in lines.items():
            where = f"{self.where}: {key} = {text!r}"
            if key in (_LOAD, _DEDUP):
                self.switches[key] = _switch(text, where)
            elif key in _IGNORED:
                self.taken.notes.append(f"{where}: ignored")
            else:
                self._take(key, text, where)

    def _take(self, key: str, text: str, where: str) -> None:
        dashed = f"--{key.replace('_', '-')}"
        names = (f"-{key}", dashed, dashed.replace("--no-", "--", 1))
        flag = _VARIABLES.get(key) or next((_FLAGS[name] for name in names if name in _FLAGS), None)
        option = next((_OPTION_FLAGS[name] for name in names if name in _OPTION_FLAGS), None)
        if flag is not None and (flag.verdict != "same" or option is None):
            self.taken.take(flag, _switched(flag, text, where, key.startswith("no-")), where)
        elif option is not None:
            negated = option.kind == "bool" and key.startswith("no-")
            self._set(option, str(not _switch(text, where)) if negated else text, where)
        else:
            raise ConfigError(f"{where}: unknown key{nearest(key, [n.lstrip('-') for n in (*_OPTION_FLAGS, *_FLAGS)])}")

    def _set(self, option: Option, text: str, where: str) -> None:
        if option.name not in _TABLE_NAMES:
            self.taken.notes.append(f"{where}: ignored: a server option, not a model's")
        else:
            self.taken.values[option.name] = convert(option, text, where)


def _switched(flag: ForeignFlag, text: str, where: str, negated: bool) -> str:
    if flag.hint:
        return text
    return ON if _switch(text, where) != negated else OFF


def _switch(text: str, where: str) -> bool:
    if text.strip().lower() not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{where}: must be true or false")
    return text.strip().lower() in _TRUE
