"""The tables and checks behind admission.py, in its order.

host, origin   keeps browser pages away from a server without keys (origins.py)
key            required on every route except open ones, even unknown ones; compared in constant time
scope          from one table; a route that is missing there requires `admin`
quota          counted on routes that do work
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Union
from urllib.parse import parse_qs

from llamasrv.domain.key import Key
from llamasrv.errors import Forbidden, Unauthorized
from llamasrv.web.access.origins import Origins, host_of
from llamasrv.web.access.quota import Quota
from llamasrv.web.access.shared_quotas import SharedQuotas

OPEN, ANY, PAGE, WORK = "open", "any", "page", "infer or embed"

ROUTES: Mapping[str, tuple[str, ...]] = {
    # liveness, for probes without a key
    OPEN: ("/health", "/v1/health", "/livez"),
    # any valid key: what is served, and whether it is ready
    ANY: (
        "/v1/models", "/models", "/v1/models/<path:name>", "/models/<path:name>", "/props", "/readyz", "/v1/usage",
        "/cors-proxy", "/tokenizer_info", "/openapi.json",
        "/v1/audio/voices", "/audio/voices", "/v1/audio/models", "/audio/models",
        "/ui/access", "/version", "/api/status", "/api/v0/models", "/api/v0/models/<path:name>",
        "/api/tags", "/api/show", "/api/ps", "/api/version", "/v1beta/models", "/v1beta/models/<path:name>",
    ),
    # tokenizing and rendering: work without the model, for either kind of key
    WORK: ("/tokenize", "/detokenize", "/apply-template"),
    "infer": (
        "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion", "/infill",
        "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", "/v1/chat/completions/control",
        "/chat/completions/control",
        "/v1/decisions", "/decisions", "/v1beta/decisions", "/v1/systemone", "/systemone",
        "/v1/audio/transcriptions", "/audio/transcriptions", "/v1/audio/speech", "/audio/speech",
        "/v1/realtime", "/realtime", "POST /v1/audio/voices", "POST /audio/voices", "/v1/audio/voices/<id>",
        "/audio/voices/<id>",
        "/v1/stream", "/v1/streams/lookup", "/predict",
        "/v1beta/models/<path:name>:generateContent", "/v1beta/models/<path:name>:streamGenerateContent",
        "/open_session", "/close_session",
        "/v1beta/models/<path:name>:countTokens", "/v1beta/cachedContents", "/v1beta/cachedContents/<id>",
        "/v1beta/interactions", "/v1beta/interactions/<id>", "/v1beta/interactions/<id>/cancel",
        "/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate", "GET /lora-adapters",
        "/v1/responses", "/v1/responses/<id>", "/v1/responses/<id>/cancel", "/v1/responses/<id>/input_items",
        "/v1/responses/input_tokens", "/v1/responses/compact",
        "/v1/conversations", "/v1/conversations/<id>", "/v1/conversations/<id>/items",
        "/v1/conversations/<id>/items/<item>", "/conversations", "/conversations/<id>", "/conversations/<id>/items",
        "/conversations/<id>/items/<item>",
        "/v1/files", "/v1/files/<id>", "/v1/files/<id>/content", "/v1/batches", "/v1/batches/<id>",
        "/v1/batches/<id>/cancel", "/v1/messages/batches", "/v1/messages/batches/<id>",
        "/v1/messages/batches/<id>/cancel", "/v1/messages/batches/<id>/results",
        "/responses", "/responses/<id>", "/responses/<id>/cancel", "/responses/<id>/input_items",
        "/responses/input_tokens", "/responses/compact",
        "/ui/history", "/ui/history/<id>",
    ),
    "embed": (
        "/v1/embeddings", "/embeddings", "/embedding", "/api/embed", "/api/embeddings",
        "/v1beta/models/<path:name>:embedContent", "/v1beta/models/<path:name>:batchEmbedContents",
        "/v1/rerank", "/rerank", "/v1/reranking", "/reranking",
        "/v1/score", "/score", "/v1/classify", "/classify",
    ),
    # the pages themselves hold no data: their requests need a key
    PAGE: (
        "/", "/ui/models", "/ui/decide", "/ui/engine", "/ui/console", "/ui/api", "/ui/docs", "/ui/docs/<page>",
        "/ui/static/<version>/<path:name>",
    ),
    "metrics": (
        "/metrics", "/metrics/load", "/v1/loads", "/loads", "/slots", "/ui/engine/stream", "/ui/engine/history",
    ),
    # programs on this machine
    "tools": ("/tools",),
    "admin": (
        "POST /models", "DELETE /models", "POST /props", "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter",
        "/admin/state", "/admin/requests", "/admin/requests/<id>/cancel", "/admin/configuration", "/admin/reload",
        "/admin/keys", "/admin/keys/<name>", "/admin/keys/<name>/rotate",
        "/admin/hub", "/admin/hub/<path:repo>",
    ),
}  # fmt: skip
"""Routes by scope, as declared in web/routes; with a method in front, only that method."""

_SCOPE_OF = {route: scope for scope, routes in ROUTES.items() for route in routes}
_OPEN_PATHS = frozenset(ROUTES[OPEN])
_PAGES = frozenset(ROUTES[PAGE])
_WORKING = frozenset(("infer", "embed"))
_COUNTED = _WORKING | {WORK}
_UNCOUNTED = frozenset(("/v1/chat/completions/control", "/chat/completions/control"))
"""These shorten work that is already counted: a key over its quota may still use them."""

REALTIME = frozenset(("/v1/realtime", "/realtime"))
KEY_PROTOCOL = "openai-insecure-api-key."

MONITORED = frozenset(("/v1/models", "/readyz", "/metrics", "/metrics/load", "/v1/loads", "/loads"))
"""Polled by routers, orchestrators and scrapers, some of which cannot send a key: no key for `monitor_networks`."""

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

_FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_VIA")

# Names outside the public DNS, so that no website can point its own name at this machine.
_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa")


def scope_of(rule: str, method: str = "GET") -> str:
    """The scope required by a route."""
    return _SCOPE_OF.get(f"{method} {rule}") or _SCOPE_OF.get(rule) or "admin"


class Access:
    """Identifies and authorises requests. Without keys, any request with an allowed host and origin may do everything.
    `monitor_networks`: peers there need no key for MONITORED routes. `before`: the Access that this one replaces; its
    keys' quota usage carries over. `shared` counts quotas over several servers; `spent(name)`: tokens of a key in this
    month."""

    def __init__(
        self,
        keys: Sequence[Key] = (),
        *,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        monitor_networks: Sequence[Network] = (),
        most_open: int | None = None,
        before: Access | None = None,
        shared: SharedQuotas | None = None,
        spent: Callable[[str], int] | None = None,
    ) -> None:
        self._keys = tuple(keys)
        self._scopes = {key.name: key.scopes for key in keys}
        self._models = {key.name: key.models for key in keys}
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = Origins(origins)
        self._monitor_networks = tuple(monitor_networks)
        used = {} if before is None else before.quotas
        self.quotas: dict[str, Quota] = {}
        for key in keys:
            old = used.get(key.name)
            # with a single key there is no one to share with
            share = most_open if len(self._keys) > 1 else None
            if old is None or old.key != key:
                old = Quota(key, most_open=share, shared=shared, spent=spent)
            self.quotas[key.name] = old

    def identify(self, environ: Mapping[str, Any], rule: str | None) -> Key | None:
        """The key that the request presents; None if none is needed. Raises Unauthorized or Forbidden."""
        if self._monitor_networks and rule in MONITORED and self._is_monitor(environ):
            return None
        self._check_host(environ)
        if not self._keys:
            self._origins.check(environ, is_page=rule in _PAGES)
            return None
        if environ["REQUEST_METHOD"] == "OPTIONS" or rule in _PAGES:
            return None
        if rule in _OPEN_PATHS and environ["PATH_INFO"] == rule:
            return None
        return self._known(environ)

    def quota_of(self, key: Key | None, rule: str, method: str) -> Quota | None:
        """The quota that a request to this route counts against; None if the route does no work. Raises Forbidden if
        `key` may not use the route."""
        if key is None:
            return None
        self.check(key.name, rule, method)
        scope = scope_of(rule, method)
        if scope not in _COUNTED or method != "POST" or rule in _UNCOUNTED:
            return None
        return self.quotas[key.name]

    def check(self, owner: str, rule: str, method: str = "POST") -> None:
        """For work done on behalf of another route, such as the requests of a batch. Raises Forbidden if the key with
        that name may not use the route."""
        scope = scope_of(rule, method)
        if scope not in (OPEN, ANY, PAGE):
            self.require(owner, scope, f"use {rule}")

    def require(self, owner: str, scope: str, to_do: str) -> None:
        """Raises Forbidden if the key with that name lacks the scope."""
        if not self.allows(owner, scope):
            raise Forbidden(f"This API key may not {to_do}: it needs the scope '{scope}'.")

    def allows(self, owner: str, scope: str) -> bool:
        """Whether the key with that name has the scope. Without keys everything is allowed."""
        if not self._keys:
            return True
        scopes = self._scopes.get(owner, ())
        return not _WORKING.isdisjoint(scopes) if scope == WORK else scope in scopes

    def models_of(self, owner: str) -> frozenset[str] | None:
        """The names of the models that the key with that name may use; None: all of them."""
        return self._models.get(owner)

    def allowed_origin(self, environ: Mapping[str, Any]) -> str | None:
        """The value of Access-Control-Allow-Origin; None if the page may not read the reply."""
        origin = environ.get("HTTP_ORIGIN", "")
        return origin if self._origins.lists(origin) else None

    def _is_monitor(self, environ: Mapping[str, Any]) -> bool:
        """Whether a program in a monitor network polls directly, without a key. Excluded are a browser's page there,
        which sends an Origin or names its own host, and a proxy, which may forward requests from anywhere."""
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD") or _shown(environ) or "HTTP_ORIGIN" in environ:
            return False
        host = host_of(environ.get("HTTP_HOST", ""))
        if any(name in environ for name in _FORWARDED) or not (host in self._hosts or _is_local_name(host)):
            return False
        try:
            peer = ipaddress.ip_address(environ.get("REMOTE_ADDR", "").partition("%")[0])
        except ValueError:
            return False  # a Unix socket
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._monitor_networks)

    def _known(self, environ: Mapping[str, Any]) -> Key:
        shown = _shown(environ)
        if not shown:
            raise Unauthorized(
                "You didn't provide an API key. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            )
        digest = sha256(shown.encode("latin-1")).digest()  # WSGI header values are latin-1 text
        found, now = None, time.time()
        for key in self._keys:  # no early exit: constant time
            if key.matches(digest, now):
                found = key
        if found is None:
            raise Unauthorized("Incorrect API key provided.")
        if found.expires is not None and found.expires <= now:
            raise Unauthorized("This API key has expired.")
        return found

    def _check_host(self, environ: Mapping[str, Any]) -> None:
        host = host_of(environ.get("HTTP_HOST", ""))
        if self._hosts:
            allowed = "*" in self._hosts or host in self._hosts
        else:
            # Keys suffice: a page that points its DNS name here does not know one.
            allowed = bool(self._keys) or not host or _is_local_name(host)
        if not allowed and environ["PATH_INFO"] not in _OPEN_PATHS:
            raise Forbidden(f"Host '{host[:100]}' is not allowed. Add it to --allowed-hosts.")


def _shown(environ: Mapping[str, Any]) -> str:
    header: str = environ.get("HTTP_AUTHORIZATION", "").strip()
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        header = rest.strip()
    elif rest:
        header = ""  # another scheme, such as a proxy's Basic: not for us
    for name in ("HTTP_X_API_KEY", "HTTP_X_GOOG_API_KEY"):
        header = header or environ.get(name, "").strip()
    if not header and environ["PATH_INFO"].startswith("/v1beta/"):  # where Google's SDKs put it
        header = next(iter(parse_qs(environ.get("QUERY_STRING", "")).get("key", [])), "").strip()
    if not header and environ["PATH_INFO"] in REALTIME:
        header = key_in_protocols(environ)
    return header


def key_in_protocols(environ: Mapping[str, Any]) -> str:
    """Where browsers put the key of a WebSocket: they cannot set other headers. "" if it is not there."""
    names = map(str.strip, environ.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "").split(","))
    return next((name[len(KEY_PROTOCOL) :] for name in names if name.startswith(KEY_PROTOCOL)), "")


@lru_cache(maxsize=256)
def _is_local_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_LOCAL_ENDINGS)
    return True
