"""Vertex AI's prediction protocol as llama-server answers it: several requests to other endpoints in one body.

    {"instances": [{"@requestFormat": "chatCompletions", ...}, ...]}  ->  {"predictions": [..., ...]}

A prediction is that endpoint's reply, or an object with an `error`: a wrong instance does not affect the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.protocols.errors import llamacpp_body

MOST_INSTANCES = 128
FORMAT = "@requestFormat"

PATHS: Mapping[str, str] = {
    "chatCompletions": "/v1/chat/completions",
    "completions": "/v1/completions",
    "completion": "/completion",
    "infill": "/infill",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
}
"""What an instance may ask for, by its name and the endpoint that answers it; the path is a name, too."""


def instances_of(body: Mapping[str, Any]) -> list[Any]:
    instances = body.get("instances")
    if type(instances) is not list:
        raise InvalidRequest("Invalid 'instances': expected an array of objects.", param="instances")
    if len(instances) > MOST_INSTANCES:
        raise InvalidRequest(
            f"Invalid 'instances': array too long. Expected at most {MOST_INSTANCES}, but got {len(instances)}.",
            param="instances",
        )
    return instances


def asked_of(instance: Any) -> tuple[str, dict[str, Any]]:
    """The path of the endpoint that an instance is for, and the body for it; nothing is streamed."""
    if type(instance) is not dict or type(instance.get(FORMAT)) is not str:
        raise InvalidRequest(f"Each instance must be an object with a string '{FORMAT}'.", param="instances")
    name = instance[FORMAT]
    path = PATHS.get(name, name)
    if path not in PATHS.values():
        raise InvalidRequest(
            f"Invalid '{FORMAT}': expected one of {', '.join(PATHS)}, but got '{name[:60]}'.", param="instances"
        )
    payload = {key: value for key, value in instance.items() if key != FORMAT}
    if "stream" in payload:
        payload["stream"] = False
    return path, payload


def predictions_body(predictions: Iterable[bytes | LlamasrvError]) -> bytes:
    """`predictions`: the answers and errors, as JSON."""
    bodies = (llamacpp_body(one) if isinstance(one, LlamasrvError) else one for one in predictions)
    return b'{"predictions":[%b]}' % b",".join(bodies)
