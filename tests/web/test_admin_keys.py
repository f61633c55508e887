"""/admin/keys: keys are made, changed, rotated and revoked while the server runs."""

from __future__ import annotations

import time

import pytest

from llamasrv.config import keys
from llamasrv.config.key_file import KeyFile
from llamasrv.web.service import WebOptions


@pytest.fixture
def running(start, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(keys.entry("root", "secret-root", ["admin"], {}) + keys.entry("ann", "secret-ann", ["infer"], {}))
    running = start(web=WebOptions(keys=tuple(keys.read(path))))
    running.service.key_file = KeyFile(path)
    running.service.reread_keys = lambda: tuple(keys.read(path))
    return running


def admin(running, method, path, body=None, secret="secret-root"):
    headers = {"Authorization": f"Bearer {secret}"}
    return running.client.open(f"/admin/keys{path}", method=method, json=body, headers=headers)


def chat(running, secret):
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    return running.client.post(
        "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
    ).status_code


def test_a_new_key_works_at_once_and_is_shown_without_its_secret(running):
    made = admin(running, "POST", "", {"name": "eve", "scopes": ["infer"], "expires": "2999-01-31"})
    secret = made.get_json()["key"]
    assert chat(running, secret) == 200 and made.headers["Cache-Control"] == "no-store"
    told = admin(running, "GET", "").get_json()
    assert told["obstacle"] is None and secret not in str(told)
    root, ann, eve = told["keys"]
    assert root["is_own"] and not ann["is_own"]
    assert (eve["name"], eve["scopes"]) == ("eve", ["infer"]) and eve["expires"] > time.time()


def test_a_key_sees_and_uses_its_models_alone(running):
    """Whatever the route: by the name in the body or in the path, or for the server's first model."""
    secret = admin(running, "POST", "", {"name": "eve", "models": ["no-such-model"]}).get_json()["key"]
    headers = {"Authorization": f"Bearer {secret}"}
    name = running.service.registry.default.name
    said = {"model": name, "messages": [{"role": "user", "content": "x"}]}
    for path, body in (
        ("/v1/chat/completions", {"messages": said["messages"]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/api/chat", said),
        ("/v1/messages", said | {"max_tokens": 1}),
        ("/v1/messages/count_tokens", said),
        ("/v1/responses", {"model": name, "input": "x"}),
        ("/v1/embeddings", {"model": name, "input": "x"}),
        ("/v1/rerank", {"model": name, "query": "x", "documents": ["y"]}),
        ("/tokenize", {"content": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", said),
        ("/api/generate", {"model": name}),
        (f"/v1beta/models/{name}:generateContent", {"contents": [{"parts": [{"text": "x"}]}]}),
    ):
        reply = running.client.post(path, json=body, headers=headers)
        assert reply.status_code == 403 and "may not use the model" in reply.get_data(as_text=True), path
    assert running.client.get("/v1/models", headers=headers).get_json()["data"] == []
    assert running.client.get("/api/tags", headers=headers).get_json()["models"] == []
    admin(running, "POST", "/eve", {"models": [name]})
    assert chat(running, secret) == 200
    assert [one["id"] for one in running.client.get("/v1/models", headers=headers).get_json()["data"]] == [name]


def test_a_budget_counts_what_the_month_has_used(running):
    secret = admin(running, "POST", "", {"name": "eve", "scopes": ["infer"], "tokens_per_month": 1}).get_json()["key"]
    assert chat(running, secret) == 200
    body = {"messages": [{"role": "user", "content": "x"}]}
    refused = running.client.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"})
    assert refused.status_code == 429 and refused.get_json()["error"]["code"] == "insufficient_quota"
    (eve,) = [key for key in admin(running, "GET", "").get_json()["keys"] if key["name"] == "eve"]
    assert eve["spent_this_month"] > 1 == eve["tokens_per_month"] and eve["refused"] == 1


def test_an_expired_key_is_refused(running):
    assert admin(running, "POST", "/ann", {"expires": "2001-01-01T10:00:00Z"}).status_code == 200
    assert chat(running, "secret-ann") == 401
    assert admin(running, "POST", "/ann", {"expires": None}).status_code == 200
    assert chat(running, "secret-ann") == 200


def test_a_rotated_key_has_two_secrets_for_a_while(running):
    secret = admin(running, "POST", "/ann/rotate", {"grace_seconds": 3600}).get_json()["key"]
    assert chat(running, secret) == chat(running, "secret-ann") == 200
    last = admin(running, "POST", "/ann/rotate", {}).get_json()["key"]
    assert (chat(running, last), chat(running, secret), chat(running, "secret-ann")) == (200, 401, 401)


def test_a_revoked_key_is_refused_and_one_cannot_shut_oneself_out(running):
    assert admin(running, "DELETE", "/ann").status_code == 200
    assert chat(running, "secret-ann") == 401
    assert admin(running, "DELETE", "/root").status_code == 400
    assert admin(running, "POST", "/root", {"scopes": ["infer"]}).status_code == 400


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "name"),
        ({"name": "eve", "scopes": ["all"]}, "scopes"),
        ({"name": "eve", "scopes": []}, "scopes"),
        ({"name": "eve", "concurrency": 0}, "concurrency"),
        ({"name": "eve", "expires": "soon"}, "expires"),
        ({"name": "a b"}, "name"),
        ({"name": "ann"}, "name"),
    ],
)
def test_what_is_wrong_names_its_field(running, body, param):
    reply = admin(running, "POST", "", body)
    assert (reply.status_code, reply.get_json()["error"]["param"]) == (400, param)


def test_only_admins_may(running):
    for method, path in (("GET", ""), ("POST", ""), ("POST", "/ann"), ("POST", "/ann/rotate"), ("DELETE", "/ann")):
        assert admin(running, method, path, {}, secret="secret-ann").status_code == 403


def test_an_unknown_key_is_not_found(running):
    assert admin(running, "DELETE", "/eve").status_code == 404
