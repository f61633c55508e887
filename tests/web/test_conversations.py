"""OpenAI's conversations over Flask's test client: kept under their owner, changed, added to by responses."""

from __future__ import annotations

import threading

import pytest
from serving import wait_until

from llamasrv.domain.key import Key
from llamasrv.web.service import WebOptions

PATH = "/v1/conversations"
HELLO = {"role": "user", "content": "Hello"}


@pytest.fixture
def made(client):
    return client.post(PATH, json={"items": [HELLO]}).get_json()["id"]


def items(client, id, **query):
    return client.get(f"{PATH}/{id}/items", query_string=query).get_json()["data"]


def respond(client, id, **more):
    return client.post("/v1/responses", json={"input": "More", "conversation": id, **more})


def test_one_is_made_with_nothing_at_all(client):
    made = client.post(PATH, json={})
    body = made.get_json()
    assert made.status_code == 200 and body["object"] == "conversation" and body["metadata"] == {}
    assert client.post("/conversations", json={}).status_code == 200


def test_items_have_ids_of_their_own(client, made):
    first, second = (client.post(f"{PATH}/{made}/items", json={"items": [HELLO, HELLO]}).get_json() for _ in range(2))
    ids = [item["id"] for item in items(client, made, order="asc")]
    assert len(set(ids)) == 5 and ids[1:3] == [item["id"] for item in first["data"]]
    assert (second["first_id"], second["last_id"]) == (ids[3], ids[4])


def test_a_response_shows_its_conversation(client, made):
    response = respond(client, made).get_json()
    assert response["conversation"] == {"id": made}
    assert client.get(f"/v1/responses/{response['id']}").get_json()["conversation"] == {"id": made}
    assert "conversation" not in client.post("/v1/responses", json={"input": "x"}).get_json()


def test_a_response_in_the_background_is_added_when_it_has_ended(client, made):
    id = respond(client, made, background=True).get_json()["id"]
    wait_until(lambda: client.get(f"/v1/responses/{id}").get_json()["status"] == "completed")
    assert [item["role"] for item in items(client, made, order="asc")] == ["user", "user", "assistant"]


def test_tokens_are_counted_with_the_conversation(client, made):
    body = {"input": "More", "conversation": made}
    count = client.post("/v1/responses/input_tokens", json=body).get_json()["input_tokens"]
    assert count == respond(client, made).get_json()["usage"]["input_tokens"]


def test_a_response_that_failed_adds_nothing(client, made):
    assert respond(client, made, input="x" * 5000).status_code == 400
    assert len(items(client, made)) == 1


def test_responses_at_once_are_all_added(client, running, made):
    """One that read the conversation before another was added must not write it back without that."""
    threads = [threading.Thread(target=respond, args=(running.app.test_client(), made)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(items(client, made, limit=100)) == 1 + 8 * 2


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", ""),
        ("POST", ""),
        ("DELETE", ""),
        ("GET", "/items"),
        ("POST", "/items"),
        ("GET", "/items/x"),
        ("DELETE", "/items/x"),
    ],
)
@pytest.mark.parametrize("id", ["conv_x", "conv_" + "0" * 48, "resp_" + "0" * 48])
def test_what_is_not_there_is_not_found(client, method, path, id):
    reply = client.open(f"{PATH}/{id}{path}", method=method, json={"items": [HELLO]})
    assert (reply.status_code, reply.get_json()["error"]["code"]) == (404, "conversation_not_found")


def test_an_item_that_is_not_there_is_not_found(client, made):
    reply = client.get(f"{PATH}/{made}/items/msg_x")
    assert (reply.status_code, reply.get_json()["error"]["code"]) == (404, "item_not_found")


@pytest.mark.parametrize(
    "body, param",
    [
        ({"items": "x"}, "items"),
        ({"items": [3]}, "items[0]"),
        ({"items": [HELLO, {"role": "robot"}]}, "items[1].role"),
        ({"items": [{"type": "new_thing"}]}, "items[0].type"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
def test_what_is_wrong_is_named(client, made, body, param):
    reply = client.post(PATH, json=body)
    assert (reply.status_code, reply.get_json()["error"]["param"]) == (400, param)
    if "items" in body:
        reply = client.post(f"{PATH}/{made}/items", json=body)
        assert (reply.status_code, reply.get_json()["error"]["param"]) == (400, param)


def test_another_key_finds_nothing(start):
    client = start(web=WebOptions(keys=(Key.of("ann", "a" * 9), Key.of("bob", "b" * 9)))).client
    ann, bob = ({"x-api-key": key * 9} for key in "ab")
    id = client.post(PATH, json={}, headers=ann).get_json()["id"]
    assert client.get(f"{PATH}/{id}", headers=ann).status_code == 200
    assert client.get(f"{PATH}/{id}", headers=bob).status_code == 404
    assert client.delete(f"{PATH}/{id}", headers=bob).status_code == 404


def test_a_server_that_stores_nothing_says_so(start):
    reply = start(store="none").client.post(PATH, json={})
    assert reply.status_code == 400 and "this server has no store" in reply.get_json()["error"]["message"]


def test_a_change_that_hangs_holds_up_no_other_conversation(running, monkeypatch):
    """One lock for all: behind a store that hung, the sixth change waited thirty seconds."""
    client = running.client
    slow, other = (client.post(PATH, json={"items": [HELLO]}).get_json()["id"] for _ in range(2))
    get, began, let_go = running.store.get, threading.Event(), threading.Event()

    def hanging(owner, id):
        if id == slow:
            began.set()
            assert let_go.wait(20)
        return get(owner, id)

    monkeypatch.setattr(running.store, "get", hanging)
    add = {"json": {"items": [HELLO]}}
    thread = threading.Thread(target=lambda: running.app.test_client().post(f"{PATH}/{slow}/items", **add))
    thread.start()
    try:
        assert began.wait(10)
        assert client.post(f"{PATH}/{other}/items", **add).status_code == 200
        assert thread.is_alive()
        running.service.conversations.changes.patience = 0.01
        answer = client.post(f"{PATH}/{slow}/items", **add)
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (503, "store_unavailable")
    finally:
        let_go.set()
        thread.join(20)
    assert len(items(client, slow)) == len(items(client, other)) == 2
    assert not len(running.service.conversations.changes)
