"""Checks before any process is forked: everything that would make a start fail later, model files, memory.

Runs in gunicorn's master and stays in its memory, so it imports neither the engine nor the web application.
"""

from __future__ import annotations

import logging

from llamasrv import log
from llamasrv.config import Settings, keys
from llamasrv.engine.base import machine
from llamasrv.errors import ConfigError
from llamasrv.startup import load_plans, model_list, tls, tools
from llamasrv.startup.model_options import with_pulled
from llamasrv.startup.resolver import located


def configure_log(settings: Settings) -> None:
    """Raises ConfigError if the log file cannot be written."""
    try:
        log.configure(
            level="debug" if settings.log.verbose else settings.log.level,
            form=settings.log.format,
            requests=settings.log.requests,
            llama=settings.log.llama or settings.log.verbose,
            path=settings.log.file,
        )
    except OSError as error:
        raise ConfigError(f"log.file = {str(settings.log.file)!r}: {error.strerror or error}") from None
    for note in settings.notes:
        logging.getLogger("llamasrv").info("%s", note)


def prepare(settings: Settings) -> Settings:
    """Resolve settings that depend on the machine and the model. Raises ConfigError."""
    keys.of(settings)
    tls.check(settings)
    tools.opened(settings)
    settings = filled_in(settings)
    models = model_list.models(settings)
    for own in (settings, *map(settings.of, settings.tables)):
        load_plans.check_devices(own)
    if len(models) > 1 or model_list.names_several(settings) or models[0].details.path is None:
        return settings
    only, load_plan = models[0], models[0].load_plan
    assert load_plan is not None
    if load_plan.fit is not None:
        return settings.having(model={"path": only.details.path})  # resolved when it is loaded
    cells = load_plan.options.context_cells
    places = load_plan.options.places
    if cells is not None and settings.engine.deterministic:
        cells *= places
    fewer = {} if places == settings.engine.places else {"parallel": places}
    return settings.having(model={"path": only.details.path}, engine={"context_cells": cells, **fewer})


def filled_in(settings: Settings) -> Settings:
    """Set one thread per core unless given, and the file of a model given by name or repository."""
    settings = with_pulled(located(settings))
    engine = settings.engine
    threads = engine.threads or machine.available_cores()
    yields = engine.yields_threads or (engine.threads is None and engine.threads_batch is None)
    return settings.having(
        engine={"threads": threads, "threads_batch": engine.threads_batch or threads, "yields_threads": yields}
    )
