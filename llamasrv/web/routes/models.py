"""Model management over HTTP, under llama-server's names. Off unless the operator allows it."""

from __future__ import annotations

import threading

from flask import Blueprint, Response, request

from llamasrv.errors import Forbidden, InvalidRequest, LlamasrvError, Unsupported
from llamasrv.models import derived
from llamasrv.models.loader import ModelLoader
from llamasrv.models.model import Model
from llamasrv.models.remove import remove
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.protocols.llamacpp.models import SUCCESS, ModelNamed
from llamasrv.web.http.body import read_json
from llamasrv.web.service import Service
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("models", __name__)
    named = ModelNamed(service.options.limits)

    def model_of_body() -> Model:
        allow(service)
        return service.registry.find(named.parse(read_json(request.environ, service.options.limits)))

    @routes.post("/models/load")
    def load() -> Response:
        """Start loading it. GET /models reports the progress."""
        model = model_of_body()
        loader_of(service).load(model, anyway=True)
        return _success()

    @routes.post("/models/unload")
    def unload() -> Response:
        """Unload it once running requests have ended. If it is being pulled, stop the pull."""
        allow(service)
        name = named.parse(read_json(request.environ, service.options.limits))
        if service.pulls.cancel(name):
            return _success()
        model = service.registry.find(name)
        if model.state != "loaded":
            raise InvalidRequest(f"The model '{model.name}' is not loaded.", param="model")
        threading.Thread(target=loader_of(service).unload, args=(model,), daemon=True).start()
        return _success()

    @routes.delete("/models")
    def delete() -> Response:
        allow(service)
        name = request.args.get("model")
        if not name:
            raise InvalidRequest("Missing required parameter: 'model'.", param="model")
        delete_model(service, service.registry.find(name))
        return _success()

    return routes


def allow(service: Service) -> None:
    """Raises Forbidden unless clients, and this one, may manage models. Also for query switches (`?reload=1`) of routes
    that take any key."""
    if not service.options.manage:
        raise Forbidden("Managing models is disabled. Start the server with --models-manage.")
    service.access.require(current().owner, "admin", "manage models")


_AWAY = frozenset(("unloaded", "unloading", "failed"))


def heed_autoload(service: Service, name: str | None) -> None:
    """llama-server's `?autoload=`: whether this request loads the model it names, whatever the server's default.
    Loading a model where requests normally do not requires the right to manage models."""
    if "autoload=" not in request.environ.get("QUERY_STRING", ""):
        return
    model = service.registry.for_request(name)
    if model.state not in _AWAY:
        return
    if request.args.get("autoload") not in ("1", "true"):
        raise model.not_loaded
    loader = loader_of(service)
    if not loader.on_demand:
        allow(service)
        loader.load(model, anyway=True)


def opened(service: Service, name: str | None, *, keep_alive: float | None = None) -> LoadedModel:
    """The loaded model for a request that generates nothing. Raises as `Pipeline.open`, and Forbidden if the key may
    not use it."""
    service.permit(current().owner, service.registry.for_request(name))
    return service.pipeline.open(name, keep_alive=keep_alive)


def loader_of(service: Service) -> ModelLoader:
    loader = service.registry.loader
    if loader is None:
        raise Unsupported("This server's models are always loaded.")
    return loader


def delete_model(service: Service, model: Model) -> None:
    """Delete its files and stop serving it; its running requests finish. For a model created from another one, only the
    definition is deleted."""
    folder = service.options.folder
    if folder is not None and model.settings.derived is not None:
        derived.delete(folder, model.name)
        service.refresh()
        return
    if folder is not None and (users := derived.users(folder, model.details.parts)):
        raise InvalidRequest(f"model '{model.name}' cannot be deleted: {', '.join(users[:5])} was created from it")
    if folder is None or not model.settings.is_found:
        raise Forbidden(f"The model '{model.name}' is in the server's configuration; it cannot be deleted here.")
    if len(service.registry.models) == 1:
        raise InvalidRequest(f"'{model.name}' is the only model; it cannot be deleted.", param="model")
    try:
        remove(model.details, folder)
    except OSError as error:
        raise LlamasrvError(f"The files of '{model.name}' cannot be deleted: {error.strerror}.") from None
    service.refresh()


def _success() -> Response:
    return json_answer(SUCCESS)
