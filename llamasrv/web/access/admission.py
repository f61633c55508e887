"""Admission: one decision per request, from its head alone.

In this order: host and origin, key, route, scope, the key's quota, the queue. What is refused costs no body, no view
and no place; what is admitted holds a place in the key's quota until it has been answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from llamasrv.errors import LlamasrvError
from llamasrv.models.registry import Registry
from llamasrv.web.access.auth import Access
from llamasrv.web.access.quota import Quota

QUEUED = frozenset((
    "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion", "/infill",
    "/v1beta/models/<path:name>:generateContent", "/v1beta/models/<path:name>:streamGenerateContent",
    "/v1/messages", "/api/chat", "/api/generate", "/v1/responses", "/responses",
))  # fmt: skip
"""Routes whose POST needs a place in the queue."""


class Admitted(NamedTuple):
    route: str  # as it is written where it is made
    owner: str  # the key's name; "" where none is needed
    quota: Quota | None  # what the request counts against


class AdmissionRefused(NamedTuple):
    route: str | None  # None: there is none
    owner: str
    error: LlamasrvError


class HeadAdmission:
    """`access()` returns the access rules in force; `route_of` finds the route for a method and path, or raises."""

    def __init__(self, access: Callable[[], Access], registry: Registry, route_of: Callable[[str, str], str]) -> None:
        self._access, self._registry, self._route_of = access, registry, route_of

    def admit(self, head: Mapping[str, Any]) -> Admitted | AdmissionRefused:
        """`head` has WSGI's names."""
        access, method, path = self._access(), head["REQUEST_METHOD"], head["PATH_INFO"]
        route, owner, missing = None, "", None
        try:
            route = self._route_of(method, path)
        except LlamasrvError as error:
            missing = error  # told only to who may come in
        try:
            key = access.identify(head, route)
            owner = "" if key is None else key.name
            if route is None:
                assert missing is not None
                raise missing
            quota = access.quota_of(key, route, method)
            if quota is not None:
                quota.check()
            if method == "POST" and route in QUEUED and self._registry.is_full:
                raise self._registry.queue_full()
            if quota is not None:
                quota.enter()
        except LlamasrvError as error:
            return AdmissionRefused(route, owner, error)
        return Admitted(route, owner, quota)
