"""From settings to a running service.

`build` makes the registry, its loader and the service, in the process that will serve. Knows no HTTP.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from ipaddress import ip_network
from typing import Any
from urllib.parse import quote

from llamasrv import config
from llamasrv.concurrency import compute_off_hub, native_lock, off_hub, within
from llamasrv.config import Settings, keys, load_again, paths
from llamasrv.config.key_file import KeyFile
from llamasrv.errors import ConfigError, InvalidRequest
from llamasrv.media.limits import MediaLimits
from llamasrv.media.sources import Sources
from llamasrv.models import adapters
from llamasrv.models.loader import ModelLoader
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.models.trial import Trials, check_files
from llamasrv.pipeline.media import MediaOptions
from llamasrv.protocols.limits import Limits
from llamasrv.startup import filled_in, model_list, template_trials, tools
from llamasrv.store import DAY, ResponseStore, StoreError, StoreOptions, day_of, open_store
from llamasrv.web.service import Service, WebOptions

log = logging.getLogger("llamasrv")

NEVER = 1e9  # seconds
_PLACE = re.compile(r"key-\d{1,6}")


def web_options(settings: Settings, *, takes_media: bool = False) -> WebOptions:
    """`takes_media`: whether a model may take images or audio."""
    names = [f.name for f in dataclasses.fields(Limits) if hasattr(settings.limits, f.name)]
    limits: dict[str, Any] = {name: getattr(settings.limits, name) for name in names}
    if takes_media:
        limits["body_bytes"] = max(settings.limits.body_bytes, settings.media.body_bytes)
    media = settings.media
    limits |= {"media": media.count, "media_marker": _media_marker(settings)}
    return WebOptions(
        limits=Limits(**limits),
        media=MediaOptions(
            MediaLimits(
                count=media.count,
                pixels=media.pixels,
                audio_seconds=media.audio_seconds,
                held_bytes=media.decoded_bytes,
            ),
            Sources(media.path, frozenset(host.lower() for host in media.hosts), media.fetch_bytes),
            media.voices,
            media.voice_uploads,
        ),
        keys=keys.of(settings),
        hosts=settings.server.allowed_hosts,
        origins=tools.origins(settings),
        credentials=settings.server.cors_credentials,
        monitor_networks=tuple(map(ip_network, settings.server.monitor_networks)),
        # leave room in the queue for other keys
        most_open=max(1, (settings.engine.queue_limit + settings.engine.places) * 3 // 4),
        keepalive=settings.server.keepalive or NEVER,
        timeout=settings.limits.timeout,
        slots=settings.server.slots,
        prefix=(settings.server.api_prefix or "").rstrip("/"),
        predict=settings.server.predict_route is not None,
        paths=_further_paths(settings),
        props=settings.server.props,
        slot_folder=settings.cache.slot_save_path,
        stalled_seconds=settings.server.stall_timeout / 10,
        slow_seconds=settings.log.slow_seconds,
        currency=settings.server.currency,
        manage=settings.models.manage,
        lora_folder=settings.models.lora_dir,
        metrics=settings.server.metrics,
        verbose=settings.log.verbose,
        router=settings.model.path is None and not settings.model.fake and model_list.names_several(settings),
        files_folder=settings.store.files,
        files_bytes=settings.store.files_bytes,
        folder=settings.models.dir or paths.models_dir(),
        ui=settings.server.ui,
        history_days=settings.server.ui_history,
        tools=tools.tool_names(settings),
        mcp_servers=tools.mcp_servers(settings),
        tools_runtime=tools.runtime(settings),
    )


def _further_paths(settings: Settings) -> dict[str, str]:
    server = settings.server
    further = {server.predict_route: "/predict", server.health_route: "/health"}
    return {path: route for path, route in further.items() if path is not None and path != route}


def _media_marker(settings: Settings) -> str:
    """Random, so that it cannot be forged in a text, unless the operator fixes it."""
    return settings.media.marker or os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{secrets.token_hex(8)}__>"


def takes_media(settings: Settings, models: Sequence[Model]) -> bool:
    """Also true if models may be pulled at run time: they may bring a projector."""
    if settings.models.manage or settings.model.fake:
        return True
    return any(model.details.projector is not None for model in models)


def response_store(settings: Settings) -> ResponseStore | None:
    """The response store. A configured store must work; the default falls back to memory."""
    options = StoreOptions(
        settings.store.max_bytes, settings.store.max_days * DAY, within, compute_off_hub, native_lock
    )
    if settings.store.url is not None:
        return open_store(settings.store.url, options)
    path = paths.state_dir() / "responses.db"
    try:
        return open_store(f"sqlite:///{quote(str(path))}", options)
    except ConfigError:
        log.warning("cannot write %s: responses are stored in memory only", path)
        return open_store("memory", options)


def warn_of_unshared_store(settings: Settings, store: ResponseStore | None) -> None:
    """Several processes on one port are replicas: a client's next request may reach another one."""
    if settings.server.reuse_port and store is not None and store.quotas() is None:
        log.warning(
            "with server.reuse_port several servers may answer, and each has a store of its own: previous_response_id, "
            "conversations, batches and quotas are not shared. store.url = redis://HOST or postgresql://HOST is"
        )


def build(settings: Settings) -> Service:
    """Build the service and start loading its models in the background. Call it in the process that serves."""
    settings = filled_in(settings)
    trials = Trials(paths.cache_dir() / "loaded", version=version("llama-cpp-python"))

    def check(model: Model) -> None:
        """Load a new file in a child process first: it could crash the server. Skip that for a model spread over other
        machines, which may be too large for this one. Always try its template there."""
        off_hub(check_files, model.details)
        if settings.models.check:
            template_trials.check(model, trials)
        machines = model.load_plan.options.rpc if model.load_plan is not None else ()
        if settings.models.check and len(registry.models) > 1 and not machines:
            trials.check(model.details, settings.models.load_timeout)

    loader = ModelLoader(
        memory_limit=settings.models.memory,
        load_timeout=settings.models.load_timeout,
        most_loaded=settings.models.max,
        on_demand=settings.models.autoload,
        check=check,
    )
    loader.on_load.append(adapters.load_again)
    registry = Registry(
        model_list.models(settings), loader=loader, aliases=settings.aliases, any_name=settings.models.names == "any"
    )
    options = web_options(settings, takes_media=takes_media(settings, registry.models))
    store = response_store(settings)
    warn_of_unshared_store(settings, store)
    service = Service.of(registry, options, store)
    updates = ModelUpdates(registry, settings)
    service.key_file = KeyFile(settings.server.api_key_file)
    service.reread_keys = lambda: keys.of(config.current())
    service.configuration, service.reload = _configuration, lambda: reload(service)
    service.refresh, service.reread, service.serve_models_of = updates.refresh, updates.reread, updates.use
    _load_those_of_the_start(registry)
    threading.Thread(target=warn_of_renamed_keys, args=(service, settings), daemon=True).start()
    service.tools.start()
    threading.Thread(target=loader.run, daemon=True).start()
    if options.ui:
        threading.Thread(target=service.history.keep, daemon=True, name="history").start()
    return service


def warn_of_renamed_keys(service: Service, settings: Settings) -> None:
    """Unnamed keys used to be called by their position in the list. Data stored under such a name belongs to no key
    now, until the operator assigns it."""
    if not settings.api_keys():
        return
    named = {key.name for key in service.options.keys}
    now = time.time()
    try:
        used = service.usage.between(day_of(now - settings.store.max_days * DAY), day_of(now))
    except StoreError:
        return  # the store's users will report it
    lost = sorted({one.owner for one in used if _PLACE.fullmatch(one.owner)} - named)
    if lost:
        log.warning(
            "keys without a name are now called by their digest, no longer by their position: the data stored for %s "
            "belongs to no key. A table [keys.%s] with that key's sha256 in a .toml key file assigns it to that key",
            ", ".join(lost),
            lost[0],
        )


def _configuration() -> str:
    """As it is in force, in TOML, with secrets hidden."""
    from llamasrv.config import docgen  # and the schema of every endpoint: few ask

    return docgen.as_toml(config.current())


def _load_those_of_the_start(registry: Registry) -> None:
    for model in registry.models:
        if model.settings.at_start and registry.loader is not None:
            registry.loader.load(model, anyway=True)


def update(service: Service, settings: Settings) -> None:
    """Apply new settings, as far as possible while serving. Raises ConfigError, and then changes nothing."""
    options = web_options(settings)
    service.serve_models_of(settings)
    service.use(options)


def reload(service: Service) -> None:
    """Read the configuration again and apply it, as far as possible while serving. Raises ConfigError, and then changes
    nothing."""
    settings = load_again(config.current())
    update(service, settings)
    config.use(settings)


class ModelUpdates:
    """Updates the registry, one change at a time: listing files takes a while, and of two concurrent updates the older
    one could finish last and undo the newer."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """List the models again. Raises ConfigError."""
        with self._lock:
            update_models(self._registry, self._settings)

    def reread(self) -> None:
        """Read the configuration and the preset again, then `refresh`. Raises InvalidRequest if they are invalid, and
        then changes nothing."""
        with self._lock:
            try:
                settings = dataclasses.replace(self._settings, tables=load_again(self._settings).tables)
                update_models(self._registry, settings)
            except ConfigError as error:
                raise InvalidRequest(f"The models are unchanged: {error}") from None
            self._settings = settings

    def use(self, settings: Settings) -> None:
        """Apply these settings. Raises ConfigError, and then changes nothing."""
        with self._lock:
            update_models(self._registry, settings)
            self._settings = settings


def update_models(registry: Registry, settings: Settings) -> None:
    """Make the registry match the settings: adds new models, replaces changed ones, closes others once they are unused;
    leaves the rest undisturbed. Raises ConfigError, and then changes nothing."""
    loader = registry.loader
    assert loader is not None
    fresh = off_hub(model_list.models, filled_in(settings))
    before = {model.name: model for model in registry.models}
    models = []
    for model in fresh:
        old = before.get(model.name)
        if old is not None and old.key == model.key:
            old.settings = model.settings
            loader.changed(old)
            model = old
        models.append(model)
    registry.replace(models, settings.aliases)
    registry.any_name = settings.models.names == "any"
    loader.budget.limit, loader.budget.most = settings.models.memory, settings.models.max
    loader.load_timeout, loader.on_demand = settings.models.load_timeout, settings.models.autoload
    for old in before.values():
        if old not in models:
            successor = next((model for model in models if model.name == old.name), None)
            threading.Thread(target=loader.close_when_unused, args=(old, successor), daemon=True).start()
    _load_those_of_the_start(registry)
