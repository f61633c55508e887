"""From what a user calls a model to its file: one resolver for every command and option.

    FILE.gguf                a file
    demo                     the embedded demonstration model
    a name, or its beginning a created or pulled model, then one that another program has downloaded (models/stores)

A repository (hf:OWNER/REPO:QUANT) that was pulled, or has to be, is left to `model_options.with_pulled`; one that
another program has downloaded is found here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from llamasrv.config import Settings, paths
from llamasrv.config.option import nearest
from llamasrv.config.settings import fitting
from llamasrv.errors import ConfigError
from llamasrv.models import derived, pull, stores
from llamasrv.models.derived import DerivedModel
from llamasrv.models.names import canonical
from llamasrv.models.ollama_registry import STORE
from llamasrv.models.scan import FolderModel, scan
from llamasrv.models.stores import ollama
from llamasrv.startup.model_options import DEMO_NAME, repository

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
MAX_NAMES = 8  # names in an error message


def named(settings: Settings, name: str) -> Settings:
    """The settings for the model that a command names, a repository included."""
    return fitting(settings.having(model={"path": Path(name)}), {})


def located(settings: Settings) -> Settings:
    """The settings with the file of the model that `model.path` names, or of a repository that another program has
    downloaded. Raises ConfigError if no model or more than one has that name."""
    path = settings.model.path
    if path is None:
        found = _downloaded(settings)
        return settings if found is None else _at(settings, found, repository(settings) or found.name)
    if _looks_like_file(str(path)) and path.is_dir():
        raise _folder_refused(path)
    if path.is_file() or _looks_like_file(str(path)):
        return settings
    name = str(path)
    if canonical(name) == canonical(DEMO_NAME) and (demo := paths.demo_model()) is not None:
        return settings.having(model={"path": demo})
    return _at(settings, resolve(name, settings), name)


def _at(settings: Settings, found: FolderModel | DerivedModel, name: str) -> Settings:
    """The settings with the files and names of a local model that was asked for as `name`."""
    if isinstance(found, DerivedModel):  # what else it sets is added where it is described, by its name
        path = found.file(settings.models.dir or paths.models_dir())
        return settings.having(
            model={"path": path, "alias": (found.name, *settings.model.alias)},
            engine={"context_cells": settings.engine.context_cells or found.num_ctx},
        )
    if not settings.model.alias:
        names = (found.name, *found.aliases)
        typed = () if canonical(name) in map(canonical, names) else (name,)
        settings = settings.having(model={"alias": (*names, *typed)})
    projector = found.details.projector
    if projector is not None and settings.model.mmproj_auto and settings.engine.mmproj is None:
        settings = settings.having(engine={"mmproj": projector})
    return settings.having(model={"path": found.header.path, "hf_repo": None})


def _downloaded(settings: Settings) -> FolderModel | None:
    """The model of another program's store that is the repository of the settings, unless it was pulled."""
    name = repository(settings)
    if name is None or settings.model.hf_file is not None:
        return None
    with contextlib.suppress(pull.PullFailed):  # reported where it is fetched
        if pull.pulled(name, settings.models.dir or paths.models_dir()) is not None:
            return None
    bare = name.removeprefix("hf:")
    others = list(stores.models(settings.models.sources or (stores.ALL,)))
    found = _match(f"hf.co/{bare}", others)
    if found is None and ":" not in bare:
        found = next((one for one in others if one.name.lower().startswith(f"hf.co/{bare.lower()}:")), None)
    return found


def resolve(name: str, settings: Settings) -> FolderModel | DerivedModel:
    """The local model with this name, or the only one whose name begins so. Raises ConfigError."""
    made = created(settings)
    own = _created_as(name, made)
    if own is not None:
        return own
    seen: list[FolderModel] = []
    for group in _groups(settings):
        models = list(group)
        match = _match(name, models)
        if match is not None:
            return match
        seen += models
    begun = _beginning(name, seen, made)
    if begun is not None:
        return begun
    if Path(name).is_dir():
        raise _folder_refused(Path(name))
    names = [*(one.name for one in made), *(one.name for one in seen)]
    here = f"; here: {listed(names)}" if names else ""
    there = name if _REPOSITORY.fullmatch(name) else "OWNER/REPO"
    raise ConfigError(
        f"no file and no local model {name!r}{nearest(name, names)}{here}. "
        f"`llamasrv pull hf:{there}:QUANT` downloads one from the Hub, `llamasrv pull NAME:TAG` from Ollama's registry"
    )


def has(name: str, settings: Settings) -> bool:
    """Whether a local model has exactly this name."""
    if canonical(name) == canonical(DEMO_NAME) and paths.demo_model() is not None:
        return True
    if _created_as(name, created(settings)) is not None:
        return True
    return any(_match(name, models) is not None for models in _groups(settings))


def _groups(settings: Settings) -> Iterator[Iterable[FolderModel]]:
    """Pulled models, then those of other programs, which take longer to read."""
    yield pulled(settings)
    yield stores.models(settings.models.sources or (stores.ALL,))


def created(settings: Settings) -> list[DerivedModel]:
    """The models that were created from others, by `llamasrv create` or by clients."""
    return derived.read(settings.models.dir or paths.models_dir())


def _created_as(name: str, made: Iterable[DerivedModel]) -> DerivedModel | None:
    return next((one for one in made if canonical(one.name) == canonical(name)), None)


def pulled(settings: Settings) -> Iterator[FolderModel]:
    """The models of the models folder, which may be Ollama's store."""
    folder = settings.models.dir or paths.models_dir()
    if folder.is_dir():
        yield from ollama.models(folder) if ollama.is_store(folder) else scan(folder)
        if ollama.is_store(folder / STORE):
            yield from ollama.models(folder / STORE)


def _folder_refused(path: Path) -> ConfigError:
    return ConfigError(f"{path}: a folder, not a file; --models-dir {path} serves the models in it")


def _looks_like_file(text: str) -> bool:
    return text.lower().endswith(".gguf") or text.startswith((os.sep, "." + os.sep, ".." + os.sep))


def _match(name: str, models: Iterable[FolderModel]) -> FolderModel | None:
    wanted = canonical(name)
    return next((one for one in models if wanted in map(canonical, (one.name, *one.aliases))), None)


def _beginning(
    name: str, models: Sequence[FolderModel], made: Sequence[DerivedModel]
) -> FolderModel | DerivedModel | None:
    start = name.lower()
    own = [one for one in made if one.name.lower().startswith(start)]
    by_name = [one for one in models if one.name.lower().startswith(start)]
    # What a list shows comes before further names, which files say of themselves.
    if not own and not by_name:
        by_name = [one for one in models if any(alias.lower().startswith(start) for alias in one.aliases)]
    files: dict[Path | str, FolderModel | DerivedModel] = {one.header.path.resolve(): one for one in by_name}
    files |= {one.name: one for one in own}
    if len(files) > 1:
        raise ConfigError(f"{name!r} could be any of {listed([one.name for one in files.values()])}: give more of it")
    return next(iter(files.values()), None)


def listed(names: Sequence[str]) -> str:
    """Names for an error message."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
