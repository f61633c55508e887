"""The sections of the settings: each option declared once, with name, flags, default, range and meaning.

The command line, the environment, conf/llamasrv.toml and the table of conf/options.md all follow from these classes,
from those of sampling.py, limits.py, media.py, tools.py, and from EngineOptions, which the engine takes as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llamasrv.domain.option import option_field
from llamasrv.domain.prices import Prices

_model = partial(option_field, "model")
_models = partial(option_field, "models")
_server = partial(option_field, "server")
_engine = partial(option_field, "engine")
_cache = partial(option_field, "cache")
_store = partial(option_field, "store")
_log = partial(option_field, "log")


@dataclass(frozen=True)
class ModelSection:
    """The model of the command line."""

    path: Path | None = _model(
        "path",
        None,
        "-m",
        "--model",
        help="GGUF file to serve, or hf:OWNER/REPO:QUANT to download and serve a model from the Hugging Face Hub.",
    )
    alias: tuple[str, ...] = _model(
        "list", (), "-a", "--alias", help="Additional names for the model, separated by commas."
    )
    chat_template: str | None = _model(
        "text",
        None,
        "--chat-template",
        help="Jinja chat template, or the name of a template built into llama.cpp (chatml, llama3, mistral-v7, ...), "
        "to use instead of the model's own.",
    )
    chat_template_file: Path | None = _model(
        "path",
        None,
        "--chat-template-file",
        help="File to read the chat template from.",
    )
    chat_template_kwargs: Mapping[str, Any] | None = _model(
        "json",
        None,
        "--chat-template-kwargs",
        help="Variables for the chat template, as a JSON object. Those in a request take precedence.",
    )
    reasoning: str = _model(
        "choice",
        "auto",
        "-rea",
        "--reasoning",
        choices=("auto", "on", "off"),
        bare="on",
        help="Whether models that can switch thinking on and off (`enable_thinking` in the template) think when a "
        "request does not set it.",
    )
    reasoning_effort: str | None = _model(
        "text",
        None,
        "--reasoning-effort",
        unset=("default",),
        help="Reasoning effort passed to the template (`reasoning_effort`) when a request does not set one.",
    )
    reasoning_format: str = _model(
        "choice",
        "auto",
        "--reasoning-format",
        choices=("auto", "none", "deepseek"),
        help="Where reasoning goes when a request does not set it. auto, deepseek: into a separate field; none: it "
        "stays in the content, including its marks.",
    )
    reasoning_budget: int | None = _model(
        "int",
        None,
        "--reasoning-budget",
        low=0,
        high=16_777_216,
        unset=("-1",),
        help="Maximum number of reasoning tokens; then the reasoning block is closed. A request may ask for less. -1:"
        " unlimited.",
    )
    reasoning_budget_message: str | None = _model(
        "text",
        None,
        "--reasoning-budget-message",
        help="Text inserted at the end of the reasoning when the budget is used up, before the block is closed.",
    )
    decision_min_mass: float = _model(
        "float",
        0.01,
        "--decision-min-mass",
        low=0.0,
        high=1.0,
        help="Refuse a decision's question if the probability that the model answers with one of its options is lower "
        "than this. 0: never.",
    )
    decision_calibration: Path | None = _model(
        "path",
        None,
        "--decision-calibration",
        help="File of `llamasrv calibrate` that fits the probabilities of this model's decisions to your own cases.",
    )
    embd_normalize: int | None = _model(
        "int",
        None,
        "--embd-normalize",
        low=-1,
        high=1000,
        help="Normalisation of vectors when a request sets none. -1: none, 0: largest absolute value, 2: Euclidean,"
        " p: the p-norm (2; without pooling -1).",
    )
    hf_repo: str | None = _model(
        "text",
        None,
        "-hf",
        "-hfr",
        "--hf-repo",
        help="Hugging Face repository to serve, OWNER/REPO[:QUANT]. Downloaded first unless already present.",
    )
    hf_file: str | None = _model("text", None, "-hff", "--hf-file", help="File to use from that repository.")
    hf_token: str | None = _model(
        "text",
        None,
        "-hft",
        "--hf-token",
        secret=True,
        help="Token for the Hugging Face Hub. HF_TOKEN in the environment is safer: anyone on the machine can read a "
        "command line.",
    )
    draft_repo: str | None = _model(
        "text",
        None,
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        "--spec-draft-hf",
        help="Hugging Face repository of the draft model, OWNER/REPO[:QUANT], instead of --model-draft.",
    )
    offline: bool = _model(
        "bool",
        False,
        "--offline",
        help="Serve --hf-repo from what has already been downloaded; never access the network.",
    )
    mmproj_auto: bool = _model(
        "bool",
        True,
        "--mmproj-auto",
        off=("--no-mmproj",),
        help="Use the projector found next to a model when --mmproj is not given.",
    )
    tags: tuple[str, ...] = _model(
        "list", (), "--tags", help="Tags that /v1/models lists for the model, separated by commas."
    )
    prices: Prices | None = _model(
        "prices",
        None,
        "--prices",
        low=0.0,
        help="Prices per million tokens of the model, as a JSON object: input, cached (prompt tokens from the cache; "
        "unset: as input) and output. GET /v1/usage and the console then show costs. Limits nothing.",
    )
    sleep_idle_seconds: float | None = _model(
        "float",
        None,
        "--sleep-idle-seconds",
        low=0.001,
        high=1e9,
        unset=("-1",),
        help="Unload the --model model after this many idle seconds and load it again on the next request. -1: never.",
    )
    fake: bool = _model(
        "bool", False, "--fake", help="Serve a model without weights that echoes its input, for testing clients."
    )


@dataclass(frozen=True)
class ModelsSection:
    """Which models are served, and how long they stay loaded."""

    dir: Path | None = _models(
        "path",
        None,
        "--models-dir",
        help="Models folder: every GGUF file in it is served, and downloads go there.",
    )
    sources: tuple[str, ...] = _models(
        "list",
        (),
        "--models-from",
        key="from",
        choices=("auto", "ollama", "lmstudio", "hub", "llama.cpp"),
        help="Also serve the models that other programs have downloaded, from where they are: Ollama, LM Studio, the "
        "Hugging Face Hub's cache, llama.cpp's cache; auto: all of them. Nothing is written there.",
    )
    lora_dir: Path | None = _models(
        "path", None, "--lora-dir", help="Folder of LoRA adapters that clients may load into a running model."
    )
    manage: bool = _models(
        "bool", False, "--models-manage", help="Allow clients to download, load, unload and delete models over HTTP."
    )
    preset: Path | None = _models(
        "path",
        None,
        "--models-preset",
        help="INI file of models in llama-server's format: one section per model, [*] for all.",
    )
    max: int | None = _models(
        "int",
        None,
        "--models-max",
        low=1,
        high=100_000,
        unset=("0",),
        help="Maximum number of models loaded at once; the least recently used one is unloaded to make room. 0: "
        "limited by memory only.",
    )
    autoload: bool = _models(
        "bool",
        True,
        "--models-autoload",
        help="Load a model when a request names it. Otherwise only POST /models/load loads models.",
    )
    memory: int | None = _models(
        "size",
        None,
        "--memory-limit",
        low=0,
        high=2**50,
        unit=2**20,
        unset=("0",),
        help="Memory budget for all loaded models together, by estimate. A plain number is in MiB; 0 is whatever "
        "memory is free. The least recently used model is unloaded to make room.",
    )
    keep_alive: float = _models(
        "float",
        300.0,
        "--keep-alive",
        low=-1.0,
        high=1e9,
        help="Seconds a model stays loaded after its last request; -1: forever. The --model model and models with "
        "load = true stay forever unless their own table says otherwise.",
    )
    load_timeout: float = _models(
        "float",
        300.0,
        "--load-timeout",
        low=1.0,
        high=86_400.0,
        help="Maximum seconds a request waits for its model to load.",
    )
    check: bool = _models(
        "bool",
        True,
        "--check-models",
        help="Try new files in a child process first: chat templates, and with several models the models themselves.",
    )
    default: str | None = _models(
        "text", None, "--default-model", help="Model to use when a request names none. Unset: the first one."
    )
    names: str = _models(
        "choice",
        "any",
        "--model-names",
        choices=("any", "known"),
        help="Which names a request may use when there is only one model. any: every name (except on Ollama's routes,"
        " whose clients pull a model that is missing); known: the model's name and aliases. With several models "
        "only their names and aliases work.",
    )


@dataclass(frozen=True)
class ServerSection:
    """Where the server listens, and who may use it."""

    host: str = _server(
        "text",
        "127.0.0.1",
        "--host",
        help="Addresses to listen on, separated by commas. A path ending in .sock is a Unix socket.",
    )
    port: int = _server("int", 8080, "--port", low=0, high=65535, help="Port to listen on; 0 picks a free one.")
    currency: str = _server("currency", "USD", "--currency", help="Currency of the prices of models (--prices).")
    api_key: tuple[str, ...] = _server(
        "list",
        (),
        "--api-key",
        secret=True,
        help="API keys, separated by commas; every request must carry one. A file is safer than a flag.",
    )
    api_key_file: Path | None = _server(
        "path",
        None,
        "--api-key-file",
        help="File of API keys: a .toml file as written by `llamasrv key`, or else one key per line.",
    )
    ssl_key_file: Path | None = _server(
        "path",
        None,
        "--ssl-key-file",
        help="Private key of the certificate, in PEM; with both, the server accepts only TLS.",
    )
    ssl_cert_file: Path | None = _server(
        "path", None, "--ssl-cert-file", help="Certificate for TLS, in PEM, with its intermediate certificates."
    )
    api_prefix: str | None = _server(
        "text",
        None,
        "--api-prefix",
        help="Path prefix, such as /llm, under which all routes are also available; the pages stay at /.",
    )
    predict_route: str | None = _server(
        "text",
        None,
        "--predict-route",
        help="Path that serves Vertex AI's prediction protocol, such as /predict. AIP_MODE=PREDICTION sets it, "
        "with AIP_PREDICT_ROUTE, AIP_HEALTH_ROUTE and AIP_HTTP_PORT.",
    )
    health_route: str | None = _server("text", None, "--health-route", help="Additional path for /health.")
    reuse_port: bool = _server("bool", False, "--reuse-port", help="Allow other processes to listen on the same port.")
    slots: bool = _server("bool", True, "--slots", help="Show running requests at /slots.")
    metrics: bool = _server("bool", True, "--metrics", help="Serve Prometheus metrics at /metrics.")
    props: bool = _server("bool", False, "--props", help="Allow clients to change properties with POST /props.")
    ui: bool = _server(
        "bool",
        True,
        "--ui",
        "--webui",
        help="Serve the web pages: a playground, a live view of the engine, and the API documentation.",
    )
    ui_history: float | None = _server(
        "float",
        None,
        "--ui-history",
        low=0.01,
        high=100_000.0,
        help="Let people keep the playground's conversations on this server, for this many days after the last change: "
        "up to 1,000 per API key, which count as its files (--files-max-bytes). Without API keys, everybody sees the "
        "same ones. Unset: conversations stay in the browser.",
    )
    allow_keyless: bool = _server(
        "bool", False, "--allow-keyless", help="Listen on non-loopback addresses even when no API key is set."
    )
    allowed_hosts: tuple[str, ...] = _server(
        "list",
        (),
        "--allowed-hosts",
        help="Host names that requests may use for this server, or *. Unset: any name if API keys are set, otherwise "
        "only IP addresses and local names, which no website can point here.",
    )
    monitor_networks: tuple[str, ...] = _server(
        "list",
        (),
        "--monitor-networks",
        help="Networks, such as 10.0.0.0/8, from which monitoring needs no key: GET of /v1/models, /readyz, /metrics, "
        "/metrics/load and /v1/loads, sent directly, not through a proxy.",
    )
    cors_origins: tuple[str, ...] = _server(
        "list",
        (),
        "--cors-origins",
        help="Origins whose pages may use this server from a browser, separated by commas. localhost: pages served"
        " by this machine; null: pages without an origin; SCHEME://: all of that scheme; *: any.",
    )
    cors_credentials: bool = _server(
        "bool",
        False,
        "--cors-credentials",
        help="Let pages of those origins send cookies and other browser credentials, for a proxy in front that checks"
        " them. llamasrv itself reads none.",
    )
    connections: int = _server(
        "int",
        2000,
        "--connections",
        low=1,
        high=100_000,
        help="Maximum number of open connections; further ones get 503.",
    )
    idle_timeout: int = _server(
        "int",
        75,
        "--idle-timeout",
        low=1,
        high=86_400,
        help="Seconds an idle connection stays open. Keep it above the proxy's own timeout.",
    )
    head_timeout: float = _server(
        "float",
        10.0,
        "--head-timeout",
        low=0.1,
        high=3600.0,
        help="Seconds a client may take to send a request's head, from its first byte.",
    )
    write_timeout: float = _server(
        "float",
        60.0,
        "--write-timeout",
        low=0.1,
        high=3600.0,
        help="Drop a client that accepts no data for this many seconds.",
    )
    keepalive: float | None = _server(
        "float",
        15.0,
        "--keepalive",
        "--sse-ping-interval",
        low=0.1,
        high=86_400.0,
        unset=("-1",),
        help="Send a keepalive on a stream after this many seconds of silence: a comment, or an event if clients "
        "ignore comments. -1: never.",
    )
    drain_timeout: int = _server(
        "int",
        30,
        "--drain-timeout",
        low=1,
        high=86_400,
        help="Seconds that running requests get to finish after SIGTERM.",
    )
    drain_notice: float = _server(
        "float",
        0.0,
        "--drain-notice",
        low=0.0,
        high=600.0,
        help="Seconds after SIGTERM to go on accepting connections while /readyz returns 503, so that a "
        "load balancer notices.",
    )
    stall_timeout: float = _engine(
        "float",
        300.0,
        "--stall-timeout",
        low=1.0,
        high=86_400.0,
        help="Maximum seconds for one step; then the process is restarted. /readyz returns 503 after a tenth of it.",
    )


@dataclass(frozen=True)
class StoreSection:
    """Where responses are stored."""

    url: str | None = _store(
        "text",
        None,
        "--store",
        secret=True,
        help="Where responses are stored: sqlite:///FILE, redis://..., postgresql://..., memory, or none. Unset: "
        "responses.db in $STATE_DIRECTORY or ~/.local/state/llamasrv.",
    )
    max_bytes: int = _store(
        "size",
        2**30,
        "--store-max-bytes",
        low=2**20,
        high=2**50,
        help="Maximum total size of stored responses; then the least recently used conversations are deleted. Redis: "
        "use its own maxmemory.",
    )
    max_days: float = _store(
        "float",
        30.0,
        "--store-max-days",
        low=0.001,
        high=100_000.0,
        help="Delete a conversation after this many days without use.",
    )
    files: Path | None = _store(
        "path",
        None,
        "--files",
        help="Folder for uploaded files and batches. Unset: the Redis or PostgreSQL server that --store names, else "
        "$STATE_DIRECTORY or ~/.local/state/llamasrv.",
    )
    files_bytes: int = _store(
        "size",
        2**30,
        "--files-max-bytes",
        low=0,
        high=2**50,
        help="Maximum total size of uploaded files and batches (requests and results); 0: no files, "
        "no batches. With several API keys, one of them may use half of it.",
    )


@dataclass(frozen=True)
class CacheSection:
    """How prompts are cached beyond the engine's own cache."""

    slot_save_path: Path | None = _cache(
        "path",
        None,
        "--slot-save-path",
        help="Folder where POST /slots/N saves and restores states. Unset: both are refused.",
    )
    prefix_scope: str = _cache(
        "choice",
        "key",
        "--prefix-scope",
        choices=("key", "all"),
        help="Who shares cached prefixes: requests with the same API key, or all. A cached prefix speeds up a request,"
        " so sharing across keys reveals that someone else has sent it.",
    )


@dataclass(frozen=True)
class LogSection:
    """What is logged, and where."""

    level: str = _log(
        "choice",
        "info",
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="Minimum level to log.",
    )
    format: str = _log("choice", "text", "--log-format", choices=("text", "json"), help="Format of log lines.")
    requests: bool = _log("bool", True, "--log-requests", help="Log one line per request, without its content.")
    llama: bool = _log("bool", False, "--log-llama", help="Also log llama.cpp's own messages.")
    verbose: bool = _log(
        "bool",
        False,
        "-v",
        "--verbose",
        "--log-verbose",
        help="Log everything: --log-level debug and --log-llama. Replies of chat and completions include their prompt.",
    )
    file: Path | None = _log(
        "path", None, "--log-file", help="Log to this file instead of standard error; SIGUSR1 reopens it."
    )
    slow_seconds: float | None = _log(
        "float",
        None,
        "--log-slow-seconds",
        low=0.0,
        high=1_000_000.0,
        unset=("0",),
        help="Log a warning for requests that take at least this many seconds; 0: never.",
    )
    spans: bool = _log(
        "bool",
        False,
        "--log-spans",
        help="Send a span per request to the OpenTelemetry collector configured by the OTEL_* variables.",
    )
