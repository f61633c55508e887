"""Options: each one once, with its name, flags, default, range and meaning.

    TOML file  <  environment LLAMASRV_*  <  flags

The command line, the environment, conf/llamasrv.toml and the README's table all follow from `Settings`. An unknown key
or a bad value raises ConfigError with one line that says where, which key, which value and what would be right. Knows
nothing of models, engines or HTTP, and reads no file but the one it is pointed at (and the key file). `docgen.py`
writes the documents.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from llamasrv.config.option import ADAPTER, PREFIX, Option, convert, nearest
from llamasrv.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_VARIABLE = "LLAMASRV_CONFIG"

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOLINGS = ("none", "mean", "cls", "last", "rank")
# Kubernetes puts variables like these into every pod that can see a service named "llamasrv".
_SERVICE_LINK = re.compile(r"LLAMASRV_(SERVICE_(HOST|PORT\w*)=|PORT_\d+_\w+=|PORT=\w+://).*", re.DOTALL)


def _option(
    section: str,
    kind: str,
    default: Any,
    *flags: str,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    unit: int = 1,
) -> Any:
    spec = Option(section, flags, kind, default, help, low, high, choices, secret, unit)
    return field(default=default, repr=not secret, metadata={"option": spec})


_model = partial(_option, "model")
_models = partial(_option, "models")
_server = partial(_option, "server")
_engine = partial(_option, "engine")
_sampling = partial(_option, "sampling")
_limits = partial(_option, "limits")
_cache = partial(_option, "cache")
_store = partial(_option, "store")
_log = partial(_option, "log")


@dataclass(frozen=True)
class ModelTable:
    """`[models.NAME]` of the file: a model with options of its own."""

    name: str
    values: Mapping[str, Any]  # by attribute of Settings
    load: bool = False  # when the server starts


@dataclass(frozen=True)
class Source:
    """What `load` was given, to do it again."""

    flags: Mapping[str, Any]
    config: Path | None


@dataclass(frozen=True)
class Settings:
    """All options, resolved. Field order is the order of every document."""

    model_path: Path | None = _model("path", None, "-m", "--model", help="The GGUF file to serve.")
    model_alias: tuple[str, ...] = _model(
        "list", (), "-a", "--alias", help="Further names that clients may call the model by, separated by commas."
    )
    model_chat_template: str | None = _model(
        "text", None, "--chat-template",
        help="A Jinja chat template, or the name of a packaged one (chatml, plain), instead of the model's own.",
    )  # fmt: skip
    model_chat_template_file: Path | None = _model(
        "path", None, "--chat-template-file", help="The same, read from a file."
    )
    model_fake: bool = _model(
        "bool", False, "--fake", help="Serve a model without weights that repeats what it is told: for trying clients."
    )

    model_adapters: tuple[str, ...] = _model(
        "list", (), "--lora",
        help="LoRA adapters that requests may choose, separated by commas: NAME=FILE.gguf, with @SCALE where it is not "
        "1. In a file also a table.",
    )  # fmt: skip

    models_dir: Path | None = _models(
        "path", None, "--models-dir",
        help="The folder of models: all GGUF files in it are served, and pulled ones go there.",
    )  # fmt: skip
    models_manage: bool = _models(
        "bool", False, "--models-manage", help="Let clients pull, load, unload and delete models over HTTP."
    )
    models_memory: int = _models(
        "size", 0, "--memory-limit", low=0, high=2**50, unit=2**20,
        help="Memory that all loaded models may take together, by estimate; a plain number counts MiB, 0 is what the "
        "machine has free. The one that was used least recently makes room.",
    )  # fmt: skip
    models_keep_alive: float = _models(
        "float", 300.0, "--keep-alive", low=-1.0, high=1e9,
        help="Seconds that a model stays loaded after its last request; -1: for ever. The one that --model names, and "
        "those with load = true, stay for ever unless their own table says otherwise.",
    )  # fmt: skip
    models_load_timeout: float = _models(
        "float", 300.0, "--load-timeout", low=1.0, high=86_400.0,
        help="Most seconds that a request waits for its model to be loaded.",
    )  # fmt: skip
    models_check: bool = _models(
        "bool", True, "--check-models",
        help="Where several models are served, load a file that was never loaded here in a process of its own first.",
    )  # fmt: skip
    models_default: str | None = _models(
        "text", None, "--default-model", help="The model that answers where a client names none; else the first."
    )

    models_names: str = _models(
        "choice", "any", "--model-names", choices=("any", "known"),
        help="Names that requests may call the only model by. any: every name (not on Ollama's routes, whose clients "
        "pull what is missing); known: its own and its aliases. Of several models each has its own names.",
    )  # fmt: skip

    server_host: str = _server(
        "text", "127.0.0.1", "--host", help="Address to listen on, or a path ending in .sock for a Unix socket."
    )
    server_port: int = _server("int", 8080, "--port", low=0, high=65535, help="Port to listen on; 0 picks a free one.")
    server_api_key: tuple[str, ...] = _server(
        "list", (), "--api-key", secret=True,
        help="Keys, separated by commas, of which every request must carry one. A file is safer than a flag.",
    )  # fmt: skip
    server_api_key_file: Path | None = _server(
        "path", None, "--api-key-file",
        help="A file of keys: with the ending .toml as `llamasrv key` writes it, else one key a line.",
    )  # fmt: skip
    server_ui: bool = _server("bool", True, "--ui", help="Pages for browsers: a playground, a live view, the API.")
    server_allow_keyless: bool = _server(
        "bool", False, "--allow-keyless", help="Listen on other addresses than loopback although there is no key."
    )
    server_allowed_hosts: tuple[str, ...] = _server(
        "list", (), "--allowed-hosts",
        help="Names that requests may call this server by, or *. Without any: every name where there are keys, else "
        "only addresses and names that no page elsewhere can take.",
    )  # fmt: skip
    server_cors_origins: tuple[str, ...] = _server(
        "list", (), "--cors-origins", help="Origins whose pages may use this server from a browser, or *."
    )
    server_connections: int = _server(
        "int",
        2000,
        "--connections",
        low=1,
        high=100_000,
        help="Most connections open at once; more are refused with 503.",
    )
    server_idle_timeout: int = _server(
        "int", 75, "--idle-timeout", low=1, high=86_400,
        help="Seconds that a connection may stay open without a request. Keep it above the proxy's own.",
    )  # fmt: skip
    server_head_timeout: float = _server(
        "float", 10.0, "--head-timeout", low=0.1, high=3600.0,
        help="Seconds that the head of a request may take from its first byte.",
    )  # fmt: skip
    server_write_timeout: float = _server(
        "float", 60.0, "--write-timeout", low=0.1, high=3600.0,
        help="Seconds that a client may take no byte of what is written before it counts as gone.",
    )  # fmt: skip
    server_keepalive: float = _server(
        "float", 15.0, "--keepalive", "--sse-ping-interval", low=0.1, high=3600.0,
        help="Seconds of silence after which a stream gets a comment line, so that nobody takes it for dead.",
    )  # fmt: skip
    server_drain_timeout: int = _server(
        "int", 30, "--drain-timeout", low=1, high=86_400,
        help="Seconds that running requests have left to finish after SIGTERM.",
    )  # fmt: skip
    server_drain_notice: float = _server(
        "float", 0.0, "--drain-notice", low=0.0, high=600.0,
        help="Seconds after SIGTERM during which connections are still accepted while /readyz says 503, "
        "for a load balancer to notice.",
    )  # fmt: skip

    engine_ctx_size: int = _engine(
        "int", 0, "-c", "--ctx-size", low=0, high=16_777_216,
        help="Cells of KV, shared by all sequences; 0 chooses from the model and the memory at hand.",
    )  # fmt: skip
    engine_parallel: int = _engine(
        "int", 16, "-np", "--parallel", low=1, high=256,
        help="Most sequences computed at once, and a quarter more for keys that would have none; others wait.",
    )  # fmt: skip
    engine_threads: int = _engine(
        "int", -1, "-t", "--threads", low=-1, high=1024, help="Threads for steps of one row; -1: one for each core."
    )
    engine_threads_batch: int = _engine(
        "int", -1, "-tb", "--threads-batch", low=-1, high=1024,
        help="Threads for steps of several rows; -1: as many as --threads.",
    )  # fmt: skip
    engine_batch_size: int = _engine(
        "int", 2048, "-b", "--batch-size", low=1, high=65_536, help="Most rows in one step."
    )
    engine_ubatch_size: int = _engine(
        "int", 512, "-ub", "--ubatch-size", low=1, high=65_536, help="Most rows that the back end computes together."
    )
    engine_n_gpu_layers: int = _engine(
        "int", -1, "-ngl", "--n-gpu-layers", "--gpu-layers", low=-1, high=100_000,
        help="Layers to place on a GPU, where llama.cpp was built for one; -1: all.",
    )  # fmt: skip
    engine_rpc: tuple[str, ...] = _engine(
        "list", (), "--rpc",
        help="Other machines that compute layers of the model, HOST:PORT each, separated by commas: `llamasrv rpc` "
        "runs there. Only within a network that you trust.",
    )  # fmt: skip
    engine_flash_attn: str = _engine(
        "choice", "auto", "-fa", "--flash-attn", choices=("auto", "on", "off"), help="Flash attention."
    )
    engine_cache_type_k: str = _engine(
        "choice", "f16", "-ctk", "--cache-type-k", choices=CACHE_TYPES, help="Number format of the keys in KV."
    )
    engine_cache_type_v: str = _engine(
        "choice", "f16", "-ctv", "--cache-type-v", choices=CACHE_TYPES,
        help="Number format of the values in KV. Quantised formats need flash attention.",
    )  # fmt: skip
    engine_deterministic: bool = _engine(
        "bool", False, "--deterministic",
        help="The same request gives exactly the same answer whatever runs beside it; slower, no prefix is reused.",
    )  # fmt: skip
    engine_queue_limit: int = _engine(
        "int", 1024, "--queue-limit", low=0, high=100_000,
        help="Most sequences that wait; further requests are refused with 429.",
    )  # fmt: skip
    engine_embeddings: bool = _engine(
        "bool", False, "--embeddings", "--embedding",
        help="A model that generates answers embeddings, too. Models made for embeddings always do.",
    )  # fmt: skip
    engine_pooling: str | None = _engine(
        "choice", None, "--pooling", choices=POOLINGS,
        help="How the tokens of an input become one vector. Unset: as the model says, else the mean.",
    )  # fmt: skip
    engine_embedding_ctx: int = _engine(
        "int", 0, "--embedding-ctx-size", low=0, high=1_048_576,
        help="Longest input of an embedding, in tokens; 0: what the model was trained on, at most 2048.",
    )  # fmt: skip
    engine_step_target_ms: float = _engine(
        "float", 200.0, "--step-target-ms", low=1.0, high=60_000.0,
        help="Milliseconds that a step may take while streams decode: long prompts are cut into parts that fit.",
    )  # fmt: skip
    engine_stall_timeout: float = _engine(
        "float", 300.0, "--stall-timeout", low=1.0, high=86_400.0,
        help="Seconds that one step may take; then the process is replaced. /readyz says 503 after a tenth of it.",
    )  # fmt: skip
    engine_coalesce_ms: float = _engine(
        "float", 2.0, "--coalesce-ms", low=0.0, high=1000.0,
        help="Milliseconds within which the tokens of very short steps may reach a client together.",
    )  # fmt: skip

    sampling_temp: float | None = _sampling(
        "float", None, "--temp", "--temperature", low=0.0, high=100.0, help="Temperature (llama.cpp: 0.8); 0 is greedy."
    )
    sampling_top_k: int | None = _sampling(
        "int", None, "--top-k", low=0, high=1_000_000, help="Keep the k likeliest tokens (40); 0 is off."
    )
    sampling_top_p: float | None = _sampling(
        "float", None, "--top-p", low=0.0, high=1.0, help="Keep the likeliest tokens that sum up to p (0.95); 1 is off."
    )
    sampling_min_p: float | None = _sampling(
        "float", None, "--min-p", low=0.0, high=1.0,
        help="Drop tokens less likely than p times the likeliest (0.05); 0 is off.",
    )  # fmt: skip
    sampling_typical: float | None = _sampling(
        "float", None, "--typical", "--typical-p", low=0.0, high=1.0, help="Locally typical sampling (1.0: off)."
    )
    sampling_top_n_sigma: float | None = _sampling(
        "float", None, "--top-nsigma", "--top-n-sigma", low=-1.0, high=100.0,
        help="Keep tokens within n standard deviations of the best logit (-1: off).",
    )  # fmt: skip
    sampling_dynatemp_range: float | None = _sampling(
        "float", None, "--dynatemp-range", low=0.0, high=100.0, help="Dynamic temperature, range (0: off)."
    )
    sampling_dynatemp_exp: float | None = _sampling(
        "float", None, "--dynatemp-exp", low=0.0, high=100.0, help="Dynamic temperature, exponent (1.0)."
    )
    sampling_xtc_probability: float | None = _sampling(
        "float", None, "--xtc-probability", low=0.0, high=1.0, help="Chance of excluding the top choices (0: off)."
    )
    sampling_xtc_threshold: float | None = _sampling(
        "float", None, "--xtc-threshold", low=0.0, high=1.0, help="Probability from which a choice is a top one (0.1)."
    )
    sampling_repeat_penalty: float | None = _sampling(
        "float", None, "--repeat-penalty", low=0.01, high=100.0, help="Divides logits of recent tokens (1.0: off)."
    )
    sampling_repeat_last_n: int | None = _sampling(
        "int", None, "--repeat-last-n", low=-1, high=16_777_216,
        help="Tokens that the penalties look back (64); -1 is the whole context.",
    )  # fmt: skip
    sampling_presence_penalty: float | None = _sampling(
        "float", None, "--presence-penalty", low=-100.0, high=100.0, help="Subtracted once from used tokens (0: off)."
    )
    sampling_frequency_penalty: float | None = _sampling(
        "float",
        None,
        "--frequency-penalty",
        low=-100.0,
        high=100.0,
        help="Subtracted for each use of a token (0: off).",
    )
    sampling_dry_multiplier: float | None = _sampling(
        "float", None, "--dry-multiplier", low=0.0, high=100.0, help="DRY penalty against repeated phrases (0: off)."
    )
    sampling_dry_base: float | None = _sampling(
        "float", None, "--dry-base", low=1.0, high=100.0, help="DRY: how fast the penalty grows (1.75)."
    )
    sampling_dry_allowed_length: int | None = _sampling(
        "int", None, "--dry-allowed-length", low=0, high=100_000, help="DRY: repeated tokens that are free (2)."
    )
    sampling_dry_penalty_last_n: int | None = _sampling(
        "int", None, "--dry-penalty-last-n", low=-1, high=16_777_216,
        help="DRY: tokens to look back (64); -1 is the whole context.",
    )  # fmt: skip
    sampling_mirostat: int | None = _sampling(
        "int", None, "--mirostat", low=0, high=2, help="Mirostat version (0: off); replaces the other filters."
    )
    sampling_mirostat_ent: float | None = _sampling(
        "float", None, "--mirostat-ent", low=0.0, high=100.0, help="Mirostat: target entropy, tau (5.0)."
    )
    sampling_mirostat_lr: float | None = _sampling(
        "float", None, "--mirostat-lr", low=0.0, high=1.0, help="Mirostat: learning rate, eta (0.1)."
    )
    sampling_samplers: tuple[str, ...] | None = _sampling(
        "list", None, "--samplers",
        help="Order of the samplers, separated by commas or semicolons "
        "(penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature).",
    )  # fmt: skip
    sampling_seed: int | None = _sampling(
        "int", None, "-s", "--seed", low=-1, high=4_294_967_295, help="Seed of requests that bring none (-1: fresh)."
    )
    sampling_ignore_eos: bool | None = _sampling(
        "bool", None, "--ignore-eos", help="Go on past the model's end token (false)."
    )

    limits_n_predict: int = _limits(
        "int", -1, "-n", "--n-predict", "--predict", low=-1, high=16_777_216,
        help="Most tokens generated for one choice, also when a request asks for more; -1: until the context is full.",
    )  # fmt: skip
    limits_timeout: float = _limits(
        "float", 3600.0, "--timeout", low=0.0, high=1_000_000.0,
        help="Most seconds for one request, waiting included; 0 is no limit.",
    )  # fmt: skip
    limits_body_bytes: int = _limits(
        "size", 4 * 2**20, "--max-body-bytes", low=1024, high=2**40, help="Largest request body."
    )
    limits_body_seconds: float = _limits(
        "float", 30.0, "--body-timeout", low=0.1, high=3600.0,
        help="Seconds without a byte of a request's body after which it is refused with 408.",
    )  # fmt: skip
    limits_json_depth: int = _limits(
        "int", 100, "--max-json-depth", low=5, high=500, help="Deepest nesting of a JSON body."
    )
    limits_messages: int = _limits(
        "int", 10_000, "--max-messages", low=1, high=1_000_000, help="Most messages in one conversation."
    )
    limits_parts: int = _limits(
        "int", 1_000, "--max-parts", low=1, high=1_000_000, help="Most content parts of one message."
    )
    limits_tools: int = _limits("int", 1_024, "--max-tools", low=1, high=65_536, help="Most tools of one request.")
    limits_prompts: int = _limits(
        "int", 512, "--max-prompts", low=1, high=65_536, help="Most prompts of one completions request."
    )
    limits_inputs: int = _limits(
        "int", 2048, "--max-inputs", low=1, high=65_536,
        help="Most inputs of one embeddings request, and documents of one ranking.",
    )  # fmt: skip
    limits_choices: int = _limits(
        "int",
        128,
        "--max-choices",
        low=1,
        high=65_536,
        help="Most choices of one request: prompts times n (or best_of).",
    )
    limits_stops: int = _limits("int", 16, "--max-stops", low=1, high=1024, help="Most stop strings of one request.")
    limits_stop_chars: int = _limits("int", 256, "--max-stop-chars", low=1, high=65_536, help="Longest stop string.")
    limits_logit_bias: int = _limits(
        "int", 10_000, "--max-logit-bias", low=1, high=1_000_000, help="Most entries of logit_bias."
    )
    limits_top_logprobs: int = _limits(
        "int", 20, "--max-top-logprobs", low=0, high=1_000, help="Most alternatives told for each token."
    )
    limits_unread_tokens: int = _limits(
        "int", 10_000, "--max-unread-tokens", low=16, high=16_777_216,
        help="Most tokens of a choice that wait for a client to read them; then it counts as gone.",
    )  # fmt: skip
    limits_background: int = _limits(
        "int", 16, "--max-background", low=0, high=1_000,
        help="Most responses that go on without their client at once; further ones are refused with 429.",
    )  # fmt: skip

    store_url: str | None = _store(
        "text", None, "--store", secret=True,
        help="Where responses are kept: sqlite:///FILE, redis://..., postgresql://..., memory, or none; unset: "
        "responses.db in $STATE_DIRECTORY or ~/.local/state/llamasrv.",
    )  # fmt: skip
    store_max_bytes: int = _store(
        "size", 2**30, "--store-max-bytes", low=2**20, high=2**50,
        help="Most that is kept of them; then those of the conversations that rested longest go. Redis: its own "
        "maxmemory.",
    )  # fmt: skip
    store_max_days: float = _store(
        "float", 30.0, "--store-max-days", low=0.001, high=100_000.0,
        help="Days without use after which a conversation goes.",
    )  # fmt: skip

    cache_ram: int = _cache(
        "size", 2**30, "--cache-ram", low=0, high=2**50, unit=2**20,
        help="Memory outside KV for prefixes that had to leave it; a plain number counts MiB, 0 forgets them.",
    )  # fmt: skip
    cache_disk: int = _cache(
        "size", 0, "--cache-disk", low=0, high=2**50, unit=2**20,
        help="Disk for beginnings that several prompts had, so that a restart finds them; a plain number counts MiB, "
        "0 keeps none.",
    )  # fmt: skip
    cache_disk_dir: Path | None = _cache(
        "path", None, "--cache-disk-dir", help="The folder for them (~/.cache/llamasrv/prefixes)."
    )
    cache_swap: int = _cache(
        "size", 2**30, "--cache-swap", low=0, high=2**50, unit=2**20,
        help="Memory outside KV for sequences that had to make room; a plain number counts MiB, 0 computes them again.",
    )  # fmt: skip
    cache_slot_save_path: Path | None = _cache(
        "path", None, "--slot-save-path",
        help="The folder where POST /slots/N saves states to and restores them from; unset: it does neither.",
    )  # fmt: skip
    cache_prefix_scope: str = _cache(
        "choice", "key", "--prefix-scope", choices=("key", "all"),
        help="Who reuses what a prompt begins with: requests with the same API key, or all. What is reused is answered "
        "sooner, so across keys it would tell that somebody sent it.",
    )  # fmt: skip
    cache_idle_cells: int = _cache(
        "int", 0, "--cache-idle-cells", low=0, high=16_777_216,
        help="Cells of KV that idle prefixes may keep while others are computed; 0: the back end chooses.",
    )  # fmt: skip

    log_level: str = _log(
        "choice", "info", "--log-level", choices=("debug", "info", "warning", "error"), help="Least urgent line to log."
    )
    log_format: str = _log(
        "choice", "text", "--log-format", choices=("text", "json"), help="Form of a log line, on standard error."
    )
    log_requests: bool = _log("bool", True, "--log-requests", help="One line for each request, without its content.")
    log_llama: bool = _log("bool", False, "--log-llama", help="Log what llama.cpp says, too.")

    log_file: Path | None = _log(
        "path", None, "--log-file", help="A file for the log instead of standard error; SIGUSR1 opens it anew."
    )
    log_slow_seconds: float = _log(
        "float", 0.0, "--log-slow-seconds", low=0.0, high=1_000_000.0,
        help="Seconds from which a request gets a warning of its own; 0: never.",
    )  # fmt: skip
    log_spans: bool = _log(
        "bool", False, "--log-spans",
        help="Send a span for each request to the collector that OpenTelemetry's own variables (OTEL_*) name.",
    )  # fmt: skip

    # What is no option by itself, but a table of the file; and where all of it came from.
    tables: tuple[ModelTable, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # further names for models
    source: Source | None = field(default=None, repr=False, compare=False)

    def of(self, table: ModelTable) -> Settings:
        """The settings of one model: its table's, and these for what the table leaves open."""
        own = {option.name: option.default for option in OPTIONS if option.section == "model"}
        return dataclasses.replace(self, **(own | dict(table.values)), tables=(), aliases={})

    def sampling(self) -> dict[str, Any]:
        """Sampling defaults that the operator set, under the names of SamplingParams."""
        given = {}
        for option in OPTIONS:
            value = getattr(self, option.name)
            if option.section == "sampling" and value is not None:
                name = option.name.removeprefix("sampling_")
                given[_PARAM_NAMES.get(name, name)] = value
        if given.get("seed") == -1:
            given["seed"] = None
        return given

    def adapters(self) -> tuple[tuple[str, str, float], ...]:
        """Name, file and scale of each LoRA adapter."""
        found = [ADAPTER.fullmatch(text) for text in self.model_adapters]
        return tuple((m[1], m[2], float(m[3] or 1)) for m in found if m is not None)

    def api_keys(self) -> tuple[str, ...]:
        """Keys as clients show them: those given directly and those of a plain key file. `keys.of` knows all."""
        if self.server_api_key_file is None or self.server_api_key_file.suffix == ".toml":
            return self.server_api_key
        try:
            lines = self.server_api_key_file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"server.api_key_file = {str(self.server_api_key_file)!r}: {_reason(error)}") from None
        keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
        if not keys:
            raise ConfigError(f"server.api_key_file = {str(self.server_api_key_file)!r}: there is no key in it")
        return self.server_api_key + keys

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket to listen on, if that is what `server.host` names."""
        return Path(self.server_host) if self.server_host.endswith(".sock") else None

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.server_host, self.server_host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.server_port}"


# Where the name in SamplingParams is not the flag's.
_PARAM_NAMES = {
    "temp": "temperature",
    "typical": "typical_p",
    "dynatemp_exp": "dynatemp_exponent",
    "mirostat_ent": "mirostat_tau",
    "mirostat_lr": "mirostat_eta",
}

OPTIONS: tuple[Option, ...] = tuple(
    dataclasses.replace(f.metadata["option"], name=f.name)
    for f in dataclasses.fields(Settings)
    if "option" in f.metadata
)

# What a model's table may say, by its key there.
TABLE_KEYS: Mapping[str, Option] = {
    option.key.partition(".")[2]: option
    for option in OPTIONS
    if (option.section in ("model", "engine", "sampling", "cache") and option.name != "model_fake")
    or option.name in ("models_keep_alive", "limits_n_predict")
}
LOAD = "load"  # of a table: load it when the server starts


# Where options come from


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Settings:
    """Settings from a TOML file, the environment and flags (by name of the attribute; None is not given)."""
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    values: dict[str, Any] = {"source": Source(dict(flags or {}), config)}
    if config is not None:
        values.update(_from_file(config))
    values.update(_from_environment(environ))
    for option in OPTIONS:
        value = (flags or {}).get(option.name)
        if value is not None:
            values[option.name] = convert(option, value, f"{option.long_flag} {value!r}")
    settings = Settings(**values)
    _check_together(settings)
    for table in settings.tables:
        try:
            _check_together(settings.of(table))
        except ConfigError as error:
            raise ConfigError(f"[models.{table.name}]: {error}") from None
    return settings


def load_again(settings: Settings) -> Settings:
    """The same file, environment and flags as they are now."""
    source = settings.source or Source({}, None)
    return load(source.flags, config=source.config)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {_reason(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    by_key = {option.key: option for option in OPTIONS}
    sections = {option.section for option in OPTIONS}
    values: dict[str, Any] = {}
    aliases = document.pop("aliases", None)
    if aliases is not None:
        values["aliases"] = _aliases(path, aliases)
    tables = []
    for key, value in _flatten(document, sections):
        section, _, name = key.partition(".")
        if section == "models" and isinstance(value, Mapping):
            tables.append(_table(path, name, value))
            continue
        option = by_key.get(key)
        if option is None:
            raise ConfigError(f"{path}: {key} = {_show(value)}: unknown key{nearest(key, by_key)}")
        values[option.name] = convert(option, value, f"{path}: {key} = {_show(value, secret=option.secret)}")
    values["tables"] = tuple(tables)
    return values


def _table(path: Path, name: str, table: Mapping[str, Any]) -> ModelTable:
    where = f"{path}: models.{name}"
    values = {}
    for key, value in table.items():
        option = TABLE_KEYS.get(key)
        if key == LOAD:
            if not isinstance(value, bool):
                raise ConfigError(f"{where}.{key} = {_show(value)}: must be true or false")
        elif option is None:
            raise ConfigError(f"{where}.{key} = {_show(value)}: unknown key{nearest(key, [*TABLE_KEYS, LOAD])}")
        else:
            values[option.name] = convert(option, value, f"{where}.{key} = {_show(value)}")
    return ModelTable(name, values, load=bool(table.get(LOAD)))


def _aliases(path: Path, aliases: Any) -> dict[str, str]:
    if not isinstance(aliases, Mapping):
        raise ConfigError(f"{path}: aliases = {_show(aliases)}: must be a table of names")
    for alias, name in aliases.items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{path}: aliases.{alias} = {_show(name)}: must be the name of a model")
    return dict(aliases)


def _flatten(document: Mapping[str, Any], sections: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if name in sections and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {option.variable: option for option in OPTIONS}
    values = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE or _is_service_link(variable, environ):
            continue
        option = by_variable.get(variable)
        if option is None:
            raise ConfigError(
                f"environment: {variable}={environ[variable]!r}: unknown name{nearest(variable, by_variable)}"
            )
        shown = _show(environ[variable], secret=option.secret)
        values[option.name] = convert(option, environ[variable], f"environment: {variable}={shown}")
    return values


def _is_service_link(variable: str, environ: Mapping[str, str]) -> bool:
    return _SERVICE_LINK.fullmatch(f"{variable}={environ[variable]}") is not None


# What only the options together can tell


def _check_together(s: Settings) -> None:
    def refuse(first: str, message: str) -> None:
        raise ConfigError(f"{_option_named(first).key}: {message}")

    if s.model_fake and s.model_path is not None:
        refuse("model_fake", "a fake model and model.path exclude each other")
    if s.model_fake and s.engine_rpc:
        refuse("engine_rpc", "a fake model is computed nowhere else")
    if s.model_chat_template is not None and s.model_chat_template_file is not None:
        refuse("model_chat_template", "give the template or the file, not both")
    if s.engine_batch_size < s.engine_parallel:
        refuse("engine_batch_size", f"{s.engine_batch_size} is less than engine.parallel = {s.engine_parallel}: "
               "each sequence needs a row of the batch")  # fmt: skip
    if s.engine_ubatch_size > s.engine_batch_size:
        refuse("engine_ubatch_size", f"{s.engine_ubatch_size} is more than engine.batch_size = {s.engine_batch_size}")
    if s.engine_flash_attn == "off" and s.engine_cache_type_v not in ("f32", "f16", "bf16"):
        refuse("engine_cache_type_v", f"{s.engine_cache_type_v} needs flash attention, and engine.flash_attn is off")
    if not s.server_allow_keyless and not _is_local(s) and not s.server_api_key and s.server_api_key_file is None:
        refuse("server_host", f"{s.server_host} can be reached from other machines and there is no key: "
               "give --api-key-file (or --allow-keyless if that is meant)")  # fmt: skip


def _is_local(settings: Settings) -> bool:
    host = settings.server_host.strip("[]")
    return settings.socket_path is not None or host in ("localhost", "::1") or host.startswith("127.")


def _option_named(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


def as_environment(settings: Settings) -> dict[str, str]:
    """The variables that give another process these settings."""
    variables = {}
    file = settings.source.config if settings.source is not None else None
    if file is not None:
        variables[CONFIG_VARIABLE] = str(file)  # for its tables; all of its options are told once more
    for option in OPTIONS:
        value = getattr(settings, option.name)
        if value != option.default or (file is not None and value is not None):
            text = ",".join(value) if isinstance(value, tuple) else f"{value}B" if option.kind == "size" else str(value)
            variables[option.variable] = text
    return variables


# Words for error lines


def _show(value: Any, *, secret: bool = False) -> str:
    text = "***" if secret else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return getattr(error, "strerror", None) or type(error).__name__


# The settings of this process

_current: Settings | None = None


def use(settings: Settings) -> None:
    """Make `settings` those of this process and of the workers that it forks."""
    global _current
    _current = settings


def current() -> Settings:
    """The settings in use; without `use`, those of the environment (and the file that LLAMASRV_CONFIG names)."""
    return _current if _current is not None else load()
