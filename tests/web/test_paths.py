"""Paths of base URLs that were put together wrongly: what is the API's own is read as it was meant, all else is not."""

from __future__ import annotations

import pytest

from llamasrv.web.access.auth import ROUTES
from llamasrv.web.routes.paths import meant
from llamasrv.web.service import WebOptions

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    "path, right",
    [
        ("//v1/models", "/v1/models"),
        ("/v1//models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//chat/completions", "/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/messages", "/v1/messages"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/api/api/chat", "/api/chat"),
        ("/v1/api/chat", "/api/chat"),
        ("//api/tags", "/api/tags"),
        ("/api/tags/", "/api/tags"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1//v1/responses/resp_1/", "/v1/responses/resp_1"),
    ],
)
def test_a_path_is_read_as_it_was_meant(path, right):
    assert meant(path) == right
    assert meant(right) == right


@pytest.mark.parametrize(
    "path", ["/", "//", "/v1", "/v1/", "//metrics", "/metrics/", "/api/api/pull", "/v1/api/delete", "/models/load/",
             "/livez/", "//v1/loads", "/loads/", "//health", "/slots/", "//debug", "/messages/x", "/V1/V1/messages", "/v1/../v1/models"],
)  # fmt: skip
def test_other_paths_have_one_spelling(path):
    assert meant(path) == path


def test_what_is_closed_off_in_front_of_the_server_has_one_spelling():
    """A proxy that denies /metrics must not be passed with /metrics/ or /v1/api/pull."""
    for scope in ("metrics", "admin"):
        for route in ROUTES[scope]:
            path = route.rpartition(" ")[2]
            for odd in (f"/{path}", f"{path}/", f"/v1{path}", f"/api{path}", f"/v1/v1{path}"):
                assert meant(odd) != path


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/v1/messages", {"max_tokens": 8, "messages": HELLO}),
        ("/messages", {"max_tokens": 8, "messages": HELLO}),
        ("/v1/messages/", {"max_tokens": 8, "messages": HELLO}),
        ("/api/api/chat", {"model": "fake", "messages": HELLO, "stream": False}),
        ("/v1/api/chat", {"model": "fake", "messages": HELLO, "stream": False}),
        ("//v1//chat/completions/", {"messages": HELLO}),
    ],
)
def test_wrong_base_urls_are_answered(client, path, body):
    """Each of these was a 404 that asked to check the URL for typos."""
    reply = client.post("/", json=body, environ_overrides={"PATH_INFO": path})
    assert reply.status_code == 200, reply.get_json()


@pytest.mark.parametrize("path", ["//v1/models", "/v1//models", "/v1/models/", "/v1/v1/models"])
def test_lists_are_found_with_slashes_too_many(client, path):
    reply = client.get("/", environ_overrides={"PATH_INFO": path})
    assert [model["id"] for model in reply.get_json()["data"]] == ["fake"]


def test_an_error_of_a_mended_path_is_in_its_own_dialect(client):
    """`//api/chat` had OpenAI's object where Ollama's clients read a string."""
    reply = client.post("/", json={}, environ_overrides={"PATH_INFO": "//api/chat"})
    assert reply.status_code == 400 and reply.get_json() == {"error": "model is required"}


@pytest.mark.parametrize("path, example", [("/v1", "/v1/models"), ("/api", "/api/tags")])
def test_the_error_for_a_bare_base_url_says_so(client, path, example):
    reply = client.get(path)
    assert reply.status_code == 404 and example in reply.get_json()["error"]["message"]


def test_a_mended_path_takes_the_same_key(start):
    from llamasrv.domain.key import Key

    client = start(web=WebOptions(keys=(Key.of("ann", "secret", ("embed",)),))).client
    body = {"max_tokens": 8, "messages": HELLO}
    assert client.post("/v1/v1/messages", json=body).status_code == 401
    assert client.post("/v1/v1/messages", json=body, headers={"x-api-key": "secret"}).status_code == 403


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/v1/realtime/client_secrets", "/v1/realtime/calls"])
def test_the_error_for_webrtc_says_what_to_open_instead(client, method, path):
    """It was a 404 that asked to check the URL for typos; voice clients retried."""
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"} if method == "GET" else {}
    reply = client.open(path, method=method, headers=upgrade)
    assert reply.status_code == 404 and "a WebSocket to /v1/realtime" in reply.get_json()["error"]["message"]
    assert "typos" in client.get("/v1/realtimes").get_json()["error"]["message"]
