"""From settings to the list of served models: described and checked, not loaded.

    --model             one model, loaded at startup
    [models.NAME]       a model of the configuration, with its own options; without `path`, one from the folder
    --models-dir        every model in the folder
    none of these       pulled models, or the embedded demonstration model

Knows no HTTP and starts nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llamasrv.config import ModelTable, Settings, paths
from llamasrv.config.option import nearest
from llamasrv.domain.decide import DecisionSettings
from llamasrv.engine.base.interface import Adapter, Progress
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, stores
from llamasrv.models.derived import DerivedModel
from llamasrv.models.derived import read as read_derived
from llamasrv.models.details import describe, digest, with_projector
from llamasrv.models.model import FOR_EVER, LoadPlan, Model, ModelSettings
from llamasrv.models.names import canonical
from llamasrv.models.scan import FolderModel
from llamasrv.startup import decision_fits, load_plans
from llamasrv.startup.companions import projector_of, with_projector_of
from llamasrv.startup.model_options import (
    DEMO_NAME,
    FAKE_NAME,
    chat_defaults,
    check_rpc,
    engine_options,
    file_name,
    served_name,
    template_source,
    with_file,
)
from llamasrv.startup.resolver import pulled
from llamasrv.startup.store_texts import context_of, definition, template_like

log = logging.getLogger("llamasrv")

NO_MODEL = (
    "no model: give one with --model FILE.gguf or --model hf:OWNER/REPO:QUANT (or LLAMASRV_MODEL, or model.path in a "
    "configuration file)"
)


def models(settings: Settings) -> list[Model]:
    """The models; the first one serves requests that name none. Raises ConfigError if a model named by the
    configuration cannot be served; unusable files in a folder are skipped."""
    found = _folder(settings)
    listed = list(_named(settings, found))
    shown = {table.name for table in settings.tables if table.shows_file}
    taken = {path.resolve() for model in listed if model.name not in shown for path in _files_of(model)}
    names = {canonical(model.name) for model in listed}
    several = len(listed) + len(found) > 1
    for one in found:
        if one.header.path.resolve() not in taken and canonical(one.name) not in names:
            own = settings.having(model={"path": one.header.path}, engine={"adapters": (), "mmproj": None})
            listed.append(_found(own, one, several=several))
            names.add(canonical(one.name))
    made = [model for model in _made_from_others(settings) if canonical(model.name) not in names]
    if not listed and all(model.details.path == paths.demo_model() for model in made):  # none is made, or all of it
        listed.append(the_one(settings.having(model={"path": paths.demo_model()})))
    listed += made
    return _default_first(settings, listed)


def _found(settings: Settings, one: FolderModel, **more: Any) -> Model:
    """A model of a folder or of another program's store, with what the store adds to its file."""
    settings = _with_store(settings, one)
    model = _model(
        settings, one.name, one.header, aliases=one.aliases, found=one, is_found=one.origin == "folder", **more
    )
    return model if one.texts is None else _derived(model, definition(one), one.header)


def _with_store(settings: Settings, one: FolderModel) -> Settings:
    """The settings with the adapters, the context and the template that another program's store adds to a file."""
    texts = one.texts
    if one.adapters:
        adapters = tuple(Adapter(path.name[:19], str(path)) for path in one.adapters)
        settings = settings.having(engine={"adapters": (*settings.engine.adapters, *adapters)})
    if texts is not None and settings.engine.context_cells is None and (cells := context_of(texts)):
        settings = settings.having(engine={"context_cells": cells})
    if texts is not None and one.header.chat_template is None and settings.model.chat_template is None:
        settings = settings.having(model={"chat_template": template_like(texts.template)})
    return settings


def _files_of(model: Model) -> Iterator[Path]:
    """Files not to list a second time: the model's own and its draft model's."""
    if model.details.path is not None:
        yield model.details.path
    if model.load_plan is not None and model.load_plan.options.draft_model is not None:
        yield model.load_plan.options.draft_model


def _named(settings: Settings, found: list[FolderModel]) -> Iterator[Model]:
    """The models named by the configuration."""
    if settings.model.fake or settings.model.path is not None:
        yield the_one(settings)
    for table in settings.tables:
        own = settings.of(table)
        one = _found_as(table.name, found) if own.model.path is None and own.model.hf_repo is None else None
        if one is None and (own := _located(own, table)).model.path is not None and not table.shows_file:
            one = _found_at(own.model.path, found)
        if one is not None:
            own = own.having(model={"path": one.header.path})
        elif own.model.path is None and table.name == DEMO_NAME:
            own = own.having(model={"path": paths.demo_model()})
        if own.model.path is None:
            raise ConfigError(
                f"models.{table.name}: no path, and no model of that name in models.dir"
                f"{nearest(table.name, [one.name for one in found])}"
            )
        try:
            yield _of_table(own, table, one)
        except ConfigError as error:
            raise ConfigError(f"models.{table.name}: {error}") from None


def _located(settings: Settings, table: ModelTable) -> Settings:
    """The table with the path of the repository that it names or is named after."""
    if settings.model.path is None and settings.model.hf_repo is None and "/" in table.name:
        settings = settings.having(model={"hf_repo": table.name})
    try:
        return with_file(settings)
    except ConfigError as error:
        raise ConfigError(f"models.{table.name}: {error}") from None


def _of_table(settings: Settings, table: ModelTable, found: FolderModel | None) -> Model:
    assert settings.model.path is not None
    header = found.header if found is not None else gguf.read_header(settings.model.path)
    if "engine_override_tensor" in table.values:
        load_plans.check_patterns(settings.engine, header)
    stay = table.values.get("models_keep_alive", FOR_EVER if table.load else settings.models.keep_alive)
    names = (found.name, *found.aliases) if found is not None else ()
    aliases = tuple(name for name in dict.fromkeys((*settings.model.alias, *names)) if name != table.name)
    return _model(
        settings, table.name, header, aliases=aliases, several=True, found=found, keep_alive=stay, at_start=table.load
    )


def _made_from_others(settings: Settings) -> Iterator[Model]:
    """Models that clients derived from others. Skips those whose file is gone."""
    if settings.models.dir is None and not settings.models.manage and (settings.model.path or settings.model.fake):
        return
    folder = settings.models.dir or paths.models_dir()
    for one in read_derived(folder):
        try:
            yield _of_made(settings, one, one.file(folder), several=True)
        except ConfigError as error:
            log.warning("skipping %s: %s", one.name, error)


def _of_made(settings: Settings, one: DerivedModel, path: Path, **more: Any) -> Model:
    table = next((table for table in settings.tables if canonical(table.name) == canonical(one.base)), None)
    own = (settings if table is None else settings.of(table)).having(model={"path": path, "alias": ()})
    if one.num_ctx:
        own = own.having(engine={"context_cells": one.num_ctx})
    if one.template is not None:
        own = own.having(model={"chat_template": one.template, "chat_template_file": None})
    store = stores.at(path, (one.base,))
    if store is not None:
        own = _with_store(own, store)
    header = gguf.read_header(path)
    return _derived(_model(own, one.name, header, aliases=(), found=store, **more), one, header)


def _derived(model: Model, one: DerivedModel | None, header: gguf.Header) -> Model:
    """The model with what the definition sets for requests that do not."""
    if one is None:
        return model
    plain = model.settings
    template = plain.chat_template
    if one.system or one.messages:
        from llamasrv.chat.template import fallback_source  # imports Jinja, which few lists need

        template = one.with_preamble(template or header.chat_template or fallback_source())
    sampling = {**plain.sampling, **one.parameters}
    model.settings = dataclasses.replace(plain, derived=one, sampling=sampling, chat_template=template)
    return model


def _found_as(name: str, found: list[FolderModel]) -> FolderModel | None:
    wanted = canonical(name)
    return next((one for one in found if wanted in map(canonical, (one.name, *one.aliases))), None)


def _found_at(path: Path, found: list[FolderModel]) -> FolderModel | None:
    real = path.resolve()
    return next((one for one in found if one.header.path.resolve() == real), None)


def _folder(settings: Settings) -> list[FolderModel]:
    if settings.models.dir is not None:
        if not settings.models.dir.is_dir():
            raise ConfigError(f"models.dir = {str(settings.models.dir)!r}: not a folder")
        own = list(pulled(settings))
    else:
        own = list(pulled(settings)) if _serves_pulled(settings) else []
    names = {canonical(name) for one in own for name in (one.name, *one.aliases)}
    others = stores.models(settings.models.sources) if settings.models.sources else ()
    return own + [one for one in others if canonical(one.name) not in names]


def _serves_pulled(settings: Settings) -> bool:
    """Whether to serve pulled models that are not named: if there are no other models, or if clients may pull."""
    return settings.models.manage or (settings.model.path is None and not settings.model.fake)


def _default_first(settings: Settings, listed: list[Model]) -> list[Model]:
    wanted = settings.models.default
    if wanted is None:
        return listed
    for model in listed:
        if canonical(wanted) in map(canonical, (model.name, *model.settings.aliases)):
            return [model, *(other for other in listed if other is not model)]
    raise ConfigError(f"models.default = {wanted!r}: no such model{nearest(wanted, [m.name for m in listed])}")


def names_several(settings: Settings) -> bool:
    """Whether more than one model may be served. Then open settings are resolved per model."""
    serves_pulled = settings.models.manage or (_serves_pulled(settings) and any(paths.models_dir().glob("*")))
    return bool(settings.tables or settings.models.sources) or settings.models.dir is not None or serves_pulled


# One model


def stays(settings: Settings) -> float:
    """Idle seconds before the model of the command line is unloaded."""
    return FOR_EVER if settings.model.sleep_idle_seconds is None else settings.model.sleep_idle_seconds


def the_one(settings: Settings) -> Model:
    """The model of --model or --fake: loaded at startup, never unloaded."""
    name = served_name(settings)
    aliases = tuple(alias for alias in (*settings.model.alias, file_name(settings)) if alias != name)
    if settings.model.fake:
        return _fake(settings, name, aliases)
    if settings.model.path is None:
        raise ConfigError(NO_MODEL)
    several, stay = names_several(settings), stays(settings)
    made = _made_as(settings, settings.model.path)
    if made is not None:
        made = dataclasses.replace(made, num_ctx=None)  # the settings have it, or what overrides it
        return _of_made(settings, made, settings.model.path, several=several, keep_alive=stay, at_start=True)
    found = stores.at(settings.model.path, settings.model.alias)
    if found is not None:
        load_plans.check_patterns(settings.engine, found.header)
        names = settings.model.alias or (found.name, *found.aliases)
        named = dataclasses.replace(found, name=names[0], aliases=names[1:])
        return _found(settings, named, several=several, keep_alive=stay, at_start=True)
    header = gguf.read_header(settings.model.path)
    load_plans.check_patterns(settings.engine, header)
    return _model(settings, name, header, aliases=aliases, several=several, keep_alive=stay, at_start=True)


def _made_as(settings: Settings, path: Path) -> DerivedModel | None:
    """The created model that the settings name, if this is its file."""
    wanted = set(map(canonical, settings.model.alias))
    folder = settings.models.dir or paths.models_dir()
    return (
        next((one for one in read_derived(folder) if canonical(one.name) in wanted and one.file(folder) == path), None)
        if wanted
        else None
    )


def _model(
    settings: Settings,
    name: str,
    header: gguf.Header,
    *,
    aliases: tuple[str, ...],
    several: bool,
    found: FolderModel | None = None,
    keep_alive: float | None = None,
    at_start: bool = False,
    is_found: bool = False,
) -> Model:
    if settings.engine.rpc:
        check_rpc(f"engine.rpc = {', '.join(settings.engine.rpc)}")
    template = template_source(settings)
    details = found.details if found is not None and template is None else describe(header, template=template)
    details = with_projector(details, projector_of(settings, header, found))
    if settings.engine.embeddings and "completion" in details.capabilities:
        details = dataclasses.replace(details, capabilities=(*details.capabilities, "embedding"))
    projecting = with_projector_of(details, settings.engine)
    load_plan = load_plans.make(
        settings,
        header,
        several=several,
        digest=details.digest,
        mmproj=projecting.mmproj,
        mmproj_digest=projecting.mmproj_digest,
        adapters=tuple(map(_known, settings.engine.adapters)),
        control_vectors=tuple(map(_known_vector, settings.engine.control_vectors)),
    )
    own = model_settings(
        settings,
        aliases,
        details=details,
        chat_template=template,
        keep_alive=settings.models.keep_alive if keep_alive is None else keep_alive,
        at_start=at_start,
        is_found=is_found,
    )
    return Model(name, own, load_plan=load_plan, key=(header.path, details.digest, load_plan.options))


def model_settings(settings: Settings, aliases: tuple[str, ...], **more: Any) -> ModelSettings:
    """What the operator set for a model; `more`: fields of ModelSettings."""
    fits = decision_fits.of(settings.model.decision_calibration, more.get("details"), more.get("chat_template"))
    return ModelSettings(
        aliases,
        sampling=settings.sampling_defaults(),
        chat_defaults=chat_defaults(settings),
        decisions=DecisionSettings(settings.model.decision_min_mass, fits),
        tags=settings.model.tags,
        prices=settings.model.prices,
        embd_normalise=settings.model.embd_normalize,
        default_tokens=settings.limits.n_predict,
        max_tokens=settings.limits.answer_tokens,
        shares_prefixes=settings.cache.prefix_scope == "all",
        **more,
    )


def _known(adapter: Adapter) -> Adapter:
    """The adapter with its file's digest. Raises ConfigError if the file is not an adapter."""
    header = gguf.read_header(Path(adapter.path))
    if header.metadata.get("general.type") != "adapter":
        raise ConfigError(f"{adapter.path}: not a LoRA adapter")
    return dataclasses.replace(adapter, digest=digest(header))


def _known_vector(vector: Adapter) -> Adapter:
    """Like `_known`, for a control vector."""
    header = gguf.read_header(Path(vector.path))
    if not header.tensors or not all(tensor.name.startswith("direction.") for tensor in header.tensors):
        raise ConfigError(f"{vector.path}: not a control vector: its tensors must be direction.LAYER")
    return dataclasses.replace(vector, digest=digest(header))


def _fake(settings: Settings, name: str, aliases: tuple[str, ...]) -> Model:
    from llamasrv.engine.backend.fake import open_fake_backend
    from llamasrv.engine.backend.fake_projector import FakeProjector

    options = engine_options(settings)
    pooling = (options.pooling or "mean") if options.embeddings else None
    lanes = 2 * options.places  # as for a real model: as many again for resident prefixes

    def opening(progress: Progress) -> Any:
        return open_fake_backend(
            progress, num_lanes=lanes, pooling=pooling, adapters=options.adapters, projector=FakeProjector()
        )

    template = template_source(settings)
    own = model_settings(settings, aliases, chat_template=template, keep_alive=stays(settings), at_start=True)
    return Model(name, own, load_plan=LoadPlan(opening, options), key=(FAKE_NAME, options))
