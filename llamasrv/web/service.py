"""What the web layer works with: the models, the pipeline and the settings. Knows nothing of Flask or option files."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llamasrv.concurrency import off_hub
from llamasrv.config import paths
from llamasrv.domain.key import Key
from llamasrv.engine.base.metrics import Histogram
from llamasrv.errors import Forbidden, InvalidMedia
from llamasrv.models.model import Model
from llamasrv.models.pulls import Pulls
from llamasrv.models.registry import Registry
from llamasrv.pipeline import Pipeline
from llamasrv.pipeline.media import MediaOptions
from llamasrv.protocols.limits import Limits
from llamasrv.store import ResponseStore
from llamasrv.store.batches import BatchStore
from llamasrv.store.files import FileStore
from llamasrv.store.folder_shelf import FolderShelf
from llamasrv.store.runs import RunStore
from llamasrv.store.shelf import Shelf
from llamasrv.tools.definitions import Definition
from llamasrv.tools.runtime import Image, Runtime
from llamasrv.tools.toolbox import Toolbox
from llamasrv.web.access.auth import Access, Network
from llamasrv.web.access.shared_quotas import SharedQuotas
from llamasrv.web.jobs.background import Background
from llamasrv.web.jobs.batches import BatchRunner
from llamasrv.web.jobs.idle_gate import IdleGate
from llamasrv.web.jobs.take_over import TakeOver
from llamasrv.web.ops.history import FigureHistory
from llamasrv.web.ops.request_log import RequestStats
from llamasrv.web.ops.usage import UsageBook
from llamasrv.web.stored import chat_history
from llamasrv.web.stored.cached_contents import StoredCachedContents
from llamasrv.web.stored.chat_history import ChatHistory
from llamasrv.web.stored.conversations import StoredConversations
from llamasrv.web.stored.idempotency import Idempotency
from llamasrv.web.stored.responses import StoredResponses
from llamasrv.web.stored.spoken_answers import SpokenAnswers
from llamasrv.web.stored.threads import StoredThreads
from llamasrv.web.streams.resume import Streams
from llamasrv.web.streams.running import RunningChats

log = logging.getLogger("llamasrv")

STALLS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # bucket bounds: seconds that the hub computed without a break
LINE_AROUND = 65_536  # max bytes of a line in a batch's file besides the request's body


@dataclass(frozen=True, slots=True)
class WebOptions:
    limits: Limits = field(default_factory=Limits)
    media: MediaOptions = field(default_factory=MediaOptions)
    keys: tuple[Key, ...] = ()  # none: no key is needed
    hosts: tuple[str, ...] = ()  # host names that the server answers to; none: only those of this machine
    origins: tuple[str, ...] = ()  # pages that may read answers; none: no CORS
    credentials: bool = False  # whether those pages may send cookies
    monitor_networks: tuple[Network, ...] = ()  # where monitoring needs no key
    most_open: int | None = None  # concurrent requests per key, if there are several keys; None: no limit
    keepalive: float = 15.0  # seconds without a byte before a stream gets a comment
    timeout: float | None = None  # seconds a request may take from its arrival; None: no limit
    stalled_seconds: float = 30.0  # not ready while a step takes longer
    currency: str = "USD"  # of the models' prices
    slow_seconds: float | None = None  # a request that takes longer gets a warning line; None: never
    slots: bool = True  # GET /slots
    predict: bool = False  # POST /predict
    paths: Mapping[str, str] = field(default_factory=dict)  # additional paths, and the paths they stand for
    slot_folder: Path | None = None  # where POST /slots saves states; None: it does not
    props: bool = False  # POST /props
    metrics: bool = True  # GET /metrics
    verbose: bool = False  # replies show the prompt, and how tokens were chosen, where the client does not say
    ui: bool = True  # pages for browsers
    history_days: float | None = None  # how long the playground's conversations may be kept here; None: not at all
    prefix: str = ""  # of all paths, without a trailing slash
    router: bool = False  # no model is named: they are loaded as requests ask for them
    lora_folder: Path | None = None  # of adapters that clients may load while a model is served; None: they may not
    manage: bool = False  # clients may pull, load, unload and delete models
    files_folder: Path | None = None  # where files and batches are kept; None: in the store's server, else with state
    files_bytes: int = 0  # max bytes of files and batches; 0: none are kept. One key among several has half of them
    folder: Path | None = None  # where models are looked for
    tools: tuple[str, ...] = ()  # built-in tools that clients may use; "all"
    mcp_servers: tuple[Definition, ...] = ()  # servers whose tools clients may use
    tools_runtime: Runtime | Image | None = None  # where built-in tools run; None: here


class EditsKeys(Protocol):
    """The operator's file of keys; see config/key_file.py. Raises InvalidRequest, and NotFound for an unknown name."""

    def obstacle(self) -> str | None: ...

    def create(self, name: str, values: Mapping[str, Any]) -> str: ...

    def change(self, name: str, values: Mapping[str, Any]) -> None: ...

    def rotate(self, name: str, until: float | None) -> str: ...

    def revoke(self, name: str) -> None: ...


class Service:
    """One per process. `registry`, `pipeline` and `store` belong to the caller that made them; without a store nothing
    is remembered."""

    def __init__(
        self, registry: Registry, pipeline: Pipeline, options: WebOptions, store: ResponseStore | None = None
    ) -> None:
        self.registry = registry
        self.pipeline = pipeline
        self.stats = RequestStats()
        self.hub_stalls = Histogram(STALLS)
        self.last_route = "none"  # of the request that began last
        self.access = Access()
        self.options = options
        book = None if store is None else store.quotas()
        self._shared_quotas = None if book is None else SharedQuotas(book)
        self._is_alone = store is not None and book is None  # False where servers may share the store
        self.pulls = Pulls(
            options.folder or paths.models_dir(),
            notice=None if registry.loader is None else registry.loader.notice,
            on_pulled=lambda: self.refresh(),
        )
        self.refresh: Callable[[], None] = lambda: None  # look again which models there are
        self.reread: Callable[[], None] = lambda: None  # the same, with the models that the configuration names now
        self.configuration: Callable[[], str] = lambda: ""  # the one in force, without secrets
        self.reload: Callable[[], None] = lambda: None  # reads it again; raises ConfigError, and then changes nothing
        self.key_file: EditsKeys | None = None
        self.reread_keys: Callable[[], tuple[Key, ...]] = lambda: self.options.keys
        self.tell_master: Callable[[], None] = lambda: None  # has the master reload the configuration, too
        self.serve_models_of: Callable[[Any], None] = lambda settings: None  # switches to the models of other settings
        self.threads = StoredThreads(store)
        self.cached_contents = StoredCachedContents()
        self.spoken_answers = SpokenAnswers()
        self.conversations = StoredConversations(store)
        self.idempotency = Idempotency(store)
        self.has_store = store is not None
        self.usage = UsageBook(store)
        self.stats.usage = self.usage
        runs = RunStore.of(store)
        self.background = Background(StoredResponses(store), options.limits.background, self.usage, runs)
        self.take_over = None if runs is None else TakeOver(self.background, runs)
        if self.take_over is not None:
            self.take_over.quota_of = lambda owner: self.access.quotas.get(owner)
        self.idle_gate = IdleGate(self._hold_deferrable)
        self.files = FileStore(_shelf(options, store, "files"), options.files_bytes)
        chats = self._open_chats(store)
        self.chat_history = ChatHistory(chats, options.history_days)
        self.batches = self._batch_runner(store, chats)
        if options.files_bytes:
            pipeline.documents.open_file = self._content_of
        self.history = FigureHistory(registry)
        self.streams = Streams()
        self.tools = Toolbox(options.tools, options.mcp_servers, options.tools_runtime)
        self.running = RunningChats()
        pipeline.permit = self.permit
        self.use(options)

    @classmethod
    def of(cls, registry: Registry, options: WebOptions | None = None, store: ResponseStore | None = None) -> Service:
        options = options or WebOptions()
        return cls(registry, Pipeline(registry, options.media), options, store)

    def _open_chats(self, store: ResponseStore | None) -> FileStore:
        """The storage of the playground's conversations. Its bytes count with those of files."""
        return FileStore(
            _shelf(self.options, store, "history"),
            self.options.files_bytes,
            most=2 * chat_history.MOST + 2,
            kind=chat_history.KIND,
            quota=self.files.quota,
        )

    def _batch_runner(self, store: ResponseStore | None, chats: FileStore) -> BatchRunner:
        limits, shelf = self.options.limits, _shelf(self.options, store, "batches")
        shelf.quota = self.files.quota  # one bound for all of it
        return BatchRunner(
            BatchStore(shelf),
            self.files,
            self.idle_gate,
            others=(chats,),
            longest_line=limits.body_bytes + LINE_AROUND,
            line_values=limits.json_values + LINE_AROUND,
        )

    def tell_of_router(self) -> None:
        """Warn once that there is a router, and so probably other servers, while this one's store is not shared."""
        if self._is_alone:
            self._is_alone = False
            log.warning(
                "a router asks for the load, so there may be other servers, and this one has a store of its own: "
                "previous_response_id, conversations, batches and quotas are not shared. store.url = redis://HOST or "
                "postgresql://HOST is"
            )

    def close_session(self, session: str, owner: str) -> None:
        """Stop keeping prefixes for it."""
        for model in self.registry.models:
            if model.current is not None:
                model.current.close_session(session, owner)

    def _hold_deferrable(self, seconds: float) -> None:
        for model in self.registry.models:
            if model.current is not None:
                model.current.hold_deferrable(seconds)

    def _content_of(self, owner: str, id: str) -> bytes:
        """The content of an uploaded file. Raises NotFound, InvalidMedia."""
        if self.files.find(owner, id).bytes > (most := self.pipeline.media.options.sources.max_bytes):
            raise InvalidMedia(f"File '{id}' is larger than {most} bytes.")
        content = self.files.content(owner, id)
        return off_hub(content.read) if content.shelf.blocks else content.read()

    def use_keys(self) -> None:
        """Read the keys again, and use them from the next request on."""
        self.use(dataclasses.replace(self.options, keys=self.reread_keys()))

    def use(self, options: WebOptions) -> None:
        """Use these options from the next request on. Limits do not change: the schemas were made with them."""
        self.options = dataclasses.replace(options, limits=self.options.limits)
        self.stats.slow_seconds = options.slow_seconds
        # A single key shares with no other.
        is_shared = len(options.keys) > 1
        self.files.quota.share = options.files_bytes // 2 if is_shared else None
        self.background.share = max(1, self.options.limits.background // 2) if is_shared else None
        self.access = Access(
            options.keys,
            hosts=options.hosts,
            origins=options.origins,
            monitor_networks=options.monitor_networks,
            most_open=options.most_open,
            before=self.access,
            shared=self._shared_quotas,
            spent=self.usage.spent_this_month,
        )

    def may_use(self, owner: str, model: Model) -> bool:
        """Whether the key with that name may use the model."""
        names = self.access.models_of(owner)
        return names is None or any(self.registry.named(name) is model for name in names)

    def models_of(self, owner: str) -> list[Model]:
        """The models that the key with that name may use."""
        return [model for model in self.registry.models if self.may_use(owner, model)]

    def permit(self, owner: str, model: Model) -> None:
        """Raises Forbidden if the key with that name may not use the model."""
        if not self.may_use(owner, model):
            names = ", ".join(model.name for model in self.models_of(owner)) or "none"
            raise Forbidden(f"This API key may not use the model '{model.name}'. Its models: {names}")


def _shelf(options: WebOptions, store: ResponseStore | None, name: str) -> Shelf:
    shelf = store.shelf(name) if store is not None and options.files_folder is None else None
    return shelf or FolderShelf((options.files_folder or paths.state_dir()) / name, off_hub)
