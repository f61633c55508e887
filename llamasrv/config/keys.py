"""Reads API key files.

A .toml file has a table for each key: its SHA-256, scopes and limits; it does not reveal the keys themselves. Any other
file has one key per line; these have all scopes and are called by their digest.
"""

from __future__ import annotations

import re
import secrets
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

from llamasrv.config import Settings
from llamasrv.config.option import as_toml_value, nearest
from llamasrv.domain.key import SCOPES, Key
from llamasrv.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BOUNDS = ("requests_per_minute", "tokens_per_minute", "tokens_per_month", "concurrency")
FIELDS = ("sha256", "scopes", "models", *BOUNDS, "expires", "old_sha256", "old_expires")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def of(settings: Settings) -> tuple[Key, ...]:
    """All valid keys; none means that access is open. Raises ConfigError."""
    keys = [Key.unnamed(key) for key in dict.fromkeys(settings.api_keys())]
    path = settings.server.api_key_file
    if path is not None and path.suffix == ".toml":
        keys += read(path)
    if len({key.name for key in keys}) < len(keys):
        raise ConfigError(
            "server.api_key_file: the name of a key collides with a key of server.api_key (key- and its digest)"
        )
    return tuple(keys)


def read(path: Path) -> list[Key]:
    """The keys in a TOML file: `[keys.NAME]` with `sha256` and, optionally, `scopes` and limits."""

    def refuse(message: str) -> ConfigError:
        return ConfigError(f"server.api_key_file = {str(path)!r}: {message}")

    try:
        return parse(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(getattr(error, "strerror", None) or "not UTF-8 text") from None
    except ValueError as error:
        raise refuse(str(error)) from None


def parse(text: str) -> list[Key]:
    """The keys in a file's text. Raises ValueError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    tables = document.get("keys")
    if document.keys() - {"keys"} or not isinstance(tables, Mapping) or not tables:
        raise ValueError("expected only [keys.NAME] tables")
    return [_key(name, table) for name, table in tables.items()]


def is_open_to_others(path: Path) -> bool:
    """Whether users other than the owner and group may read the file."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _key(name: str, table: Any) -> Key:
    where = f"keys.{name}"
    if not NAME.fullmatch(name):
        raise ValueError(f"{where}: a name must consist of up to 64 letters, digits, '-', '_' and '.'")
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table")
    for field in table:
        if field not in FIELDS:
            raise ValueError(f"{where}.{field}: unknown key{nearest(field, FIELDS)}")
    scopes = table.get("scopes", list(SCOPES))
    for field in ("sha256", "old_sha256"):
        digest = table.get(field)
        if (digest is not None or field == "sha256") and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            raise ValueError(f"{where}.{field}: expected 64 hexadecimal digits")
    if not isinstance(scopes, list) or not scopes or not set(map(str, scopes)) <= set(SCOPES):
        raise ValueError(f"{where}.scopes: expected a list of {', '.join(SCOPES)}")
    for field in BOUNDS:
        bound = table.get(field)
        if bound is not None and (type(bound) is not int or bound < 1):
            raise ValueError(f"{where}.{field}: expected a whole number, 1 or more")
    models = table.get("models")
    if models is not None and not (isinstance(models, list) and models and all(isinstance(m, str) for m in models)):
        raise ValueError(f"{where}.models: expected a list of names of models")
    if ("old_sha256" in table) != ("old_expires" in table):
        raise ValueError(f"{where}: old_sha256 and old_expires belong together")
    old = table.get("old_sha256")
    return Key(
        name,
        bytes.fromhex(table["sha256"]),
        frozenset(scopes),
        **{field: table.get(field) for field in BOUNDS},
        models=None if models is None else frozenset(models),
        expires=_time(table.get("expires"), f"{where}.expires"),
        old_digest=None if old is None else bytes.fromhex(old),
        old_expires=_time(table.get("old_expires"), f"{where}.old_expires"),
    )


def _time(value: Any, where: str) -> float | None:
    """Seconds since the epoch. A date alone is its beginning; without a zone it is in UTC."""
    if value is None:
        return None
    if not isinstance(value, date):
        raise ValueError(f"{where}: expected a date such as 2030-12-31, or one with a time, without quotes")
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)).timestamp()


def new_key() -> str:
    return "sk-" + secrets.token_urlsafe(32)


def entry(
    name: str, key: str, scopes: Iterable[str], bounds: Mapping[str, int | None], models: Sequence[str] = ()
) -> str:
    """The table of a key, as TOML. Without models it may use all of them."""
    lines = [f"[keys.{name if '.' not in name else repr(name)}]", f'sha256 = "{sha256(key.encode()).hexdigest()}"']
    lines.append("scopes = [" + ", ".join(f'"{scope}"' for scope in scopes) + "]")
    if models:
        lines.append(f"models = {as_toml_value(tuple(models))}")
    lines += [f"{field} = {bound}" for field, bound in bounds.items() if bound is not None]
    return "\n".join(lines) + "\n"
