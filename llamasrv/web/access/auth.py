"""Who may come in and for what: the tables and checks behind admission.py, in its order.

host, origin   a page in a browser must not reach a server without keys (origins.py)
key            on every route but the open ones, known or not; compared in constant time
scope          one table says what a route takes; a route that is not in it takes `admin`
quota          counted on the routes that do work
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs

from llamasrv.domain.key import Key
from llamasrv.errors import Forbidden, Unauthorized
from llamasrv.web.access.origins import Origins, host_of
from llamasrv.web.access.quota import Quota

OPEN, ANY, PAGE, WORK = "open", "any", "page", "infer or embed"

ROUTES: Mapping[str, tuple[str, ...]] = {
    # liveness, for machines that carry no key
    OPEN: ("/health", "/v1/health", "/livez"),
    # any key at all: what is here, and is it ready
    ANY: (
        "/v1/models", "/models", "/v1/models/<path:name>", "/models/<path:name>", "/props", "/readyz", "/v1/usage",
        "/cors-proxy", "/tokenizer_info", "/openapi.json",
        "/api/tags", "/api/show", "/api/ps", "/api/version", "/v1beta/models", "/v1beta/models/<path:name>",
    ),
    # what a prompt becomes: work without the model, for either kind of key
    WORK: ("/tokenize", "/detokenize", "/apply-template"),
    "infer": (
        "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion", "/infill",
        "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", "/v1/chat/completions/control",
        "/chat/completions/control",
        "/v1/audio/transcriptions", "/audio/transcriptions", "/v1/stream", "/v1/streams/lookup", "/predict",
        "/v1beta/models/<path:name>:generateContent", "/v1beta/models/<path:name>:streamGenerateContent",
        "/v1beta/models/<path:name>:countTokens",
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
    ),
    "embed": (
        "/v1/embeddings", "/embeddings", "/embedding", "/api/embed", "/api/embeddings",
        "/v1beta/models/<path:name>:embedContent", "/v1beta/models/<path:name>:batchEmbedContents",
        "/v1/rerank", "/rerank", "/v1/reranking", "/reranking",
        "/v1/score", "/score", "/v1/classify", "/classify",
    ),
    # the pages themselves, which hold nothing: what they ask of the server takes a key
    PAGE: ("/", "/ui/engine", "/ui/api", "/ui/static/<version>/<path:name>"),
    "metrics": ("/metrics", "/slots", "/ui/engine/stream"),
    # programs on this machine
    "tools": ("/tools",),
    "admin": ("POST /models", "DELETE /models", "POST /props"),
}  # fmt: skip
"""Scope to routes, as they are written where they are made; with a method in front, that method alone."""

_SCOPE_OF = {route: scope for scope, routes in ROUTES.items() for route in routes}
_OPEN_PATHS = frozenset(ROUTES[OPEN])
_PAGES = frozenset(ROUTES[PAGE])
_WORKING = frozenset(("infer", "embed"))
_COUNTED = _WORKING | {WORK}
_UNCOUNTED = frozenset(("/v1/chat/completions/control", "/chat/completions/control"))
"""These shorten work that is counted already: a key that may have no more of it may still use them."""

# Names that no public DNS answers for, so that no page elsewhere can point its own name at this machine.
_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa")


def scope_of(rule: str, method: str = "GET") -> str:
    """The scope that a route requires."""
    return _SCOPE_OF.get(f"{method} {rule}") or _SCOPE_OF.get(rule) or "admin"


class Access:
    """Lets requests in, or raises. Without keys, any request with an allowed host and origin may do everything.
    `before` is the Access that this one replaces: what its keys have used up carries over."""

    def __init__(
        self,
        keys: Sequence[Key] = (),
        *,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        most_open: int | None = None,
        before: Access | None = None,
    ) -> None:
        self._keys = tuple(keys)
        self._scopes = {key.name: key.scopes for key in keys}
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = Origins(origins)
        used = {} if before is None else before.quotas
        self.quotas: dict[str, Quota] = {}
        for key in keys:
            old = used.get(key.name)
            # With a single key there is nobody to share with.
            share = most_open if len(self._keys) > 1 else None
            self.quotas[key.name] = old if old is not None and old.key == key else Quota(key, most_open=share)

    def identify(self, environ: Mapping[str, Any], rule: str | None) -> Key | None:
        """The key that the request presents; None where no key is needed. Raises Unauthorized or Forbidden."""
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
        """The quota that a request to this route counts against; None where the route does no work. Raises Forbidden
        if `key` may not use the route."""
        if key is None:
            return None
        self.check(key.name, rule, method)
        scope = scope_of(rule, method)
        if scope not in _COUNTED or method != "POST" or rule in _UNCOUNTED:
            return None
        return self.quotas[key.name]

    def check(self, owner: str, rule: str, method: str = "POST") -> None:
        """For what one route does in place of another, too, such as the requests of a batch. Raises Forbidden if the
        key of that name may not use the route."""
        scope = scope_of(rule, method)
        if scope not in (OPEN, ANY, PAGE):
            self.require(owner, scope, f"use {rule}")

    def require(self, owner: str, scope: str, to_do: str) -> None:
        """Raises Forbidden if the key of that name has not the scope."""
        if not self.allows(owner, scope):
            raise Forbidden(f"This API key may not {to_do}: it needs the scope '{scope}'.")

    def allows(self, owner: str, scope: str) -> bool:
        """Whether the key of that name has the scope. Without keys, everything is allowed."""
        if not self._keys:
            return True
        scopes = self._scopes.get(owner, ())
        return not _WORKING.isdisjoint(scopes) if scope == WORK else scope in scopes

    def allowed_origin(self, environ: Mapping[str, Any]) -> str | None:
        """The value of Access-Control-Allow-Origin; None: the page may not read the reply."""
        origin = environ.get("HTTP_ORIGIN", "")
        return origin if self._origins.lists(origin) else None

    def _known(self, environ: Mapping[str, Any]) -> Key:
        shown = _shown(environ)
        if not shown:
            raise Unauthorized(
                "You didn't provide an API key. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            )
        digest = sha256(shown.encode("latin-1")).digest()  # header values come as latin-1 text
        found = None
        for key in self._keys:  # all of them, always: the time taken tells nothing
            if hmac.compare_digest(digest, key.digest):
                found = key
        if found is None:
            raise Unauthorized("Incorrect API key provided.")
        return found

    def _check_host(self, environ: Mapping[str, Any]) -> None:
        host = host_of(environ.get("HTTP_HOST", ""))
        if self._hosts:
            allowed = "*" in self._hosts or host in self._hosts
        else:
            # A key is enough where there is one: a page that points its name here does not know it.
            allowed = bool(self._keys) or not host or _is_local_name(host)
        if not allowed and environ["PATH_INFO"] not in _OPEN_PATHS:
            raise Forbidden(f"Host '{host[:100]}' is not allowed. Add it to --allowed-hosts.")


def _shown(environ: Mapping[str, Any]) -> str:
    header = environ.get("HTTP_AUTHORIZATION", "").strip()
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        header = rest.strip()
    elif rest:
        header = ""  # another scheme, such as the Basic of a proxy in front: no key of ours
    for name in ("HTTP_X_API_KEY", "HTTP_X_GOOG_API_KEY"):
        header = header or environ.get(name, "").strip()
    if not header and environ["PATH_INFO"].startswith("/v1beta/"):  # Google's examples put it there
        header = next(iter(parse_qs(environ.get("QUERY_STRING", "")).get("key", [])), "").strip()
    return header


@lru_cache(maxsize=256)
def _is_local_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_LOCAL_ENDINGS)
    return True
