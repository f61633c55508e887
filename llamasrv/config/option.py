"""Parses the values of options from text, TOML and flags, and writes them."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from llamasrv.domain.option import Option
from llamasrv.domain.params import SAMPLERS, sampler_named
from llamasrv.domain.prices import Prices
from llamasrv.engine.base.options import Adapter
from llamasrv.errors import ConfigError

Number = TypeVar("Number", int, float)


def convert(option: Option, value: Any, where: str) -> Any:
    """Convert to the option's type. Raises ConfigError, starting with `where`."""
    try:
        if isinstance(value, (str, int, float)) and _plain(value) in option.unset:
            return None
        if isinstance(value, (str, int, float)) and _plain(value) in option.words:
            return option.words[_plain(value)]
        return _CONVERTERS[option.kind](option, value)
    except ValueError as error:
        unit = " (seconds)" if option.kind == "float" and option.help.startswith("Seconds") else ""
        raise ConfigError(f"{where}: {str(error) or f'must be {option.expects}{unit}'}") from None


def _plain(value: str | int | float) -> str:
    if isinstance(value, str):
        return re.sub(r"^(-?\d+)\.0*$", r"\1", value.strip().lower())
    return f"{value:g}" if type(value) is float else str(value)


def written(option: Option, value: Any) -> Any:
    """The value in a form that `convert` can read from a file; None if there is nothing to write."""
    if value is None:
        return _number_or_text(option.unset[0]) if option.unset else None
    if option.kind == "ms":
        return value * 1000
    if option.kind == "size":
        return as_size(value)
    if option.kind == "json":
        return json.dumps(value)
    if option.kind == "prices":
        return json.dumps(value._asdict())
    if option.kind == "ratios":
        return tuple(f"{number:g}" for number in value)
    if option.kind == "sizes":
        return tuple(map(as_size, value))
    if option.kind == "cpus":
        return tuple(map(str, value))
    if option.kind == "layers":
        return f"{value[0]}-{value[1]}"
    if option.kind == "adapters":
        return tuple(f"{one.name}={one.path}" + (f"@{one.scale:g}" if one.scale != 1 else "") for one in value)
    return value


def shown(option: Option, value: Any) -> str:
    """A value in TOML syntax."""
    return as_toml_value(written(option, value))


def as_toml_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(as_toml_value, value)) + "]"
    if isinstance(value, (int, float)):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _number_or_text(word: str) -> int | str:
    return int(word) if word.lstrip("-").isdigit() else word


def _int(option: Option, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9_]{1,18}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return _ranged(option, value)


def _float(option: Option, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError from None
    if not math.isfinite(number):
        raise ValueError
    return _ranged(option, number)


def _ranged(option: Option, value: Number) -> Number:
    if (option.low is not None and value < option.low) or (option.high is not None and value > option.high):
        raise ValueError
    return value


def _bool(option: Option, value: Any) -> bool:
    words = dict.fromkeys(("true", "yes", "on", "1", "enabled"), True)
    words |= dict.fromkeys(("false", "no", "off", "0", "disabled"), False)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError


def _text(option: Option, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _path(option: Option, value: Any) -> Path:
    if isinstance(value, Path):
        return value
    return Path(_text(option, value)).expanduser()


def _json(option: Option, value: Any) -> Mapping[str, Any]:
    """A JSON object, or a table in the file."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError from None
    if not isinstance(value, Mapping):
        raise ValueError
    return dict(value)


def _prices(option: Option, value: Any) -> Prices:
    """JSON or a table of prices. Without `cached`, cached tokens cost as much as others."""
    if isinstance(value, Prices):
        return value
    given = _json(option, value)
    if unknown := [name for name in given if name not in Prices._fields]:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(Prices._fields)}")
    numbers = {name: _float(option, price) for name, price in given.items()}
    if missing := [name for name in ("input", "output") if name not in numbers]:
        raise ValueError(f"lacks {missing[0]!r}: it must be {option.expects}")
    return Prices(**{"cached": numbers["input"]} | numbers)


def _currency(option: Option, value: Any) -> str:
    text = _text(option, value).strip().upper()
    if not re.fullmatch("[A-Z]{3}", text):
        raise ValueError
    return text


# llama-server's spellings of on, off and auto.
_SWITCH = {"1": "on", "true": "on", "enabled": "on", "0": "off", "false": "off", "disabled": "off", "-1": "auto"}


def _choice(option: Option, value: Any) -> str:
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in option.choices and "on" in option.choices:
            word = _SWITCH.get(word, word)
        if word in option.choices:
            return word
    raise ValueError(f"must be one of {option.expects}{nearest(str(value), option.choices)}")


def _ms(option: Option, value: Any) -> float:
    return _float(option, value) / 1000


def _list(option: Option, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = re.split(r"[,;]", value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of strings")
    pieces = tuple(piece.strip() for item in value for piece in re.split(r"[,;]", item) if piece.strip())
    for piece in pieces if option.choices else ():
        if piece not in option.choices:
            raise ValueError(f"{piece!r} is not one of {option.expects}{nearest(piece, option.choices)}")
    return pieces


_ADAPTER = re.compile(r"([\w.-]{1,64})=(.+?)(?:@(-?\d{1,4}(?:\.\d{1,6})?))?")  # name, file, scale


_SCALE = re.compile(r"@-?[\d.]+$")


def _adapters(option: Option, value: Any) -> tuple[Adapter, ...]:
    """A list of NAME=FILE@SCALE; a bare FILE is named after itself. A table has NAME = FILE, or NAME = {path,
    scale}."""
    if isinstance(value, Mapping):
        tables = {name: one if isinstance(one, Mapping) else {"path": one} for name, one in value.items()}
        if not all(set(one) <= {"path", "scale"} and isinstance(one.get("path"), str) for one in tables.values()):
            raise ValueError("must be a table of files: NAME = FILE.gguf, or NAME = {path = FILE.gguf, scale = 1.0}")
        value = [f"{name}={one['path']}@{one.get('scale', 1.0)}" for name, one in tables.items()]
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, (str, Adapter)) for item in value):
        raise ValueError("must be a list of NAME=FILE")
    adapters = [item for item in value if isinstance(item, Adapter)]
    texts = [piece.strip() for item in value if isinstance(item, str) for piece in item.split(",") if piece.strip()]
    named = [text if "=" in text else f"{Path(_SCALE.sub('', text)).stem}={text}" for text in texts]
    for text in named:
        match = _ADAPTER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} must be NAME=FILE.gguf, with @SCALE if it is not 1")
        adapters.append(Adapter(match[1], match[2], float(match[3] or 1)))
    if len({adapter.name.lower() for adapter in adapters}) < len(adapters):
        raise ValueError("two adapters have the same name")
    return tuple(adapters)


def _ratios(option: Option, value: Any) -> tuple[float, ...]:
    if isinstance(value, (list, tuple)) and all(type(item) in (int, float) for item in value):
        value = [str(item) for item in value]
    numbers = tuple(_float(option, text) for item in _list(option, value) for text in item.split("/"))
    if any(number < 0 for number in numbers) or (numbers and not sum(numbers)):
        raise ValueError
    return numbers


_MOST_CPUS = 4096


def _cpus(option: Option, value: Any) -> tuple[int, ...]:
    found: set[int] = set()
    if isinstance(value, (list, tuple)):
        value = [str(one) if type(one) is int else one for one in value]
    for text in _list(option, value):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
        if match is None or not int(match[1]) <= int(match[2] or match[1]) < _MOST_CPUS:
            raise ValueError
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def _layers(option: Option, value: Any) -> tuple[int, int]:
    if isinstance(value, tuple) and len(value) == 2:
        value = f"{value[0]}-{value[1]}"
    match = re.fullmatch(r"\s*(\d{1,5})-(\d{1,5})\s*", value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError
    return int(match[1]), int(match[2])


_ENDPOINT = re.compile(r"[A-Za-z0-9.-]+:(\d{1,5})")
MOST_ENDPOINTS = 16  # GGML_RPC_MAX_SERVERS


def _endpoints(option: Option, value: Any) -> tuple[str, ...]:
    texts = _list(option, value)
    for text in texts:
        match = _ENDPOINT.fullmatch(text)
        if match is None or not 0 < int(match[1]) < 65536:
            raise ValueError(f"{text!r} must be HOST:PORT")
    if len(set(texts)) < len(texts) or len(texts) > MOST_ENDPOINTS:
        raise ValueError(f"at most {MOST_ENDPOINTS} machines, without duplicates")
    return texts


def _samplers(option: Option, value: Any) -> tuple[str, ...]:
    names = []
    for text in _list(option, value):
        name = sampler_named(text)
        if name is None:
            raise ValueError(f"unknown sampler {text!r}{nearest(text, SAMPLERS)}")
        names.append(name)
    return tuple(names)


def _size(option: Option, value: object) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(i?B)?\s*", value, re.IGNORECASE)
        if match is None:
            raise ValueError
        plain = not match[2] and not match[3]
        unit: int = option.unit if plain else 1024 ** " KMGT".index(match[2].upper() or " ")
        value = int(float(match[1]) * unit)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    else:
        value *= option.unit
    if (option.low is not None and value < option.low) or (option.high is not None and value > option.high):
        raise ValueError(f"must be from {as_size(option.low)} to {as_size(option.high)}")
    return value


def as_size(value: float | None) -> str:
    """Bytes in a readable form, exact if that is short: 16MiB, 1.5GiB, 1000B."""
    number = int(value or 0)
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= unit and (number * 10) % unit == 0:
            return f"{number / unit:g}{name}"
    return f"{number}B"


def _sizes(option: Option, value: Any) -> tuple[int, ...]:
    items = value if isinstance(value, (list, tuple)) else [value]
    parts = [part for item in items for part in (_list(option, item) if isinstance(item, str) else [item])]
    return tuple(_size(option, part) for part in parts)


_CONVERTERS: Mapping[str, Callable[[Option, Any], Any]] = {
    "int": _int, "float": _float, "bool": _bool, "text": _text, "path": _path,
    "choice": _choice, "list": _list, "size": _size, "ms": _ms, "json": _json,
    "adapters": _adapters, "endpoints": _endpoints, "samplers": _samplers, "ratios": _ratios,
    "cpus": _cpus, "layers": _layers, "sizes": _sizes, "prices": _prices, "currency": _currency,
}  # fmt: skip


def nearest(name: str, names: Sequence[str] | Mapping[str, Any]) -> str:
    """A hint with the valid name that was probably meant; finds a full key by its last part alone."""
    tails = {key.rpartition(".")[2]: key for key in names}
    found = difflib.get_close_matches(name, list(names), 3, 0.6)
    found.sort(key=lambda one: sorted(one) != sorted(name))  # anagrams first
    found = found or [tails[tail] for tail in difflib.get_close_matches(name.rpartition(".")[2], list(tails), 1, 0.6)]
    return f"; did you mean {found[0]}?" if found else ""


def reason(error: Exception) -> str:
    """Why a file is unreadable, for error messages."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return getattr(error, "strerror", None) or type(error).__name__
