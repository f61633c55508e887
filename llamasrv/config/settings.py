"""All options, resolved: a dataclass with one section per consumer. `sources.py` fills it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llamasrv.config.limits import LimitsSection
from llamasrv.config.media import MediaSection
from llamasrv.config.option import reason
from llamasrv.config.sampling import SamplingSection
from llamasrv.config.sections import (
    CacheSection,
    LogSection,
    ModelSection,
    ModelsSection,
    ServerSection,
    StoreSection,
)
from llamasrv.config.tools import ToolsSection
from llamasrv.domain.option import Option
from llamasrv.engine.base.options import EngineOptions
from llamasrv.errors import ConfigError


@dataclass(frozen=True)
class ModelTable:
    """`[models.NAME]` of the file: a model with its own options."""

    name: str
    values: Mapping[str, Any] = field(repr=False)  # by option name; the Hub's token can be among them
    load: bool = False  # at startup
    shows_file: bool = False  # also serve its file under the file's own name, if it is in models.dir


@dataclass(frozen=True)
class Source:
    """The arguments of `load`, so that it can be repeated."""

    flags: Mapping[str, Any]
    config: Path | None


@dataclass(frozen=True)
class Settings:
    """All options, resolved. The order of the sections is the order in all documents."""

    model: ModelSection = ModelSection()
    models: ModelsSection = ModelsSection()
    server: ServerSection = ServerSection()
    engine: EngineOptions = EngineOptions()
    sampling: SamplingSection = SamplingSection()
    limits: LimitsSection = LimitsSection()
    media: MediaSection = MediaSection()
    tools: ToolsSection = ToolsSection()
    store: StoreSection = StoreSection()
    cache: CacheSection = CacheSection()
    log: LogSection = LogSection()

    # Tables of the file that are not options, and the sources of everything.
    tables: tuple[ModelTable, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # aliases of models
    source: Source | None = field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)  # log lines

    def having(self, **sections: Mapping[str, Any]) -> Settings:
        """A copy with other values: `having(engine={"threads": 4})`."""
        changed = {name: dataclasses.replace(getattr(self, name), **values) for name, values in sections.items()}
        return dataclasses.replace(self, **changed)

    def of(self, table: ModelTable) -> Settings:
        """The settings of one model: its table's, with these as defaults."""
        own = {option.name: option.default for option in OPTIONS if option.section == "model"}
        made = with_values(dataclasses.replace(self, tables=(), aliases={}), own | dict(table.values))
        return fitting(made, table.values)

    def sampling_defaults(self) -> dict[str, Any]:
        """The configured sampling defaults, under the names of SamplingParams."""
        given = {name: value for name, value in vars(self.sampling).items() if value is not None}
        if given.get("seed") == -1:
            given["seed"] = None
        return given

    def api_keys(self) -> tuple[str, ...]:
        """Keys as clients present them, from the option and from a plain key file. `keys.of` returns all keys."""
        if self.server.api_key_file is None or self.server.api_key_file.suffix == ".toml":
            return self.server.api_key
        try:
            lines = self.server.api_key_file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"server.api_key_file = {str(self.server.api_key_file)!r}: {reason(error)}") from None
        keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
        if not keys:
            raise ConfigError(f"server.api_key_file = {str(self.server.api_key_file)!r}: contains no key")
        return self.server.api_key + keys

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where to listen: names, addresses, paths of Unix sockets."""
        return tuple(host.strip() for host in self.server.host.split(",") if host.strip())

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket to listen on, if that is the first entry in `server.host`."""
        return Path(self.hosts[0]) if self.hosts[0].endswith(".sock") else None

    @property
    def addresses(self) -> list[str]:
        """Where to listen: ADDRESS:PORT, IPv6 in brackets, or unix:PATH."""
        port = self.server.port
        return [f"unix:{host}" if host.endswith(".sock") else f"{_bracketed(host)}:{port}" for host in self.hosts]

    @property
    def url(self) -> str:
        """The URL of the server for a local client."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.hosts[0], self.hosts[0])
        return f"{self.scheme}://{_bracketed(host)}:{self.server.port}"

    @property
    def scheme(self) -> str:
        return "http" if self.server.ssl_cert_file is None else "https"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _declared() -> Iterator[Option]:
    sections = dataclasses.fields(Settings)
    # The engine's own options come after the others of the tables that they share.
    for section in sorted(sections, key=lambda section: section.name == "engine"):
        for f in dataclasses.fields(section.default) if dataclasses.is_dataclass(section.default) else ():
            option = f.metadata.get("option")
            if option is not None:
                key = option.key if not option.key.endswith(".") else option.key + f.name
                yield dataclasses.replace(option, key=key, place=(section.name, f.name))


_ORDER = [section.name for section in dataclasses.fields(Settings)]
OPTIONS: tuple[Option, ...] = tuple(sorted(_declared(), key=lambda option: _ORDER.index(option.section)))


def value_of(settings: Settings, option: Option) -> Any:
    section, field = option.place
    return getattr(getattr(settings, section), field)


HUB_PREFIXES = ("hf:", "hf.co/", "huggingface.co/")


def fitting(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Resolve dependent values: a batch is never smaller than its micro-batch, so the one that is not given follows the
    other; a model given as hf:OWNER/REPO:QUANT or hf.co/OWNER/REPO:QUANT is a repository."""
    path = str(settings.model.path or "")
    if (hub := next((prefix for prefix in HUB_PREFIXES if path.startswith(prefix)), None)) is not None:
        settings = settings.having(model={"path": None, "hf_repo": path.removeprefix(hub)})
    batch, unit = settings.engine.batch_size, settings.engine.ubatch_size
    if unit > batch and "engine_ubatch_size" not in given:
        return settings.having(engine={"ubatch_size": batch})
    if unit > batch and "engine_batch_size" not in given:
        return settings.having(engine={"batch_size": unit})
    return settings


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with values by option name."""
    sections: dict[str, dict[str, Any]] = {}
    for option in OPTIONS:
        if option.name in values:
            section, field = option.place
            sections.setdefault(section, {})[field] = values[option.name]
    return settings.having(**sections)


# Options that only the model of the command line has.
_OF_THE_ONE = ("model_fake", "model_offline", "model_sleep_idle_seconds")

# Options that a model's table may contain, by key.
TABLE_KEYS: Mapping[str, Option] = {
    option.key.partition(".")[2]: option
    for option in OPTIONS
    if (option.section in ("model", "engine", "sampling", "cache") and option.name not in _OF_THE_ONE)
    or option.name in ("models_keep_alive", "limits_n_predict", "limits_answer_tokens")
}
