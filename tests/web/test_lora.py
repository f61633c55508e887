"""LoRA adapters over HTTP: listed, chosen by the model's name or by `lora`."""

from __future__ import annotations

import pytest
from model import tiny_models
from serving import RunningService

from llamasrv.domain.key import Key
from llamasrv.engine.base.interface import Adapter
from llamasrv.engine.engine import EngineOptions
from llamasrv.web.service import WebOptions

ADAPTERS = (Adapter("sql", "/models/sql.gguf"), Adapter("Polite", "/models/polite.gguf", 0.5))


@pytest.fixture
def client():
    service = RunningService(options=EngineOptions(parallel=4, adapters=ADAPTERS), adapters=ADAPTERS)
    yield service.app.test_client()
    service.close()


def answer(client, model="fake", **fields):
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "temperature": 0, **fields}
    reply = client.post("/v1/chat/completions", json=body)
    return reply.get_json()["choices"][0]["message"]["content"] if reply.status_code == 200 else reply


def test_they_are_listed_in_llamacpps_shape(client):
    assert client.get("/lora-adapters").get_json() == [
        {"id": 0, "name": "sql", "path": "sql.gguf", "scale": 0.0, "task_name": "", "prompt_prefix": ""},
        {"id": 1, "name": "Polite", "path": "polite.gguf", "scale": 0.0, "task_name": "", "prompt_prefix": ""},
    ]


def test_a_models_name_chooses_one_with_its_own_scale(client):
    assert answer(client) == "You said: hi"
    assert answer(client, "fake:sql") == "You said, sql 1: hi"
    assert answer(client, "ALIAS:polite") == "You said, Polite 0.5: hi"


def test_models_with_an_adapter_are_listed_as_models(client):
    assert [card["id"] for card in client.get("/v1/models").get_json()["data"]] == ["fake", "fake:sql", "fake:Polite"]
    assert client.get("/v1/models/alias:SQL").get_json()["id"] == "fake:sql"


def test_a_request_chooses_several(client):
    lora = [{"id": 1, "scale": 2}, {"id": "sql", "scale": 0.25}]
    assert answer(client, lora=lora) == "You said, sql 0.25, Polite 2: hi"
    assert answer(client, lora=[{"id": 0, "scale": 0}]) == "You said: hi"
    assert answer(client, "fake:sql", lora=[{"id": "sql", "scale": 3}]) == "You said, sql 3: hi"


def test_what_counts_without_a_word_can_be_set(client):
    def put(body, **query):
        return client.post("/lora-adapters", json=body, query_string=query)

    assert put([{"id": 1, "scale": 0.5}]).get_json() == {"success": True}
    assert answer(client) == "You said, Polite 0.5: hi"
    assert [adapter["scale"] for adapter in client.get("/lora-adapters").get_json()] == [0.0, 0.5]
    assert answer(client, "fake:sql") == "You said, sql 1: hi"
    assert answer(client, lora=[]) == "You said: hi"
    assert put([{"id": 0, "scale": 1}], model="alias").status_code == 200
    assert answer(client) == "You said, sql 1: hi"
    assert put([]).status_code == 200 and answer(client) == "You said: hi"


@pytest.mark.parametrize("body", [{"id": 0, "scale": 1}, [{"id": 2, "scale": 1}], [{"id": 0}], "sql", None])
def test_what_cannot_be_set_changes_nothing(client, body):
    client.post("/lora-adapters", json=[{"id": 0, "scale": 2}])
    reply = client.post("/lora-adapters", json=body)
    assert reply.status_code == 400 and reply.get_json()["error"]["message"]
    assert answer(client) == "You said, sql 2: hi"


# While a model is served


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "adapters"
    place.mkdir()
    tiny_models.lora(place / "french.gguf")
    tiny_models.lora(tmp_path / "outside.gguf")
    tiny_models.llama(place / "model.gguf")
    (place / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    return place


@pytest.fixture
def loading(folder):
    service = RunningService(
        options=EngineOptions(parallel=4, adapters=ADAPTERS), adapters=ADAPTERS, web=WebOptions(lora_folder=folder)
    )
    yield service.app.test_client()
    service.close()


def test_one_more_is_loaded_from_the_operators_folder(loading):
    reply = loading.post("/lora-adapters", json={"path": "french.gguf", "scale": 0.25})
    assert reply.get_json() == {"success": True, "id": 2, "name": "french"}
    assert [one["name"] for one in loading.get("/lora-adapters").get_json()] == ["sql", "Polite", "french"]
    assert answer(loading, "fake:french") == "You said, french 0.25: hi"
    assert answer(loading, lora=[{"id": 2, "scale": 3}]) == "You said, french 3: hi"
    assert answer(loading) == "You said: hi"  # it counts where it is named
    assert "fake:french" in [card["id"] for card in loading.get("/v1/models").get_json()["data"]]
    assert loading.post("/lora-adapters", json={"path": "french.gguf", "name": "other"}).get_json()["id"] == 3


def test_vllms_clients_load_one_under_their_names(loading):
    body = {"lora_name": "fr", "lora_path": "french.gguf"}
    reply = loading.post("/v1/load_lora_adapter", json=body)
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'fr' added successfully.")
    assert answer(loading, "fake:fr") == "You said, fr 1: hi"
    reply = loading.post("/v1/load_lora_adapter", json={"lora_name": "x"})
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == "lora_path"
    reply = loading.post("/v1/unload_lora_adapter", json={"lora_name": "fr"})
    assert reply.status_code == 400 and "stays until the server restarts" in reply.get_json()["error"]["message"]


@pytest.mark.parametrize(
    "body, line",
    [
        ({"path": "none.gguf"}, "There is no file 'none.gguf'"),
        ({"path": "../outside.gguf"}, "There is no file"),
        ({"path": "link.gguf"}, "There is no file"),
        ({"path": "/etc/passwd"}, "There is no file"),
        ({"path": "a\0b"}, "There is no file"),
        ({"path": "model.gguf"}, "is not a LoRA adapter"),
        ({"path": "french.gguf", "name": "SQL"}, "an adapter 'SQL' already exists"),
        ({"path": "french.gguf", "name": "a:b"}, "expected up to 64 letters"),
        ({"path": "french.gguf", "scale": "much"}, "scale"),
        ({"name": "x"}, "path is required"),
        ({"path": 3}, "path"),
    ],
)
def test_what_is_no_adapter_of_the_folder_is_refused(loading, body, line):
    reply = loading.post("/lora-adapters", json=body)
    assert reply.status_code == 400 and line in reply.get_json()["error"]["message"]
    assert len(loading.get("/lora-adapters").get_json()) == 2


def test_without_a_folder_none_is_loaded(client):
    reply = client.post("/lora-adapters", json={"path": "french.gguf"})
    assert reply.status_code in (400, 501) and "--lora-dir" in reply.get_json()["error"]["message"]


def test_loading_one_needs_the_scope_admin(folder):
    key = Key("ann", Key.of("ann", "secret").digest, scopes=("infer",))
    service = RunningService(web=WebOptions(keys=(key,), lora_folder=folder))
    reply = service.client.post("/lora-adapters", json={"path": "french.gguf"}, headers={"X-Api-Key": "secret"})
    assert reply.status_code == 403
    service.close()


def test_completions_take_them_too(client):
    reply = client.post("/v1/completions", json={"model": "fake:sql", "prompt": "x", "max_tokens": 1})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "lora, param",
    [
        ([{"id": 2, "scale": 1}], "lora"),
        ([{"id": "nobody", "scale": 1}], "lora"),
        ([{"id": -1, "scale": 1}], "lora"),
        ([{"id": 0}], "lora[0].scale"),
        ([{"id": 0, "scale": 1e9}], "lora[0].scale"),
        ([{"id": None, "scale": 1}], "lora[0].id"),
        ("sql", "lora"),
        ([{"id": 0, "scale": 1}] * 17, "lora"),
    ],
)
def test_what_is_not_there_is_refused(client, lora, param):
    reply = answer(client, lora=lora)
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == param


def test_a_name_with_an_unknown_adapter_is_an_unknown_model(client):
    assert answer(client, "fake:none").status_code == 404
