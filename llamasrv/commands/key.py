"""`llamasrv key`: creates an API key, prints it once, and adds its entry to the keys file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from llamasrv.config import keys
from llamasrv.errors import ConfigError


def run(
    name: str,
    file: Path | None,
    scopes: tuple[str, ...],
    bounds: Mapping[str, int | None],
    models: tuple[str, ...] = (),
) -> int:
    if not keys.NAME.fullmatch(name):
        raise ConfigError(f"{name!r}: a name must consist of up to 64 letters, digits, '-', '_' and '.'")
    key = keys.new_key()
    entry = keys.entry(name, key, scopes, bounds, models)
    if file is None:
        click.echo(f"{key}\n{entry}", nl=False)
        return 0
    if file.suffix != ".toml":
        raise ConfigError(f"{file}: a file of key digests must be named *.toml")
    if file.exists() and any(other.name == name for other in keys.read(file)):
        raise ConfigError(f"{file}: a key named {name} already exists")
    try:
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as out:
            out.write(("\n" if out.tell() else "") + entry)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    click.echo(key)
    return 0
