"""/admin/keys: the API keys, as the operator's keys file has them. A secret appears only in the reply that creates
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from flask import Blueprint, Response, request

from llamasrv.concurrency import off_hub
from llamasrv.domain.key import SCOPES, Key
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.admin import ChangedKey, NewKey, Rotation
from llamasrv.web.http.body import read_json
from llamasrv.web.service import EditsKeys, Service
from llamasrv.web.views import current, json_answer

R = TypeVar("R")


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("admin_keys", __name__)
    limits = service.options.limits
    new, changed, rotation = NewKey(limits), ChangedKey(limits), Rotation(limits)
    lock = threading.Lock()

    def edit(change: Callable[[EditsKeys], R]) -> R:
        """Change the file, and use its keys from the next request on."""
        if service.key_file is None:
            raise Unsupported("This server has no file of keys.")
        file = service.key_file
        with lock:
            result = off_hub(lambda: change(file))
            service.use_keys()
        return result

    @routes.get("/admin/keys")
    def keys() -> Response:
        obstacle = "This server has no file of keys." if service.key_file is None else service.key_file.obstacle()
        shown = [_shown(service, key) for key in service.options.keys]
        return json_answer(orjson.dumps({"obstacle": obstacle, "scopes": SCOPES, "keys": shown}))

    @routes.post("/admin/keys")
    def create() -> Response:
        name, values = new.parse(read_json(request.environ, limits))
        return _secret(name, edit(lambda file: file.create(name, values)))

    @routes.post("/admin/keys/<name>")
    def change(name: str) -> Response:
        values = changed.parse(read_json(request.environ, limits))
        if name == current().owner and "admin" not in values.get("scopes", ("admin",)):
            raise InvalidRequest("A key cannot take the scope 'admin' from itself.", param="scopes")
        edit(lambda file: file.change(name, values))
        return json_answer(orjson.dumps({"name": name}))

    @routes.post("/admin/keys/<name>/rotate")
    def rotate(name: str) -> Response:
        grace = rotation.parse(read_json(request.environ, limits))
        return _secret(name, edit(lambda file: file.rotate(name, time.time() + grace if grace else None)))

    @routes.delete("/admin/keys/<name>")
    def revoke(name: str) -> Response:
        if name == current().owner:
            raise InvalidRequest("A key cannot revoke itself.")
        edit(lambda file: file.revoke(name))
        return json_answer(orjson.dumps({"name": name, "revoked": True}))

    return routes


def _secret(name: str, key: str) -> Response:
    reply = json_answer(orjson.dumps({"name": name, "key": key}))
    reply.headers["Cache-Control"] = "no-store"
    return reply


def _shown(service: Service, key: Key) -> dict[str, Any]:
    quota = service.access.quotas[key.name]
    is_rotating = key.old_expires is not None and key.old_expires > time.time()
    return {
        "name": key.name,
        "scopes": [scope for scope in SCOPES if scope in key.scopes],
        "models": None if key.models is None else sorted(key.models),
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "tokens_per_month": key.tokens_per_month,
        "spent_this_month": service.usage.spent_this_month(key.name),
        "concurrency": key.concurrency,
        "expires": key.expires,
        "old_expires": key.old_expires if is_rotating else None,
        "open": quota.num_open,
        "refused": quota.num_refused,
        "is_own": key.name == current().owner,
    }
