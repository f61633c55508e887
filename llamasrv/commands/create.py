"""`llamasrv create`: a model made from another one by a Modelfile, in the syntax of Ollama."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.trial import TemplateDangerous, try_template
from llamasrv.config import Settings, paths
from llamasrv.config.option import reason
from llamasrv.errors import ConfigError, InvalidRequest
from llamasrv.models import derived, stores
from llamasrv.models.derived import DerivedModel
from llamasrv.models.names import canonical
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.ollama.manage import Managing
from llamasrv.startup import resolver
from llamasrv.startup.store_texts import definition

LARGEST = 4 << 20  # max bytes of a Modelfile
_WORDS = ("from", "parameter", "template", "system", "message", "license", "adapter", "requires")
_QUOTED = re.compile(r'"""(.*?)"""|"((?:[^"\\]|\\.)*)"|([^\n]*)', re.S)
_LISTS = ("stop",)  # parameters that may stand several times


def run(settings: Settings, name: str, file: Path | None, base: str | None) -> int:
    """Write the definition into the models folder. Raises ConfigError, with the line, for what cannot be honoured."""
    path = file or Path("Modelfile")
    body = {"from": base} if base is not None and file is None else read(path)
    if base is not None:
        body["from"] = base
    if "from" not in body:
        raise ConfigError(f"{path}: FROM is missing: the model to create it from")
    try:
        wanted = Managing(Limits()).parse_create(body | {"model": name})
    except InvalidRequest as error:
        raise ConfigError(f"{path}: {error.message}") from None
    if wanted.template is not None:
        _check_template(path, wanted.template)
    new = _base(settings, str(wanted.base), path).overlaid(
        name=name,
        template=wanted.template,
        system=wanted.system,
        messages=wanted.messages,
        parameters=wanted.chosen.sampling,
        stop=wanted.chosen.stop,
        num_predict=wanted.chosen.max_tokens,
        num_ctx=wanted.chosen.num_ctx,
        license=wanted.license,
    )
    folder = settings.models.dir or paths.models_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        derived.write(folder, new)
    except InvalidRequest as error:
        raise ConfigError(error.message) from None
    print(f"created {name} from {new.base}; `llamasrv run {name}` talks to it")
    return 0


def read(path: Path) -> dict[str, Any]:
    """The file as a body of /api/create. Syntax: docs/modelfile.mdx of Ollama."""
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path}: larger than {LARGEST} bytes")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    body: dict[str, Any] = {"parameters": {}, "messages": []}
    for line, word, value in _instructions(path, text):
        if word == "parameter":
            key, _, number = value.partition(" ")
            value = _unquoted(number.strip())
            if key in _LISTS:
                body["parameters"].setdefault(key, []).append(value)
            else:
                body["parameters"][key] = _number(value)
        elif word == "message":
            role, _, content = value.partition(" ")
            body["messages"].append({"role": role, "content": _unquoted(content.strip())})
        elif word == "adapter":
            raise ConfigError(f"{path}, line {line}: ADAPTER: give adapters to the server, with --lora FILE")
        elif word != "requires":
            body[word] = value
    return {key: value for key, value in body.items() if value}


def _instructions(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word in lower case, and value of each instruction."""
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        if not line.strip() or line.lstrip().startswith("#"):
            at = end + 1
            continue
        number = text.count("\n", 0, at) + 1
        word = line.split(None, 1)[0]
        if word.lower() not in _WORDS:
            known = ", ".join(one.upper() for one in _WORDS)
            raise ConfigError(f"{path}, line {number}: {word[:40]!r} is no instruction; there are {known}")
        start = text.index(word, at) + len(word)
        while start < len(text) and text[start] in " \t":
            start += 1
        whole = word.lower() not in ("parameter", "message")
        match = _QUOTED.match(text, start) if whole else None
        if match is not None:
            value, at = _unescaped(match), max(match.end(), end if match[3] is not None else match.end()) + 1
        elif '"""' in line:
            close = text.find('"""', text.index('"""', at) + 3)
            if close < 0:
                raise ConfigError(f'{path}, line {number}: """ without its end')
            value, at = text[start : close + 3], close + 4
        else:
            value, at = text[start:end].strip(), end + 1
        if not value:
            raise ConfigError(f"{path}, line {number}: {word.upper()} without a value")
        yield number, word.lower(), value


def _unquoted(text: str) -> str:
    match = _QUOTED.match(text)
    return text if match is None else _unescaped(match)


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1]
    if match[2] is not None:
        return match[2].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    return match[3].strip()


def _number(text: str) -> Any:
    """Numbers and booleans as JSON has them; other texts as they are."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text) if re.search(r"[.eE]", text) else int(text)
    except ValueError:
        return text


def _check_template(path: Path, source: str) -> None:
    if re.search(r"\{\{-?\s*(if|range|end|\.|block|with)", source) and "{%" not in source:
        raise ConfigError(
            f"{path}: TEMPLATE is written in Go's syntax; this server renders Jinja, as model files have it. Leave "
            "TEMPLATE out to use the model's own"
        )
    try:
        try_template(source)
    except (TemplateDangerous, TemplateError) as error:
        raise ConfigError(f"{path}: TEMPLATE: {error}") from None


def _base(settings: Settings, name: str, path: Path) -> DerivedModel:
    """What the new model is made from: a file, a model that was created before, or a local model."""
    folder = settings.models.dir or paths.models_dir()
    for one in derived.read(folder):
        if canonical(one.name) == canonical(name):
            return one
    own = resolver.located(resolver.named(settings, name if not _is_beside(path, name) else str(path.parent / name)))
    if own.model.path is None:
        raise ConfigError(f"{path}: FROM {name}: download it first, with `llamasrv pull {name}`")
    if not own.model.path.is_file():
        raise ConfigError(f"{path}: FROM {name}: no such file")
    found = stores.at(own.model.path, (name,))
    known = None if found is None else definition(found)
    file = derived.kept_path(own.model.path, folder)
    return dataclasses.replace(known or DerivedModel(name, name, file), base=name, path=file)


def _is_beside(path: Path, name: str) -> bool:
    """Paths in a Modelfile are relative to it."""
    return (path.parent / name).is_file()
