"""From settings to one model's options: its template, its engine, its memory, its name.

Reads what it needs from the file and the machine. Knows no other model, and starts nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from importlib.metadata import version
from pathlib import Path

from llamasrv.config import Settings, paths
from llamasrv.domain.defaults import ChatDefaults
from llamasrv.engine.base.options import EngineOptions
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.models.names import CATCH_ALL
from llamasrv.models.pull import PullFailed, pulled
from llamasrv.models.scan import plain_name

FAKE_NAME = "fake"
DEMO_NAME = "demo"


def needed_memory(settings: Settings, header: gguf.Header, *, available: int | None = None) -> memory.Need:
    """Estimate the model's memory; chooses its context if the settings leave it open."""
    shape = shape_of(settings)
    draft = draft_header(settings)
    if settings.engine.context_cells is not None:
        need = memory.estimate(header, settings.engine.context_cells, shape)
    else:
        available = memory.available_memory() if available is None else available
        if draft is not None:  # a lower bound; its KV is small next to the target's
            available = max(0, available - memory.estimate(draft, memory.LEAST_CELLS, shape).total)
        need = memory.choose(header, shape, available)
    if draft is None:
        return need
    return dataclasses.replace(need, buffers=need.buffers + memory.estimate(draft, need.cells, shape).total)


def draft_header(settings: Settings) -> gguf.Header | None:
    """The header of the draft model, if configured. Raises ConfigError."""
    path = settings.engine.draft_model
    if path is None:
        if settings.engine.spec == "draft":
            raise ConfigError("engine.spec = 'draft': no draft model is configured; name its file with --model-draft")
        return None
    return gguf.read_header(path)


def shape_of(settings: Settings) -> memory.MemoryShape:
    return memory.MemoryShape(
        parallel=settings.engine.places,
        batch_size=settings.engine.batch_size,
        ubatch_size=settings.engine.ubatch_size,
        cache_type_k=settings.engine.cache_type_k,
        cache_type_v=settings.engine.cache_type_v,
        flash_attn=settings.engine.flash_attention != "off",
        split=settings.engine.deterministic,
        embeddings=settings.engine.embeddings,
        embedding_context=settings.engine.embedding_ctx,
        remote=bool(settings.engine.rpc),
        gpu_layers=settings.engine.gpu_layers,
        rope_freq_scale=settings.engine.rope_freq_scale,
        swa_full=settings.engine.swa_full,
        checkpoint_bytes=settings.engine.checkpoint_bytes,
        rollback=settings.engine.draft_rollback if drafts(settings) else 0,
    )


def drafts(settings: Settings) -> bool:
    return settings.engine.spec != "off" and not settings.engine.deterministic


def template_source(settings: Settings) -> str | None:
    """The Jinja source that the operator configured in place of the model's own template, or None."""
    path = settings.model.chat_template_file
    text = settings.model.chat_template
    if path is None and text is not None:
        if os.path.isfile(text):
            path = Path(text)
        elif _is_source(text):
            return text
        else:
            path = paths.templates_dir() / "chat" / f"{text}.jinja"
            if not path.is_file():
                names = ", ".join(sorted(p.stem for p in path.parent.glob("*.jinja")))
                raise ConfigError(f"model.chat_template = {text!r}: neither Jinja source nor one of {names}")
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"model.chat_template_file = {str(path)!r}: {reason}") from None


def _is_source(text: str) -> bool:
    """Whether this is Jinja source rather than a template's name. Text with spaces counts as source: a constant
    prompt."""
    return "{" in text or (re.search(r"\s", text) is not None and not text.endswith(".jinja"))


def repository(settings: Settings) -> str | None:
    """--hf-repo and --hf-file in the syntax of `llamasrv pull`, or None."""
    repo = settings.model.hf_repo
    return None if repo is None else _reference(repo, settings.model.hf_file)


def draft_repository(settings: Settings) -> str | None:
    """Like `repository`, for the draft model."""
    repo = settings.model.draft_repo
    return None if repo is None else _reference(repo)


def _reference(repo: str, file: str | None = None) -> str:
    bare, _, quant = repo.removeprefix("hf:").partition(":")
    wanted = file or quant
    return f"hf:{bare}:{wanted}" if wanted else f"hf:{bare}"


def with_pulled(settings: Settings) -> Settings:
    """Set the path to the file pulled for --hf-repo, and the name to the repository's."""
    located = with_file(settings)
    if settings.model.hf_repo is None or settings.model.path is not None or settings.model.alias:
        return located
    return located.having(model={"alias": ((repository(settings) or "").removeprefix("hf:"),)})


def with_file(settings: Settings) -> Settings:
    """Set the paths of models given as repositories. Raises ConfigError if one was not pulled yet."""
    name, draft = repository(settings), draft_repository(settings)
    if draft is not None and settings.engine.draft_model is None:
        path = _file_of(draft, settings, f"model.draft_repo = {settings.model.draft_repo!r}")
        settings = settings.having(engine={"draft_model": path})
    if name is not None and settings.model.path is None:
        path = _file_of(name, settings, f"model.hf_repo = {settings.model.hf_repo!r}")
        settings = settings.having(model={"path": path})
    return settings


def _file_of(name: str, settings: Settings, where: str) -> Path:
    folder = settings.models.dir or paths.models_dir()
    try:
        path = pulled(name, folder)
    except PullFailed as error:
        raise ConfigError(f"{where}: {error}") from None
    if path is None:
        raise ConfigError(f"{where}: not found in {folder}; run `llamasrv pull {name}`")
    return path


def chat_defaults(settings: Settings) -> ChatDefaults:
    model = settings.model
    switches = ("enable_thinking", "thinking") if model.reasoning != "auto" else ()
    thinks = dict.fromkeys(switches, model.reasoning == "on")
    effort = {} if model.reasoning_effort is None else {"reasoning_effort": model.reasoning_effort}
    return ChatDefaults(
        template_kwargs={**thinks, **effort, **(model.chat_template_kwargs or {})},
        split_reasoning=model.reasoning_format != "none",
        thinking_budget=model.reasoning_budget,
        thinking_message=model.reasoning_budget_message or "",
    )


def check_rpc(who: str) -> None:
    """Raises ConfigError, with `who` in the message, if the library was built without RPC."""
    if not library_has("ggml-rpc"):
        raise ConfigError(
            f"{who}: llama-cpp-python was built without RPC. To install it with RPC: CMAKE_ARGS=-DGGML_RPC=ON "
            f"pip install --force-reinstall --no-deps --no-cache-dir llama-cpp-python=={version('llama-cpp-python')}"
        )


def library_has(part: str) -> bool:
    """Whether llama-cpp-python contains this part of ggml. Does not load the library."""
    return any(_library().glob(f"*{part}.*"))


def library_has_module(name: str) -> bool:
    """Whether llama-cpp-python contains this module."""
    spec = importlib.util.find_spec("llama_cpp")
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / f"{name}.py").is_file()


def _library() -> Path:
    """The folder with the library's files."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if folder is None:
        spec = importlib.util.find_spec("llama_cpp")
        folder = os.path.join(os.path.dirname(spec.origin), "lib") if spec is not None and spec.origin else ""
    return Path(folder)


def has_devices(options: EngineOptions) -> bool:
    """Whether a model with these options may use a device other than the CPU. Does not load the library."""
    if options.gpu_layers == 0 or options.devices == ("none",):
        return False
    parts = {re.sub(r"^(lib)?ggml-|\..*$", "", path.name) for path in _library().glob("*ggml-*")}
    return bool(options.rpc) or any(not part.startswith(_NO_DEVICES) for part in parts)


_NO_DEVICES = ("base", "cpu", "blas", "rpc")  # ggml backends that are not devices


def engine_options(settings: Settings) -> EngineOptions:
    """The engine section, completed with values that follow from other sections."""
    options = settings.engine
    if options.deterministic and options.context_cells is not None:
        # With one KV stream per lane the engine counts the cells of a single stream.
        options = dataclasses.replace(options, context_cells=options.context_cells // options.places)
    if options.disk_bytes and options.disk_folder is None:
        options = dataclasses.replace(options, disk_folder=paths.prefixes_dir())
    return options


def served_name(settings: Settings) -> str:
    """The model's name for clients: the first alias, else the file's name without its suffix."""
    aliases = [name for name in settings.model.alias if name != CATCH_ALL]
    return aliases[0] if aliases else file_name(settings)


def file_name(settings: Settings) -> str:
    path = settings.model.path
    if path is None:
        return FAKE_NAME
    return DEMO_NAME if path == paths.demo_model() else plain_name(re.sub(r"-00001-of-\d{5}$", "", path.stem))
