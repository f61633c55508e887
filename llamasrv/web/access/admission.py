"""Admission: one decision per request, from its head alone.

In this order: host and origin, key, route, scope, the key's quota, the queue. A refused request costs no body, no view
and no queue place; an admitted one counts against the key's concurrency until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from llamasrv.errors import LlamasrvError
from llamasrv.models.registry import Registry
from llamasrv.web.access.auth import Access
from llamasrv.web.access.quota import Quota

QUEUED = frozenset((
    "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion", "/infill",
    "/v1beta/models/<path:name>:generateContent", "/v1beta/models/<path:name>:streamGenerateContent",
    "/v1beta/cachedContents", "/v1beta/interactions",
    "/v1/decisions", "/decisions", "/v1beta/decisions", "/v1/systemone", "/systemone",
    "/v1/audio/speech", "/audio/speech",
    "/v1/messages", "/api/chat", "/api/generate", "/v1/responses", "/responses",
))  # fmt: skip
"""Routes whose POST needs a place in the queue."""


class NamedRoute(Protocol):
    """What the finder of routes gives."""

    @property
    def pattern(self) -> str:
        """As declared in web/routes."""


class Admitted(NamedTuple):
    route: NamedRoute
    owner: str  # the key's name; "" if no key is needed
    quota: Quota | None  # None if the request counts against no quota


class AdmissionRefused(NamedTuple):
    route: NamedRoute | None  # None: no such route
    owner: str
    error: LlamasrvError


class HeadAdmission:
    """`access()` returns the access rules in force; `route_of` finds the route for a method and path, or raises."""

    def __init__(
        self, access: Callable[[], Access], registry: Registry, route_of: Callable[[str, str], NamedRoute]
    ) -> None:
        self._access, self._registry, self._route_of = access, registry, route_of

    def admit(self, head: Mapping[str, Any]) -> Admitted | AdmissionRefused:
        """`head` is the WSGI environ."""
        access, method, path = self._access(), head["REQUEST_METHOD"], head["PATH_INFO"]
        route, pattern, owner, missing = None, None, "", None
        try:
            route = self._route_of(method, path)
            pattern = route.pattern
        except LlamasrvError as error:
            missing = error  # reported only after the key is checked
        try:
            key = access.identify(head, pattern)
            owner = "" if key is None else key.name
            if route is None or pattern is None:
                assert missing is not None
                raise missing
            quota = access.quota_of(key, pattern, method)
            if quota is not None:
                quota.check()
            if method == "POST" and pattern in QUEUED and self._registry.is_full:
                raise self._registry.queue_full()
            if quota is not None:
                quota.enter()
        except LlamasrvError as error:
            return AdmissionRefused(route, owner, error)
        return Admitted(route, owner, quota)
