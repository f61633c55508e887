"""What belongs to one request while it is answered: our only entry in WSGI's `environ`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # gunicorn's master imports this module, and needs no pipeline
    from llamasrv.protocols.errors import Dialect
    from llamasrv.web.front import FoundRoute
    from llamasrv.web.jobs.idle_gate import BackgroundJob
    from llamasrv.web.ops.request_log import RequestLog

KEY = "llamasrv.request"
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
"""A WSGI application."""


class ClientConnection(Protocol):
    """The client's connection. `web/http` makes them."""

    @property
    def sock(self) -> Any: ...

    def body(self, patience: float) -> AbstractContextManager[None]: ...

    def will_read(self, size: int) -> None: ...


class ResponseChain:
    """The earlier responses on a socket that a new one may continue. This base class has none."""

    def find(self, id: str) -> tuple[dict[str, Any], ...] | None:
        """The items of the response with this id; None if the socket does not keep it."""
        return None

    def goes_on_from(self, items: tuple[dict[str, Any], ...]) -> None:
        """Called with the items of the response that it continues."""

    def began(self, reply: Any, run: Any) -> None:
        """Called once it has begun."""

    def keep(self, stored: Any) -> None:
        """Called with the response once it has ended."""


class TakesOver(Protocol):
    """Takes over a connection that is no longer HTTP. `web/sockets` makes these."""

    def serve(self, connection: Any) -> None: ...

    def fail(self) -> None:
        """Say that the server had an error, and close; called where `serve` has raised."""

    def end(self) -> None: ...


class RequestContext:
    """Made by the connection, or by whatever sends a request without one; the front opens its record."""

    __slots__ = (
        "connection",
        "job",
        "chain",
        "json",
        "takes_over",
        "has_large_body",
        "dialect",
        "found",
        "ignored",
        "_record",
    )

    def __init__(
        self,
        connection: ClientConnection | None = None,
        job: BackgroundJob | None = None,
        *,
        chain: ResponseChain | None = None,
        json: dict[str, Any] | None = None,
        has_large_body: bool = False,
    ) -> None:
        self.connection = connection
        self.job = job  # set for a request of a batch
        self.chain = chain  # set for a request made on a socket
        self.json = json  # the body, if it was read already
        self.dialect: Dialect | None = None  # for errors, where the body and not the path decides
        self.takes_over: TakesOver | None = None
        self.has_large_body = has_large_body  # then work on it runs off the hub
        self.found: FoundRoute | None = None  # set by the front, for Flask
        self.ignored: list[str] = []  # fields and part types in the body that have no effect
        self._record: RequestLog | None = None

    @property
    def has_record(self) -> bool:
        return self._record is not None

    @property
    def record(self) -> RequestLog:
        assert self._record is not None, "the front opens it"
        return self._record

    @record.setter
    def record(self, record: RequestLog) -> None:
        self._record = record

    @property
    def owner(self) -> str:
        """The name of the API key; "" where none is needed."""
        return self.record.owner

    @property
    def route(self) -> str:
        """The route as logs name it; also before the record is open."""
        return "a request" if self._record is None else self._record.route


def context_of(environ: Mapping[str, Any]) -> RequestContext:
    context: RequestContext = environ[KEY]
    return context


@contextmanager
def called(application: Application, environ: dict[str, Any]) -> Iterator[tuple[int, Iterable[bytes]]]:
    """The status and the body of the application's reply to a request without a socket."""
    statuses: list[int] = []

    def start(line: str, headers: Any, exc_info: Any = None) -> None:
        statuses.append(int(line[:3]))

    pieces = application(environ, start)
    try:
        yield statuses[0], pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
