"""Models of other programs, served from where these have put them."""

from __future__ import annotations

import pytest
import store_homes

from llamasrv.config import load
from llamasrv.startup import service as startup_service
from llamasrv.web.app import create_app


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    store_homes.fill(folder)
    return folder


@pytest.fixture(scope="module")
def client(home):
    """A service with all of these models, loaded as they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        store_homes.move_in(patch, home)
        options = {"models_from": ["auto"], "models_check": False, "engine_ctx_size": 512, "store_url": "none"}
        service = startup_service.build(load(options, environ={}))
        yield create_app(service).test_client()
        service.registry.loader.stop(30)


def test_all_that_is_whole_is_listed_and_nothing_else(client):
    names = [one["id"] for one in client.get("/v1/models").get_json()["data"]]
    assert sorted(names) == sorted(store_homes.SERVED)
    assert not [name for name in names for word in store_homes.NOT_SERVED if word in name]


@pytest.mark.parametrize("name", store_homes.SERVED)
def test_a_model_of_each_store_answers(client, home, name):
    before = sorted((path, path.lstat().st_mtime_ns) for path in home.rglob("*") if ".cache/llamasrv" not in str(path))
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.get_json()["model"] == name and reply.get_json()["usage"]["completion_tokens"] == 1
    shown = client.post("/api/show", json={"model": name}).get_json()
    assert ("vision" in shown["capabilities"]) == ("eyes" in name)
    assert before == sorted(
        (path, path.lstat().st_mtime_ns) for path in home.rglob("*") if ".cache/llamasrv" not in str(path)
    )


def test_what_an_ollama_model_says_of_itself_is_used(client):
    """Its system prompt begins the conversation."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    assert "Be brief." in client.post("/apply-template", json=body).get_json()["prompt"]


@pytest.mark.parametrize("name", ["dangling", "broken:latest", "acme/torn-GGUF", "cut"])
def test_what_is_broken_is_unknown(client, name):
    reply = client.post("/v1/chat/completions", json={"model": name, "messages": [{"role": "user", "content": "Hi"}]})
    assert reply.status_code == 404 and "Served here: " in reply.get_json()["error"]["message"]
