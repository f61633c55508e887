"""`Idempotency-Key`: what is sent twice is made once."""

from __future__ import annotations

import json
import threading
from io import BytesIO

import pytest
from serving import RunningService, wait_until
from store.conftest import redis_url  # noqa: F401  (fixture)
from web.test_responses import Held, add_up, error, payloads

from llamasrv.web.service import WebOptions


def post(client, path="/v1/responses", key="k", headers=(), **body):
    return client.post(path, json=body, headers={"Idempotency-Key": key, **dict(headers)})


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/responses", {"input": "Hello", "background": True}),
        ("/v1/conversations", {"metadata": {"a": "b"}}),
    ],
)
def test_the_same_key_and_request_make_one_thing(start, path, body):
    own = start()
    first = post(own.client, path, **body).get_json()
    wait_until(lambda: not len(own.service.background))
    again = post(own.client, path, **dict(reversed(body.items()))).get_json()
    assert again["id"] == first["id"] and again["created_at"] == first["created_at"]
    assert post(own.client, path, "other", **body).get_json()["id"] != first["id"]
    assert own.client.post(path, json=body).get_json()["id"] != first["id"]
    error(post(own.client, path, **body, user="me"), 422, "idempotency_key_reused")
    own.client.delete(f"{path}/{first['id']}")
    assert post(own.client, path, **body).get_json()["id"] != first["id"]


def test_a_batch_is_made_once(start, tmp_path):
    own = start(web=WebOptions(files_folder=tmp_path, files_bytes=2**20))
    line = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {"input": "x"}}
    data = {"purpose": "batch", "file": (BytesIO(json.dumps(line).encode()), "x.jsonl")}
    file = own.client.post("/v1/files", data=data).get_json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
    ids = {post(own.client, "/v1/batches", **body).get_json()["id"] for _ in range(2)}
    assert len(ids) == 1
    wait_until(lambda: own.client.get(f"/v1/batches/{ids.copy().pop()}").get_json()["status"] == "completed")


def upload(client, text, key="k", name="x.jsonl", **fields):
    data = {"purpose": "batch", **fields, "file": (BytesIO(text), name)}
    return client.post("/v1/files", data=data, headers={} if key is None else {"Idempotency-Key": key})


def test_a_file_is_kept_once(start, tmp_path):
    own = start(web=WebOptions(files_folder=tmp_path, files_bytes=2**20))
    first = upload(own.client, b"one").get_json()
    assert upload(own.client, b"one").get_json() == first
    for other in ({"text": b"two"}, {"name": "y.jsonl"}, {"purpose": "user_data"}):
        error(upload(own.client, **{"text": b"one", **other}), 422, "idempotency_key_reused")
    assert own.client.get("/v1/files").get_json()["data"] == [first]
    assert own.service.files.num_bytes() == 3  # nothing of the others is left
    more = {upload(own.client, b"one", key=key).get_json()["id"] for key in ("other", None)}
    assert len(more | {first["id"]}) == 3
    own.client.delete(f"/v1/files/{first['id']}")
    assert upload(own.client, b"one").get_json()["id"] not in more | {first["id"]}


def test_a_message_batch_is_made_once(start, tmp_path):
    own = start(web=WebOptions(files_folder=tmp_path, files_bytes=2**20))
    params = {"model": "fake", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    requests = [{"custom_id": "1", "params": params}]
    path = "/v1/messages/batches"
    ids = {post(own.client, path, requests=requests).get_json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert len(own.client.get(path).get_json()["data"]) == 1
    assert post(own.client, path, requests=requests * 2).status_code == 400  # the name is used twice
    requests[0] = {**requests[0], "custom_id": "2"}
    assert post(own.client, path, requests=requests).status_code == 422
    wait_until(lambda: own.client.get(f"{path}/{ids.copy().pop()}").get_json()["processing_status"] == "ended")


def test_a_stream_that_has_ended_is_replayed(client):
    first = payloads(post(client, key="stream", input="Hello", stream=True))
    assert payloads(post(client, key="stream", input="Hello", stream=True)) == first
    assert add_up(first)["status"] == "completed"


def test_what_is_not_stored_is_made_anew(client):
    ids = {post(client, input="Hello", store=False).get_json()["id"] for _ in range(2)}
    assert len(ids) == 2


def test_a_key_belongs_to_its_owner_and_to_a_day(start):
    own = start()
    first = post(own.client, input="Hello").get_json()
    with own.service.idempotency.holding("somebody", "/v1/responses", "k") as key:
        assert key.made("x") is None
    own.service.idempotency.max_age = -1.0
    assert post(own.client, input="Hello").get_json()["id"] != first["id"]


def test_a_key_has_a_length(client):
    error(post(client, key="x" * 256, input="Hello"), 400)


def test_while_one_is_answered_another_has_to_wait(redis_url):  # noqa: F811
    services = [RunningService(store=redis_url) for _ in range(2)]
    held = Held(services[0])
    answers = []
    first = threading.Thread(target=lambda: answers.append(post(services[0].client, key=redis_url, input="Hello")))
    first.start()
    wait_until(lambda: services[0].engine.num_open)
    for service in services:
        refused = post(service.app.test_client(), key=redis_url, input="Hello")
        error(refused, 409, "idempotency_key_in_use")
        assert refused.headers["Retry-After"] == "1"
    held.let_go()
    first.join(20)
    # its claim stood until it expired: for ten seconds the other server said that the request is being answered
    assert post(services[1].client, key=redis_url, input="Hello").get_json() == answers[0].get_json()
    for service in services:
        service.close()
