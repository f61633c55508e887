"""API keys: every route needs one but the open ones, before anything else is looked at."""

from __future__ import annotations

import hmac

import pytest

from llamasrv.errors import Unauthorized
from llamasrv.web.auth import OPEN_PATHS, Keys
from llamasrv.web.service import WebOptions


@pytest.fixture
def client(start):
    return start(web=WebOptions(api_keys={"ann": "key-of-ann", "bob": "k\u00e9y"})).client


def test_without_keys_everybody_may_come_in(running):
    assert running.client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/livez"])
def test_liveness_needs_no_key(client, path):
    assert client.get(path).status_code == 200


def test_every_other_route_needs_one(client):
    rules = [rule for rule in client.application.url_map.iter_rules() if rule.rule not in OPEN_PATHS]
    assert len(rules) > 10
    for rule in rules:
        path = rule.rule.replace("<path:name>", "fake")
        for method in rule.methods - {"OPTIONS"}:
            assert client.open(path, method=method).status_code == 401, path


@pytest.mark.parametrize("path", ["/nope", "/HEALTH", "/health/", "//health", "/v1/chat/completions"])
def test_whether_a_route_exists_is_told_only_to_those_with_a_key(client, path):
    response = client.delete(path)
    assert response.status_code == 401
    assert response.get_json()["error"]["code"] == "invalid_api_key"
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer key-of-ann"},
        {"Authorization": "bearer  key-of-ann "},
        {"Authorization": "key-of-ann"},
        {"X-Api-Key": "key-of-ann"},
        {"Authorization": "Bearer", "X-Api-Key": "key-of-ann"},
    ],
)
def test_a_key_is_accepted_in_every_header_that_clients_use(client, headers):
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "shown",
    ["", "key-of-an", "key-of-ann2", "KEY-OF-ANN", "Bearer ", "Bearer x", "Basic key-of-ann", "\xff" * 9,
     "x" * 100_000],
)  # fmt: skip
def test_other_keys_are_not(client, shown):
    assert client.get("/v1/models", environ_overrides={"HTTP_AUTHORIZATION": shown}).status_code == 401


def test_a_body_is_not_read_without_a_key(client):
    response = client.post("/v1/chat/completions", environ_overrides={"CONTENT_LENGTH": "5", "wsgi.input": None})
    assert response.status_code == 401


def test_the_owner_is_the_name_of_the_key():
    keys = Keys({"ann": "a", "bob": "b"})
    environ = {"PATH_INFO": "/v1/models", "REQUEST_METHOD": "GET", "HTTP_X_API_KEY": "b"}
    assert keys.owner(environ) == "bob"


def test_all_keys_are_always_compared(monkeypatch):
    """The time taken must not tell which key was nearly right."""
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or a == b)
    keys = Keys({name: name for name in "abc"})
    environ = {"PATH_INFO": "/v1/models", "REQUEST_METHOD": "GET"}
    assert keys.owner({**environ, "HTTP_X_API_KEY": "a"}) == "a"
    with pytest.raises(Unauthorized):
        keys.owner({**environ, "HTTP_X_API_KEY": "z"})
    assert len(compared) == 6
