"""Where options come from.

    TOML file  <  environment OLLAMA_*  <  environment LLAMA_ARG_* (llama-server's)  <  environment LLAMASRV_*  <  flags

An unknown key or a bad value raises ConfigError with one line: where, which key, which value, and what would be valid.
Reads only the file that it is given.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llamasrv.config import foreign, preset
from llamasrv.config.check import check_together
from llamasrv.config.option import convert, nearest, reason, written
from llamasrv.config.settings import OPTIONS, TABLE_KEYS, ModelTable, Settings, Source, fitting, value_of, with_values
from llamasrv.domain.option import PREFIX
from llamasrv.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_VARIABLE = "LLAMASRV_CONFIG"
LOAD = "load"  # in a model's table: load it at startup
# Kubernetes puts variables like these into every pod that can see a service named "llamasrv".
_SERVICE_LINK = re.compile(r"LLAMASRV_(SERVICE_(HOST|PORT\w*)=|PORT_\d+_\w+=|PORT=\w+://).*", re.DOTALL)


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    notes: tuple[str, ...] = (),
) -> Settings:
    """Settings from a TOML file, the environment and flags (by option name; None means not given)."""
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    values: dict[str, Any] = {}
    taken = foreign.from_environment(environ)
    settings = Settings(source=Source(dict(flags or {}), config), notes=(*taken.notes, *notes))
    if config is not None:
        values, tables, aliases = _from_file(config)
        settings = dataclasses.replace(settings, tables=tables, aliases=aliases)
    values.update(taken.values)
    values.update(_from_environment(environ))
    for option in OPTIONS:
        value = (flags or {}).get(option.name)
        if value is not None:
            values[option.name] = convert(option, value, f"{option.long_flag} {value!r}")
    if values.get("models_preset") is not None:
        presets, lines = preset.read(values["models_preset"], flags or {})
        settings = dataclasses.replace(settings, tables=(*settings.tables, *presets), notes=(*settings.notes, *lines))
    settings = fitting(with_values(settings, values), values)
    check_together(settings)
    for table in settings.tables:
        try:
            check_together(settings.of(table))
        except ConfigError as error:
            raise ConfigError(f"[models.{table.name}]: {error}") from None
    return settings


def load_again(settings: Settings) -> Settings:
    """Load again from the current state of the same file, environment and flags."""
    source = settings.source or Source({}, None)
    return load(source.flags, config=source.config)


def _from_file(path: Path) -> tuple[dict[str, Any], tuple[ModelTable, ...], dict[str, str]]:
    """Values by option name, models with their own options, and aliases."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    by_key = {option.key: option for option in OPTIONS}
    sections = {option.section for option in OPTIONS}
    values: dict[str, Any] = {}
    aliases = _aliases(path, document.pop("aliases", {}))
    tables = []
    for key, value in _flatten(document, sections):
        section, _, name = key.partition(".")
        if section == "models" and isinstance(value, Mapping):
            tables.append(_table(path, name, value))
            continue
        option = by_key.get(key)
        if option is None and isinstance(value, Mapping) and not name:
            meant = nearest(key, [f"[{one}]" for one in (*sections, "aliases")])
            raise ConfigError(f"{path}: [{key}]: unknown table{meant}")
        if option is None:
            raise ConfigError(f"{path}: {key} = {_show(value)}: unknown key{nearest(key, by_key)}")
        values[option.name] = convert(option, value, f"{path}: {key} = {_show(value, secret=option.secret)}")
    return values, tuple(tables), aliases


def _table(path: Path, name: str, table: Mapping[str, Any]) -> ModelTable:
    where = f"{path}: models.{name}"
    values = {}
    for key, value in table.items():
        option = TABLE_KEYS.get(key)
        if key == LOAD:
            if not isinstance(value, bool):
                raise ConfigError(f"{where}.{key} = {_show(value)}: must be true or false")
        elif option is None:
            raise ConfigError(f"{where}.{key} = {_show(value)}: unknown key{nearest(key, [*TABLE_KEYS, LOAD])}")
        else:
            values[option.name] = convert(option, value, f"{where}.{key} = {_show(value, secret=option.secret)}")
    return ModelTable(name, values, load=bool(table.get(LOAD)))


def _aliases(path: Path, aliases: Any) -> dict[str, str]:
    if not isinstance(aliases, Mapping):
        raise ConfigError(f"{path}: aliases = {_show(aliases)}: must be a table of names")
    for alias, name in aliases.items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{path}: aliases.{alias} = {_show(name)}: must be the name of a model")
    return dict(aliases)


def _flatten(document: Mapping[str, Any], sections: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if name in sections and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {option.variable: option for option in OPTIONS}
    values = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE or _is_service_link(variable, environ):
            continue
        option = by_variable.get(variable)
        if option is None:
            raise ConfigError(
                f"environment: {variable}={environ[variable]!r}: unknown name{nearest(variable, by_variable)}"
            )
        shown = _show(environ[variable], secret=option.secret)
        values[option.name] = convert(option, environ[variable], f"environment: {variable}={shown}")
    return values


def _is_service_link(variable: str, environ: Mapping[str, str]) -> bool:
    return _SERVICE_LINK.fullmatch(f"{variable}={environ[variable]}") is not None


def as_environment(settings: Settings) -> dict[str, str]:
    """Environment variables that pass these settings to a child process."""
    variables = {}
    file = settings.source.config if settings.source is not None else None
    if file is not None:
        variables[CONFIG_VARIABLE] = str(file)  # for its tables; the options are passed again below
    for option in OPTIONS:
        value = value_of(settings, option)
        text = written(option, value)
        if text is not None and (value != option.default or file is not None):
            variables[option.variable] = ",".join(text) if isinstance(text, tuple) else str(text)
    return variables


# Words for error lines


def _show(value: Any, *, secret: bool = False) -> str:
    text = "***" if secret else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# The settings of this process

_current: Settings | None = None


def use(settings: Settings) -> None:
    """Make `settings` those of this process and the workers that it forks."""
    global _current
    _current = settings


def current() -> Settings:
    """The settings in use; without `use`, those of the environment (and of the file in LLAMASRV_CONFIG)."""
    return _current if _current is not None else load()
