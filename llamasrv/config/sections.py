"""The sections of the settings: each option once, with its name, flags, default, range and meaning.

The command line, the environment, conf/llamasrv.toml and the tables of conf/README.md all follow from these classes,
from those of sampling.py, limits.py, media.py, and from engine.py for the section that is the engine's own dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llamasrv.config.field import option_field


_model = partial(option_field, "model")
_models = partial(option_field, "models")
_server = partial(option_field, "server")
_engine = partial(option_field, "engine")
_cache = partial(option_field, "cache")
_store = partial(option_field, "store")
_log = partial(option_field, "log")


@dataclass(frozen=True)
class ModelSection:
    """The one model that the command line names."""

    path: Path | None = _model(
        "path", None, "-m", "--model",
        help="The GGUF file to serve, or hf:OWNER/REPO:QUANT to fetch and serve one of the Hub.",
    )  # fmt: skip
    alias: tuple[str, ...] = _model(
        "list", (), "-a", "--alias", help="Further names that clients may call the model by, separated by commas."
    )
    chat_template: str | None = _model(
        "text", None, "--chat-template",
        help="A Jinja chat template, or the name of one that llama.cpp knows (chatml, llama3, mistral-v7 ...), instead "
        "of the model's own.",
    )  # fmt: skip
    chat_template_file: Path | None = _model("path", None, "--chat-template-file", help="The same, read from a file.")
    chat_template_kwargs: Mapping[str, Any] | None = _model(
        "json", None, "--chat-template-kwargs",
        help="Variables of the chat template, as a JSON object; those of a request go before them.",
    )  # fmt: skip
    reasoning: str = _model(
        "choice", "auto", "-rea", "--reasoning", choices=("auto", "on", "off"), bare="on",
        help="Whether models think that can be told (enable_thinking of the template), where a request does not say.",
    )  # fmt: skip
    reasoning_effort: str | None = _model(
        "text", None, "--reasoning-effort", unset=("default",),
        help="How hard they think, as the template calls it (reasoning_effort), where a request does not say.",
    )  # fmt: skip
    reasoning_format: str = _model(
        "choice", "auto", "--reasoning-format", choices=("auto", "none", "deepseek"),
        help="Where reasoning goes that a request says nothing of. auto, deepseek: to its own field; none: it stays in "
        "the content, marks and all.",
    )  # fmt: skip
    reasoning_budget: int | None = _model(
        "int", None, "--reasoning-budget", low=0, high=16_777_216, unset=("-1",),
        help="Most tokens of reasoning, then its block is closed; a request may ask for less. -1: no bound.",
    )  # fmt: skip
    hf_repo: str | None = _model(
        "text", None, "-hf", "-hfr", "--hf-repo",
        help="The repository on the Hugging Face Hub whose model is served, OWNER/REPO[:QUANT]: fetched first where it "
        "is not there yet.",
    )  # fmt: skip
    hf_file: str | None = _model("text", None, "-hff", "--hf-file", help="Which file of that repository.")
    offline: bool = _model("bool", False, "--offline", help="Serve what was pulled for --hf-repo, and fetch nothing.")
    mmproj_auto: bool = _model(
        "bool", True, "--mmproj-auto", off=("--no-mmproj",),
        help="Take the projector that lies beside a model, where --mmproj names none.",
    )  # fmt: skip
    tags: tuple[str, ...] = _model(
        "list", (), "--tags", help="Words that /v1/models tells of the model, separated by commas."
    )
    sleep_idle_seconds: float | None = _model(
        "float", None, "--sleep-idle-seconds", low=0.001, high=1e9, unset=("-1",),
        help="Seconds without a request after which the model that --model names is unloaded, until the next one; -1: "
        "it stays.",
    )  # fmt: skip
    fake: bool = _model(
        "bool", False, "--fake", help="Serve a model without weights that repeats what it is told: for trying clients."
    )


@dataclass(frozen=True)
class ModelsSection:
    """Which models are served, and how long they stay loaded."""

    dir: Path | None = _models(
        "path", None, "--models-dir",
        help="The folder of models: all GGUF files in it are served, and pulled ones go there.",
    )  # fmt: skip
    manage: bool = _models(
        "bool", False, "--models-manage", help="Let clients pull, load, unload and delete models over HTTP."
    )
    preset: Path | None = _models(
        "path", None, "--models-preset",
        help="An INI file of models as llama-server reads it: a section for each, [*] for all.",
    )  # fmt: skip
    max: int | None = _models(
        "int", None, "--models-max", low=1, high=100_000, unset=("0",),
        help="Most models that are loaded at once; the one that was used least recently makes room. 0: as many as the "
        "memory holds.",
    )  # fmt: skip
    autoload: bool = _models(
        "bool", True, "--models-autoload", help="Load a model when a request names it; else POST /models/load does."
    )
    memory: int | None = _models(
        "size", None, "--memory-limit", low=0, high=2**50, unit=2**20, unset=("0",),
        help="Memory that all loaded models may take together, by estimate; a plain number counts MiB, 0 is what the "
        "machine has free. The one that was used least recently makes room.",
    )  # fmt: skip
    keep_alive: float = _models(
        "float", 300.0, "--keep-alive", low=-1.0, high=1e9,
        help="Seconds that a model stays loaded after its last request; -1: for ever. The one that --model names, and "
        "those with load = true, stay for ever unless their own table says otherwise.",
    )  # fmt: skip
    load_timeout: float = _models(
        "float", 300.0, "--load-timeout", low=1.0, high=86_400.0,
        help="Most seconds that a request waits for its model to be loaded.",
    )  # fmt: skip
    check: bool = _models(
        "bool", True, "--check-models",
        help="Where several models are served, load a file that was never loaded here in a process of its own first.",
    )  # fmt: skip
    default: str | None = _models(
        "text", None, "--default-model", help="The model that answers where a client names none; else the first."
    )
    names: str = _models(
        "choice", "any", "--model-names", choices=("any", "known"),
        help="Names that requests may call the only model by. any: every name (not on Ollama's routes, whose clients "
        "pull what is missing); known: its own and its aliases. Of several models each has its own names.",
    )  # fmt: skip


@dataclass(frozen=True)
class ServerSection:
    """Where and whom the server answers."""

    host: str = _server(
        "text", "127.0.0.1", "--host",
        help="Addresses to listen on, separated by commas; a path ending in .sock is a Unix socket.",
    )
    port: int = _server("int", 8080, "--port", low=0, high=65535, help="Port to listen on; 0 picks a free one.")
    api_key: tuple[str, ...] = _server(
        "list", (), "--api-key", secret=True,
        help="Keys, separated by commas, of which every request must carry one. A file is safer than a flag.",
    )  # fmt: skip
    api_key_file: Path | None = _server(
        "path", None, "--api-key-file",
        help="A file of keys: with the ending .toml as `llamasrv key` writes it, else one key a line.",
    )  # fmt: skip
    api_prefix: str | None = _server(
        "text", None, "--api-prefix", help="A path that all routes are found under, too, as /llm; the pages stay at /."
    )
    predict_route: str | None = _server(
        "text", None, "--predict-route",
        help="A path at which Vertex AI's prediction protocol is answered, as /predict. AIP_MODE=PREDICTION sets it, "
        "with AIP_PREDICT_ROUTE, AIP_HEALTH_ROUTE and AIP_HTTP_PORT.",
    )  # fmt: skip
    health_route: str | None = _server("text", None, "--health-route", help="A further path for /health.")
    reuse_port: bool = _server("bool", False, "--reuse-port", help="Let other processes listen on the same port.")
    slots: bool = _server("bool", True, "--slots", help="Tell at /slots what is computed.")
    metrics: bool = _server("bool", True, "--metrics", help="Figures for Prometheus at /metrics.")
    props: bool = _server("bool", False, "--props", help="Let clients change properties with POST /props.")
    ui: bool = _server("bool", True, "--ui", "--webui", help="Pages for browsers: a playground, a live view, the API.")
    allow_keyless: bool = _server(
        "bool", False, "--allow-keyless", help="Listen on other addresses than loopback although there is no key."
    )
    allowed_hosts: tuple[str, ...] = _server(
        "list", (), "--allowed-hosts",
        help="Names that requests may call this server by, or *. Without any: every name where there are keys, else "
        "only addresses and names that no page elsewhere can take.",
    )  # fmt: skip
    cors_origins: tuple[str, ...] = _server(
        "list", (), "--cors-origins",
        help="Origins whose pages may use this server from a browser; localhost: all that this machine serves; *: all.",
    )  # fmt: skip
    connections: int = _server(
        "int",
        2000,
        "--connections",
        low=1,
        high=100_000,
        help="Most connections open at once; more are refused with 503.",
    )
    idle_timeout: int = _server(
        "int", 75, "--idle-timeout", low=1, high=86_400,
        help="Seconds that a connection may stay open without a request. Keep it above the proxy's own.",
    )  # fmt: skip
    head_timeout: float = _server(
        "float", 10.0, "--head-timeout", low=0.1, high=3600.0,
        help="Seconds that the head of a request may take from its first byte.",
    )  # fmt: skip
    write_timeout: float = _server(
        "float", 60.0, "--write-timeout", low=0.1, high=3600.0,
        help="Seconds that a client may take no byte of what is written before it counts as gone.",
    )  # fmt: skip
    keepalive: float | None = _server(
        "float", 15.0, "--keepalive", "--sse-ping-interval", low=0.1, high=86_400.0, unset=("-1",),
        help="Seconds of silence after which a stream gets a comment line, so that nobody takes it for dead; -1: "
        "never.",
    )  # fmt: skip
    drain_timeout: int = _server(
        "int", 30, "--drain-timeout", low=1, high=86_400,
        help="Seconds that running requests have left to finish after SIGTERM.",
    )  # fmt: skip
    drain_notice: float = _server(
        "float", 0.0, "--drain-notice", low=0.0, high=600.0,
        help="Seconds after SIGTERM during which connections are still accepted while /readyz says 503, "
        "for a load balancer to notice.",
    )  # fmt: skip
    stall_timeout: float = _engine(
        "float", 300.0, "--stall-timeout", low=1.0, high=86_400.0,
        help="Seconds that one step may take; then the process is replaced. /readyz says 503 after a tenth of it.",
    )  # fmt: skip


@dataclass(frozen=True)
class StoreSection:
    """Where responses are kept."""

    url: str | None = _store(
        "text", None, "--store", secret=True,
        help="Where responses are kept: sqlite:///FILE, redis://..., postgresql://..., memory, or none; unset: "
        "responses.db in $STATE_DIRECTORY or ~/.local/state/llamasrv.",
    )  # fmt: skip
    max_bytes: int = _store(
        "size", 2**30, "--store-max-bytes", low=2**20, high=2**50,
        help="Most that is kept of them; then those of the conversations that rested longest go. Redis: its own "
        "maxmemory.",
    )  # fmt: skip
    max_days: float = _store(
        "float", 30.0, "--store-max-days", low=0.001, high=100_000.0,
        help="Days without use after which a conversation goes.",
    )  # fmt: skip
    files: Path | None = _store(
        "path", None, "--files",
        help="The folder where files and batches are kept; unset: $STATE_DIRECTORY or ~/.local/state/llamasrv.",
    )  # fmt: skip
    files_bytes: int = _store(
        "size", 2**30, "--files-max-bytes", low=0, high=2**50,
        help="Most bytes of files that clients upload and batches write; 0: there are no files and no batches.",
    )  # fmt: skip


@dataclass(frozen=True)
class CacheSection:
    """What is kept of prompts, beside what the engine takes."""

    slot_save_path: Path | None = _cache(
        "path", None, "--slot-save-path",
        help="The folder where POST /slots/N saves states to and restores them from; unset: it does neither.",
    )  # fmt: skip
    prefix_scope: str = _cache(
        "choice", "key", "--prefix-scope", choices=("key", "all"),
        help="Who reuses what a prompt begins with: requests with the same API key, or all. What is reused is answered "
        "sooner, so across keys it would tell that somebody sent it.",
    )  # fmt: skip


@dataclass(frozen=True)
class LogSection:
    """What is logged, and where."""

    level: str = _log(
        "choice", "info", "--log-level", choices=("debug", "info", "warning", "error"), help="Least urgent line to log."
    )
    format: str = _log(
        "choice", "text", "--log-format", choices=("text", "json"), help="Form of a log line, on standard error."
    )
    requests: bool = _log("bool", True, "--log-requests", help="One line for each request, without its content.")
    llama: bool = _log("bool", False, "--log-llama", help="Log what llama.cpp says, too.")
    verbose: bool = _log(
        "bool", False, "-v", "--verbose", "--log-verbose",
        help="Log all there is: --log-level debug and --log-llama; replies of chat and completions show their prompt.",
    )  # fmt: skip
    file: Path | None = _log(
        "path", None, "--log-file", help="A file for the log instead of standard error; SIGUSR1 opens it anew."
    )
    slow_seconds: float | None = _log(
        "float", None, "--log-slow-seconds", low=0.0, high=1_000_000.0, unset=("0",),
        help="Seconds from which a request gets a warning of its own; 0: never.",
    )  # fmt: skip
    spans: bool = _log(
        "bool", False, "--log-spans",
        help="Send a span for each request to the collector that OpenTelemetry's own variables (OTEL_*) name.",
    )  # fmt: skip
