"""From settings to a running service.

`prepare` checks, before any process is forked, what a start would fail on later: the model file, its parts, the memory.
`build` makes the engines, the registry and the service, in the process that will serve. Knows no HTTP.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

from llamasrv import files, keys, log
from llamasrv.config import Settings
from llamasrv.engine.engine import Engine, EngineOptions
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.models.registry import CATCH_ALL, Model, Registry
from llamasrv.protocols.limits import Limits
from llamasrv.web.service import Service, WebOptions

NO_MODEL = "no model: give one with --model FILE.gguf (or LLAMASRV_MODEL, or model.path in a configuration file)"
FAKE_NAME = "fake"
DEMO_NAME = "demo"


def configure_log(settings: Settings) -> None:
    """Raises ConfigError where the log's file cannot be written to."""
    try:
        log.configure(
            level=settings.log_level,
            form=settings.log_format,
            requests=settings.log_requests,
            llama=settings.log_llama,
            path=settings.log_file,
        )
    except OSError as error:
        raise ConfigError(f"log.file = {str(settings.log_file)!r}: {error.strerror or error}") from None


def prepare(settings: Settings) -> Settings:
    """The settings with everything filled in that depends on the machine and the model. Raises ConfigError."""
    keys.of(settings)
    template_source(settings)
    filled: dict[str, Any] = {}
    if settings.engine_threads <= 0:
        filled["engine_threads"] = memory.available_cores()
    if settings.engine_threads_batch <= 0:
        filled["engine_threads_batch"] = filled.get("engine_threads", settings.engine_threads)
    if not settings.model_fake:
        path = settings.model_path or files.demo_model()
        if path is None:
            raise ConfigError(NO_MODEL)
        need = needed_memory(dataclasses.replace(settings, model_path=path), gguf.read_header(path))
        filled |= {"model_path": path, "engine_ctx_size": need.cells}
    return dataclasses.replace(settings, **filled)


def needed_memory(settings: Settings, header: gguf.Header) -> memory.Need:
    """What the model will need; its context is chosen where the settings leave it open."""
    shape = memory.Shape(
        parallel=settings.engine_parallel,
        batch_size=settings.engine_batch_size,
        ubatch_size=settings.engine_ubatch_size,
        cache_type_k=settings.engine_cache_type_k,
        cache_type_v=settings.engine_cache_type_v,
        flash_attn=settings.engine_flash_attn != "off",
        split=settings.engine_deterministic,
    )
    if settings.engine_ctx_size:
        return memory.estimate(header, settings.engine_ctx_size, shape)
    return memory.choose(header, shape, memory.available_memory())


def template_source(settings: Settings) -> str | None:
    """The Jinja source that replaces the model's own template, if the operator gave one."""
    path = settings.model_chat_template_file
    text = settings.model_chat_template
    if path is None and text is not None and "{" not in text and Path(text).is_file():
        path = Path(text)
    elif path is None and text is not None and "{" not in text:
        path = files.templates_dir() / "chat" / f"{text}.jinja"
        if not path.is_file():
            names = ", ".join(sorted(p.stem for p in path.parent.glob("*.jinja")))
            raise ConfigError(f"model.chat_template = {text!r}: neither Jinja source nor one of {names}")
    if path is None:
        return text
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"model.chat_template_file = {str(path)!r}: {reason}") from None


def engine_options(settings: Settings) -> EngineOptions:
    return EngineOptions(
        # With a stream of cells for each lane the engine counts the cells of one.
        context_cells=settings.engine_ctx_size // (settings.engine_parallel if settings.engine_deterministic else 1),
        parallel=settings.engine_parallel,
        threads=max(0, settings.engine_threads),
        threads_batch=max(0, settings.engine_threads_batch),
        batch_size=settings.engine_batch_size,
        ubatch_size=settings.engine_ubatch_size,
        gpu_layers=settings.engine_n_gpu_layers,
        flash_attn=settings.engine_flash_attn,
        cache_type_k=settings.engine_cache_type_k,
        cache_type_v=settings.engine_cache_type_v,
        deterministic=settings.engine_deterministic,
        queue_limit=settings.engine_queue_limit,
        step_target=settings.engine_step_target_ms / 1000,
        swap_bytes=settings.cache_swap,
        cache_bytes=settings.cache_ram,
        idle_cells=settings.cache_idle_cells,
        coalesce=settings.engine_coalesce_ms / 1000,
        embeddings=settings.engine_embeddings,
        pooling=settings.engine_pooling,
        embedding_ctx=settings.engine_embedding_ctx,
    )


def web_options(settings: Settings) -> WebOptions:
    names = [f.name for f in dataclasses.fields(Limits) if hasattr(settings, f"limits_{f.name}")]
    limits: dict[str, Any] = {name: getattr(settings, f"limits_{name}") for name in names}
    return WebOptions(
        limits=Limits(**limits),
        keys=keys.of(settings),
        hosts=settings.server_allowed_hosts,
        origins=settings.server_cors_origins,
        # A key leaves room in the queue for the others.
        most_open=max(1, (settings.engine_queue_limit + settings.engine_parallel) * 3 // 4),
        keepalive=settings.server_keepalive,
        timeout=settings.limits_timeout or None,
        unread_tokens=settings.limits_unread_tokens,
        slow_seconds=settings.log_slow_seconds,
    )


def served_name(settings: Settings) -> str:
    """What clients call the model: the first alias, else the file's name without its ending."""
    aliases = [name for name in settings.model_alias if name != CATCH_ALL]
    return aliases[0] if aliases else _file_name(settings)


def _file_name(settings: Settings) -> str:
    path = settings.model_path
    if path is None:
        return FAKE_NAME
    return DEMO_NAME if path == files.demo_model() else re.sub(r"-00001-of-\d{5}$", "", path.stem)


def build(settings: Settings) -> Service:
    """The service, its engines started: loading goes on in their threads. Call it in the process that serves."""
    settings = prepare(settings)
    options = engine_options(settings)
    opening: Any  # Callable[[Progress], Backend]
    if settings.model_fake:
        from llamasrv.engine.fake import open_fake_backend

        pooling = (options.pooling or "mean") if options.embeddings else None
        opening = partial(open_fake_backend, num_lanes=options.parallel, pooling=pooling)
    else:
        # Imported here: the library takes a moment, and a fake model does without it.
        from llamasrv.engine.backend import open_model

        opening = partial(open_model, str(settings.model_path), options)
    name = served_name(settings)
    model = Model(
        name,
        Engine(opening, options, name=name),
        aliases=tuple(alias for alias in (*settings.model_alias, _file_name(settings)) if alias != name),
        sampling=settings.sampling(),
        chat_template=template_source(settings),
        max_tokens=settings.limits_n_predict if settings.limits_n_predict >= 0 else None,
    )
    service = Service.of(Registry([model]), web_options(settings))
    model.engine.start()
    return service
