"""The API's description: of every route, true to the schemas."""

from __future__ import annotations

import json

import pytest
from protocols import example_replies
from serving import RunningService

from llamasrv.protocols import openapi
from llamasrv.protocols.common.schema import rows
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatSchema
from llamasrv.protocols.openapi import Route, document, operation_of
from llamasrv.web.routes.openapi import routes_of


@pytest.fixture(scope="module")
def running():
    service = RunningService()
    yield service
    service.close()


@pytest.fixture(scope="module")
def described(running):
    reply = running.client.get("/openapi.json")
    assert reply.content_type == "application/json"
    return reply.get_json()


def test_every_route_is_in_it(running, described):
    routes = routes_of(running.app)
    assert [route for route in routes if operation_of(route) is None] == []
    there = {(method.upper(), path) for path, item in described["paths"].items() for method in item}
    assert len(there) == len({(route.method, route.path) for route in routes})
    assert ("GET", "/v1/models/{name}") in there and not any("<" in path for _, path in there)


def test_nothing_is_described_that_is_not_there(running):
    named = {f"{route.method} {path}" for route in routes_of(running.app) for path in (route.path, *route.names)}
    assert set(openapi.OPERATIONS) <= named


def test_it_is_valid_openapi(described):
    assert described["openapi"].startswith("3.") and described["info"]["title"] == "llamasrv"
    known = set(described["components"]["schemas"])
    used = set()

    def walk(value):
        if isinstance(value, dict):
            if "$ref" in value:
                used.add(value["$ref"].removeprefix("#/components/schemas/"))
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(described["paths"])
    assert used == known
    for item in described["paths"].values():
        for operation in item.values():
            assert operation["summary"] and operation["responses"]


def test_every_field_has_its_verdict_and_its_note(described):
    fields = described["components"]["schemas"]["openai.Chat"]["properties"]
    expected = {row.field: (row.verdict, row.note) for row in rows(ChatSchema)}
    assert {name: (field["x-verdict"], field.get("description", "")) for name, field in fields.items()} == expected
    assert {verdict for verdict, _ in expected.values()} == {"honoured", "ignored", "refused"}


def test_bounds_are_those_of_the_server():
    route = Route("POST", "/v1/chat/completions", ())
    described = json.loads(document([route], version="1", limits=Limits(choices=7)))
    fields = described["components"]["schemas"]["openai.Chat"]["properties"]
    assert fields["n"] == {"type": "integer", "minimum": 1, "maximum": 7, "x-verdict": "honoured"}
    assert (fields["temperature"]["minimum"], fields["temperature"]["maximum"]) == (0, 2)
    assert described["components"]["schemas"]["openai.Chat"]["required"] == ["messages"]


def test_what_is_honoured_has_a_type(described):
    for name, schema in described["components"]["schemas"].items():
        for field, shape in schema["properties"].items():
            if shape["x-verdict"] == "honoured":
                assert "type" in shape or "anyOf" in shape, (name, field)


NEED_MORE = (
    "/models", "/v1/batches", "/v1/messages/batches", "/api/create", "/api/copy", "/api/pull", "/slots", "/api/blobs", "/v1/score", "/score", "/classify",
    "/v1/classify", "/v1/audio/speech", "/audio/speech", "/tools", "/admin",
)  # fmt: skip
"""Routes that need a file, a folder, another model or an option to be there."""


def test_examples_are_taken_by_the_routes(start_embedding, described):
    """What the document shows as a body works as it is, where nothing has to be fetched or deleted for it."""
    client = start_embedding
    for path, item in described["paths"].items():
        body = item.get("post", {}).get("requestBody")
        if body is None or path.startswith(NEED_MORE):
            continue
        example = body["content"].get("application/json", {}).get("example")
        if example is None or "rerank" in path or path.endswith(("compact", "lora-adapters", "lora_adapter")):
            continue
        reply = client.post(
            path.replace("{name}", "fake"), json={**example, **({"model": "fake"} if "model" in example else {})}
        )
        text = reply.get_data(as_text=True)  # to the end: some are streams
        assert reply.status_code == 200, (path, text)


@pytest.fixture
def start_embedding():
    service = RunningService(pooling="mean")
    yield service.client
    service.close()


def members(reply):
    """The names of an object's members, or of those in a list."""
    first = reply[0] if isinstance(reply, list) and reply else reply
    return set(first) if isinstance(first, dict) else type(first)


def test_example_replies_have_the_members_that_todays_have(tmp_path):
    """Otherwise: python tests/protocols/example_replies.py. What depends on the moment (it has ended, or not yet) is left
    out."""
    today = example_replies.recorded(tmp_path)
    shown = json.loads(example_replies.FILE.read_text("utf-8"))
    for name in set(today) | set(shown):
        if "batches" not in name and not name.endswith("/cancel"):
            assert members(shown.get(name)) == members(today.get(name)), name


def test_an_example_reply_stands_in_the_document(described):
    reply = described["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]["application/json"][
        "example"
    ]
    assert reply["choices"][0]["message"]["content"] == "You said: Hello"
    alias = described["paths"]["/chat/completions"]["post"]["responses"]["200"]["content"]["application/json"]
    assert alias["example"] == reply
