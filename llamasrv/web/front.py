"""The front of the application: every request is admitted or refused here, once, before Flask sees it.

Flask is asked only for routes that exist and for clients that may use them. Every reply gets its id here, and the
headers that browsers look for; a refused request ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import Map, Rule

from llamasrv.protocols.common.headers import IGNORED, LEFT_OUT
from llamasrv.web.access.admission import QUEUED, AdmissionRefused, HeadAdmission
from llamasrv.web.context import KEY, RequestContext, context_of
from llamasrv.web.errors import note, render, translated
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.routes.paths import meant
from llamasrv.web.service import Service

Headers = list[tuple[str, str]]
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

EXPOSED = f"x-request-id, retry-after, x-llamasrv-cache, x-llamasrv-edits, {IGNORED}, {LEFT_OUT}"
"""Headers that another site's page may read."""

_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class AdmissionMiddleware:
    """The WSGI application in front of Flask's."""

    def __init__(self, application: Application, service: Service, find: Callable[[str, str], FoundRoute]) -> None:
        self._application = application
        self._service = service
        self._admission = HeadAdmission(lambda: service.access, service.registry, find)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["PATH_INFO"] = meant(self._inside(environ), environ)
        context = environ.get(KEY)
        if context is None:
            context = environ[KEY] = RequestContext()
        record = context.record = RequestLog(environ, self._service.stats)
        found = self._admission.admit(environ)
        record.owner = found.owner
        if found.route is None:
            record.asked = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        else:
            self._service.last_route = record.route = found.route.pattern
            context.found = found.route
        headers = self._headers(environ, record.id)
        if isinstance(found, AdmissionRefused):
            return _refuse(found, environ, start_response, headers)
        record.quota = found.quota
        if record.route in QUEUED and environ["REQUEST_METHOD"] == "POST":
            record.idle_gate = self._service.idle_gate
            record.idle_gate.enter()

        def start(status: str, own: Headers, exc_info: Any = None) -> Any:
            return start_response(status, own + headers, exc_info)

        return self._application(environ, start)

    def _inside(self, environ: dict[str, Any]) -> str:
        """The path without the prefix that the server is mounted under. A path without that prefix is accepted, too: a
        proxy may have stripped it."""
        path, prefix = environ["PATH_INFO"], self._service.options.prefix
        if prefix and path.startswith(prefix + "/"):
            environ["SCRIPT_NAME"] = prefix
            path = path[len(prefix) :]
        return str(self._service.options.paths.get(path, path))

    def _headers(self, environ: dict[str, Any], request_id: str) -> Headers:
        """The headers of every reply. Another site's page may read it only where it is allowed to, and with cookies
        only where the operator says so."""
        headers = [("x-request-id", request_id), ("request-id", request_id)]  # OpenAI's, Anthropic's name
        origin = self._service.access.allowed_origin(environ)
        if origin is None:
            return headers
        headers += [
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", EXPOSED),
            ("Vary", "Origin"),
        ]
        if self._service.options.credentials:
            headers.append(("Access-Control-Allow-Credentials", "true"))
        if environ["REQUEST_METHOD"] == "OPTIONS":
            wanted = environ.get("HTTP_ACCESS_CONTROL_REQUEST_HEADERS", "*")[:1000]
            headers += [
                ("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS"),
                ("Access-Control-Allow-Headers", wanted),
                ("Access-Control-Max-Age", "3600"),
            ]
        return headers


def _refuse(refusal: AdmissionRefused, environ: dict[str, Any], start_response: Any, headers: Headers) -> list[bytes]:
    record = context_of(environ).record
    note(refusal.error, record)
    status, own, body = render(refusal.error, environ, record.id)
    own += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(_STATUS_LINES.get(status) or f"{status} Unknown", own + headers)
    record.close(status)
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]


class FoundRoute(NamedTuple):
    """The route of a path and the values of its parameters; to Flask it is a `MapAdapter`."""

    rule: Rule
    arguments: Mapping[str, Any]

    @property
    def pattern(self) -> str:
        return self.rule.rule

    def match(self, *, return_rule: bool) -> tuple[Rule, Mapping[str, Any]]:
        return self.rule, self.arguments


class RouteFinder:
    """Finds the route for a method and a path, once for each request. Routes without parameters need no matching."""

    def __init__(self, routes: Map) -> None:
        plain = (rule for rule in routes.iter_rules() if not rule.arguments)
        self.plain = {(method, rule.rule): FoundRoute(rule, {}) for rule in plain for method in rule.methods or ()}
        self._matcher = routes.bind("")

    def find(self, method: str, path: str) -> FoundRoute:
        """`path` as WSGI has it. Raises our own NotFound or MethodNotAllowed."""
        found = self.plain.get((method, path))
        if found is not None:
            return found
        text = path.encode("latin-1").decode("utf-8", "replace")  # WSGI's texts are bytes in disguise
        try:
            if text.startswith("//"):
                raise NotFound  # several slashes would be taken for one
            return FoundRoute(*self._matcher.match(text, method, return_rule=True))
        except HTTPException as error:
            raise translated(error, method, text) from None
