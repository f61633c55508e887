"""The Responses routes over Flask's test client: what is made, stored, continued, followed, cancelled, and whose it is."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from flask import Response
from protocols.openai.responses_client import add_up
from serving import openai_error_keys, wait_until
from store.conftest import postgres_url, redis_url  # noqa: F401  (fixtures)

from llamasrv.domain.key import Key
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.errors import ConfigError
from llamasrv.protocols.common.headers import LEFT_OUT
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses.stored import Stored
from llamasrv.store import StoredEntry, StoreError
from llamasrv.web.jobs.background import RunTimes
from llamasrv.web.service import WebOptions


def create(client, input="Hello", **body):
    headers = body.pop("headers", None)
    return client.post("/v1/responses", json={"input": input, **body}, headers=headers)


def made(client, input="Hello", **body):
    response = create(client, input, **body)
    assert response.status_code == 200, response.data
    return response.get_json()


def get(client, id, **query):
    return client.get(f"/v1/responses/{id}", query_string=query)


def text_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def payloads(response):
    """The data of the events of a stream; each is named by its type."""
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    blocks = response.get_data(as_text=True).split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        if block == ": ping":
            continue
        name, data = block.split("\n")
        assert name == f"event: {json.loads(data[6:])['type']}" and data.startswith("data: ")
        found.append(data[6:])
    return found


def error(response, status, code=None):
    assert response.status_code == status, response.data
    body = response.get_json()["error"]
    assert set(body) == openai_error_keys(body) and body["type"]
    assert code is None or body["code"] == code
    return body


class Held:
    """Keeps the model from computing until it is let go."""

    def __init__(self, service):
        self._go, self._asked, self._engine = threading.Event(), threading.Event(), service.engine
        backend = service.backend
        decode = backend.decode

        def held():
            self._asked.set()
            assert self._go.wait(20)
            decode()

        backend.decode = held

    def let_go(self):
        self._go.set()

    def let_go_with_mail(self):
        """As soon as the engine, which is in a step, has been told something."""
        assert self._asked.wait(10)
        wait_until(lambda: self._engine.has_mail)
        self.let_go()


@pytest.fixture
def own(start):
    return start()


@pytest.fixture
def held(own):
    held = Held(own)
    yield held
    held.let_go()


# ---------------------------------------------------------------- made and stored


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_it_answers(client, path):
    response = client.post(path, json={"input": "Hello"}).get_json()
    assert response["status"] == "completed" and text_of(response) == "You said: Hello"
    assert response["usage"]["output_tokens"] == len("You said: Hello") + 1


def test_what_was_made_can_be_read_again(client):
    response = made(client, metadata={"a": "b"})
    assert get(client, response["id"]).get_json() == response


def test_a_stream_ends_in_what_is_stored_and_can_be_read_from_anywhere(client):
    first = create(client, "Hellö wörld 🎈", stream=True)
    told = payloads(first)
    final = add_up(told)
    assert get(client, final["id"]).get_json() == final
    for start in (-1, 0, 3, len(told) - 2, len(told)):
        again = get(client, final["id"], stream="true", starting_after=start)
        assert payloads(again) == told[start + 1 :]
    assert payloads(get(client, final["id"], stream="true")) == told


@pytest.mark.parametrize(
    "more", [{}, {"top_logprobs": 2}, {"max_output_tokens": 11}, {"reasoning": {"summary": "auto"}}, {"stop": ["wör"]}]
)
def test_streamed_is_whole(client, more):
    body = {"input": "Hellö wörld 🎈", "temperature": 0, **more}
    streamed, whole = add_up(payloads(create(client, stream=True, **body))), made(client, **body)
    for response in (streamed, whole):
        hex_ = response.pop("id")[5:]
        for item in response["output"]:
            item["id"] = item["id"].replace(hex_, "")
        for name in ("created_at", "completed_at"):
            response.pop(name)
        response["usage"].pop("input_tokens_details")
    assert streamed == whole


def test_nothing_is_stored_where_that_is_wanted(client):
    response = made(client, store=False)
    assert response["store"] is False
    error(get(client, response["id"]), 404, "response_not_found")
    found = error(create(client, previous_response_id=response["id"]), 400, "previous_response_not_found")
    assert found["param"] == "previous_response_id"


def test_what_is_deleted_is_gone(client):
    response = made(client)
    deleted = client.delete(f"/v1/responses/{response['id']}")
    assert deleted.get_json() == {"id": response["id"], "object": "response", "deleted": True}
    error(get(client, response["id"]), 404)
    error(client.delete(f"/v1/responses/{response['id']}"), 404)
    error(create(client, previous_response_id=response["id"]), 400, "previous_response_not_found")


@pytest.mark.parametrize("id", ["resp_1", "resp_" + "0" * 48, "x" * 300, "%00", "input_tokens"])
def test_an_unknown_id_is_404(client, id):
    for response in (
        client.get(f"/v1/responses/{id}"),
        client.get(f"/v1/responses/{id}?stream=true"),
        client.delete(f"/v1/responses/{id}"),
        client.post(f"/v1/responses/{id}/cancel"),
        client.get(f"/v1/responses/{id}/input_items"),
    ):
        error(response, 404)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?stream=true&starting_after=x", "starting_after"),
        ("?stream=true&starting_after=-2", "starting_after"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_1", "after"),
        ("/input_items?limit=9999999999999999999999", "limit"),
    ],
)
def test_a_wrong_query_is_named(client, query, param):
    assert error(client.get(f"/v1/responses/{made(client)['id']}{query}"), 400)["param"] == param


def test_a_server_that_stores_nothing_says_so(start):
    client = start(store="none").client
    response = made(client)
    assert response["store"] is False
    error(get(client, response["id"]), 404)
    assert error(create(client, background=True), 400)["param"] == "background"
    error(create(client, previous_response_id=response["id"]), 400, "previous_response_not_found")


def test_a_store_that_fails_does_not_take_the_answer_with_it(own, monkeypatch, caplog):
    def fails(owner, entry):
        raise StoreError("The disk is full.")

    monkeypatch.setattr(own.store, "put", fails)
    response = made(own.client)
    assert text_of(response) == "You said: Hello" and response["store"] is False
    assert add_up(payloads(create(own.client, stream=True)))["store"] is False
    assert "The disk is full." in caplog.text and "Hello" not in caplog.text
    assert "llamasrv_unstored_total 2.0" in own.client.get("/metrics").get_data(as_text=True)
    error(create(own.client, background=True), 503)


def test_a_store_that_cannot_be_read_is_a_503(own, monkeypatch):
    def fails(*args):
        raise StoreError("Away.")

    id = made(own.client)["id"]
    monkeypatch.setattr(own.store, "get", fails)
    monkeypatch.setattr(own.store, "chain", fails)
    error(get(own.client, id), 503, "store_unavailable")
    error(create(own.client, previous_response_id=id), 503, "store_unavailable")


# ---------------------------------------------------------------- continued


@pytest.fixture(params=["sqlite", "redis_url", "postgres_url"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/responses.db"
    try:
        return request.getfixturevalue(request.param)
    except ConfigError as error:
        pytest.skip(str(error))


def test_a_conversation_goes_on_after_a_restart(start, url):
    """On every kind of store: earlier input and output go before, with the calls and their outputs."""
    one, other = start(store=url), start(store=url)
    first = made(one.client, "My name is Ada.", instructions="Old.")
    second = made(one.client, "Say it.", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    third = made(other.client, "Again.", previous_response_id=second["id"], instructions="New.")
    sent = [
        {"role": "system", "content": "New."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "Say it."},
        {"role": "assistant", "content": text_of(second)},
        {"role": "user", "content": "Again."},
    ]
    whole = made(one.client, sent)
    assert whole["usage"]["input_tokens"] == third["usage"]["input_tokens"]
    items = other.client.get(f"/v1/responses/{third['id']}/input_items?order=asc").get_json()["data"]
    assert [item["content"][0]["text"] for item in items] == [m["content"] for m in sent[1:]]
    assert one.client.delete(f"/v1/responses/{first['id']}").status_code == 200
    error(create(other.client, previous_response_id=third["id"]), 400, "previous_response_not_found")


def test_a_conversation_can_fork(client):
    first = made(client, "One")
    a, b = (made(client, text, previous_response_id=first["id"]) for text in ("Two", "Three"))
    assert a["usage"]["input_tokens"] == b["usage"]["input_tokens"] - 2
    assert made(client, "Four", previous_response_id=a["id"])["status"] == "completed"


def test_an_item_can_be_referred_to(client):
    response = made(client, "One")
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    again = made(client, [reference, {"role": "user", "content": "Two"}])
    plain = made(client, [{"role": "assistant", "content": text_of(response)}, {"role": "user", "content": "Two"}])
    assert again["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
    client.delete(f"/v1/responses/{response['id']}")
    assert error(create(client, [reference]), 400, "item_not_found")["param"] == "input[0].id"


def test_the_number_of_referenced_responses_is_limited(client):
    references = [{"type": "item_reference", "id": f"msg_{n:048x}o0000"} for n in range(101)]
    references = [{**item, "id": item["id"].replace("msg_0", "msg_f")} for item in references]
    assert error(create(client, references[:20]), 400, "item_not_found")
    assert error(create(client, references), 400)["param"] == "input"


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress", "queued"])
def test_what_has_not_come_to_an_end_cannot_be_continued(own, status):
    response = made(own.client)
    put(own, {**response, "status": status})
    found = error(create(own.client, previous_response_id=response["id"]), 400)
    assert found["param"] == "previous_response_id" and status in found["message"]


def put(service, response, *, lease=None, owner=""):
    stored = Stored(response, [], [])
    service.store.put(owner, StoredEntry(response["id"], stored.pack(), response["previous_response_id"], lease))


def test_input_items_come_in_pages(client):
    items = [{"role": "user", "content": f"{n}"} for n in range(45)]
    id = made(client, items)["id"]
    seen, after = [], None
    while True:
        query = {"limit": 20, "order": "asc", **({"after": after} if after else {})}
        page = client.get(f"/v1/responses/{id}/input_items", query_string=query).get_json()
        seen += [item["content"][0]["text"] for item in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == [f"{n}" for n in range(45)]
    page = client.get(f"/v1/responses/{id}/input_items").get_json()
    assert [item["content"][0]["text"] for item in page["data"]] == [f"{n}" for n in range(44, 24, -1)]


# ---------------------------------------------------------------- whose


KEYS = WebOptions(keys=(Key.of("ada", "key-of-ada"), Key.of("bob", "key-of-bob")))
ADA, BOB = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ada", "bob"))


def test_a_key_sees_nothing_of_anothers(start):
    client = start(web=KEYS).client
    response = made(client, "Secret", headers=ADA)
    id, item = response["id"], response["output"][0]["id"]
    running = made(client, "Secret", headers=ADA, background=True)["id"]
    for target in (id, running):
        error(client.get(f"/v1/responses/{target}", headers=BOB), 404)
        error(client.get(f"/v1/responses/{target}?stream=true", headers=BOB), 404)
        error(client.get(f"/v1/responses/{target}/input_items", headers=BOB), 404)
        error(client.post(f"/v1/responses/{target}/cancel", headers=BOB), 404)
        error(client.delete(f"/v1/responses/{target}", headers=BOB), 404)
    error(create(client, previous_response_id=id, headers=BOB), 400, "previous_response_not_found")
    error(create(client, [{"type": "item_reference", "id": item}], headers=BOB), 400, "item_not_found")
    assert client.get(f"/v1/responses/{id}", headers=ADA).get_json() == response
    error(client.get(f"/v1/responses/{id}"), 401)


# ---------------------------------------------------------------- in the background


def ended(client, id, **options):
    wait_until(lambda: get(client, id).get_json()["status"] not in ("queued", "in_progress"), **options)
    return get(client, id).get_json()


def test_it_goes_on_without_its_client(own, held):
    response = made(own.client, background=True)
    assert response["status"] == "queued" and response["output"] == [] and response["background"] is True
    assert get(own.client, response["id"]).get_json()["status"] == "queued"
    held.let_go()
    final = ended(own.client, response["id"])
    assert final["status"] == "completed" and text_of(final) == "You said: Hello"
    assert made(own.client, previous_response_id=final["id"])["status"] == "completed"


def test_its_end_has_a_line_in_the_log_without_its_words(own, caplog):
    caplog.set_level("INFO", "llamasrv.request")
    id = made(own.client, background=True)["id"]
    ended(own.client, id)
    wait_until(lambda: not len(own.service.background))
    (fields,) = [r.fields for r in caplog.records if getattr(r, "fields", {}).get("route") == "background"]
    assert fields["id"] == id and fields["finish"] == "completed" and fields["completion"] == 16
    assert "Hello" not in str(fields)


def test_its_events_can_be_followed_from_anywhere(own, held):
    response = made(own.client, background=True)
    following = []

    def follow(start):
        following.append(payloads(get(own.app.test_client(), response["id"], stream="true", starting_after=start)))

    threads = [threading.Thread(target=follow, args=(start,)) for start in (-1, 1)]
    for thread in threads:
        thread.start()
    held.let_go()
    for thread in threads:
        thread.join(20)
    after, everything = sorted(following, key=len)
    assert add_up(everything) == ended(own.client, response["id"]) and after == everything[2:]
    kinds = [json.loads(event)["type"] for event in everything]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    wait_until(lambda: not len(own.service.background))
    assert payloads(get(own.client, response["id"], stream="true")) == everything


def test_a_follower_hears_in_a_silence_what_all_others_hear(start):
    service = start(web=WebOptions(keepalive=0.02))
    held = Held(service)
    response = create(service.client, background=True, stream=True)
    body = iter(response.response)
    data = b""
    while data.count(b"event: keepalive") < 2:
        data += next(body)
    held.let_go()
    told = payloads(Response(data + b"".join(body), headers=response.headers))
    response.close()
    final = add_up(told)
    assert final["status"] == "completed"
    wait_until(lambda: not len(service.service.background))
    assert payloads(get(service.client, final["id"], stream="true")) == told


def test_a_long_prompt_is_reported_in_events(start):
    service = start(web=WebOptions(keepalive=0.02))
    held = Held(service)
    response = create(service.client, stream=True)
    body = iter(response.response)
    data = b""
    while data.count(b"event: keepalive") < 2:
        data += next(body)
    held.let_go()
    told = payloads(Response(data + b"".join(body), headers=response.headers))
    response.close()
    assert [json.loads(event)["type"] for event in told[:3]] == [
        "response.created",
        "response.in_progress",
        "keepalive",
    ]
    assert payloads(get(service.client, add_up(told)["id"], stream="true")) == told


def test_it_can_be_streamed_from_the_start(client):
    response = add_up(payloads(create(client, background=True, stream=True)))
    assert response["status"] == "completed" and response["background"] is True


def test_a_follower_may_leave(own, held):
    response = create(own.client, background=True, stream=True)
    first = next(iter(response.response))
    assert first.startswith(b"event: response.created\n")
    id = json.loads(first.split(b"\n")[1][6:])["response"]["id"]
    response.close()
    held.let_go()
    assert ended(own.client, id)["status"] == "completed"


def test_it_can_be_cancelled(own, held):
    id = made(own.client, background=True)["id"]
    threading.Timer(0.05, held.let_go).start()
    cancelled = own.client.post(f"/v1/responses/{id}/cancel").get_json()
    assert cancelled["status"] == "cancelled"
    wait_until(lambda: not len(own.service.background))
    for _ in range(2):
        again = own.client.post(f"/v1/responses/{id}/cancel").get_json()
        assert again["id"] == id and again["status"] == "cancelled"
    assert get(own.client, id).get_json()["status"] == "cancelled"
    events = payloads(get(own.client, id, stream="true"))
    assert json.loads(events[-1])["type"] == "response.incomplete" and add_up(events)["status"] == "cancelled"


def test_one_key_among_several_has_half_of_the_background(start):
    """One could have all of it."""
    keys = tuple(Key.of(name, f"secret-{name}") for name in ("ann", "bob"))
    service = start(web=WebOptions(keys=keys, limits=Limits(background=4)))
    held = Held(service)
    try:
        for name, statuses in (("ann", [200, 200, 429]), ("bob", [200])):
            head = {"Authorization": f"Bearer secret-{name}"}
            assert [create(service.client, headers=head, background=True).status_code for _ in statuses] == statuses
    finally:
        held.let_go()


def test_only_what_is_in_the_background_can_be_cancelled(client):
    error(client.post(f"/v1/responses/{made(client)['id']}/cancel"), 400)


def test_one_that_has_ended_is_not_cancelled_any_more(own):
    id = made(own.client, background=True)["id"]
    ended(own.client, id)
    wait_until(lambda: not len(own.service.background))
    assert own.client.post(f"/v1/responses/{id}/cancel").get_json()["status"] == "completed"


def test_the_number_at_once_is_limited(start):
    service = start(web=WebOptions(limits=Limits(background=2)))
    held = Held(service)
    ids = [made(service.client, background=True)["id"] for _ in range(2)]
    found = create(service.client, background=True)
    error(found, 429, "rate_limit_exceeded")
    assert found.headers["Retry-After"]
    held.let_go()
    assert all(ended(service.client, id)["status"] == "completed" for id in ids)
    wait_until(lambda: not len(service.service.background))
    assert made(service.client, background=True)["status"] == "queued"


def test_what_is_wrong_is_known_at_once(client):
    error(create(client, "x" * 5000, background=True), 400, "context_length_exceeded")
    error(create(client, background=True, model="other"), 404, "model_not_found")


def test_a_deleted_one_ends_and_does_not_come_back(own, held):
    id = made(own.client, background=True)["id"]
    assert own.client.delete(f"/v1/responses/{id}").status_code == 200
    held.let_go()
    wait_until(lambda: not len(own.service.background))
    error(get(own.client, id), 404)


def test_it_fails_with_its_model(own):
    own.backend.fail_next = [DecodeFailed("it broke")] * 3
    final = ended(own.client, made(own.client, background=True)["id"])
    assert final["status"] == "failed" and final["error"]["code"] == "server_error"


def test_a_response_of_a_server_that_is_gone_has_failed(own):
    response = made(own.client)
    put(own, {**response, "status": "in_progress", "background": True}, lease=time.time() - 1)
    found = get(own.client, response["id"]).get_json()
    assert found["status"] == "failed" and found["error"]["code"] == "server_error"
    events = payloads(get(own.client, response["id"], stream="true"))
    assert json.loads(events[-1])["type"] == "response.failed"
    error(create(own.client, previous_response_id=response["id"]), 400)


def test_another_server_sees_it_and_can_cancel_or_delete_it(start, tmp_path):
    url = f"sqlite:///{tmp_path}/responses.db"
    one, other = start(store=url), start(store=url)
    one.service.background.times = RunTimes(beat=0.02)
    held = Held(one)
    ids = [made(one.client, background=True)["id"] for _ in range(2)]
    assert get(other.client, ids[0]).get_json()["status"] == "queued"
    error(get(other.client, ids[0], stream="true"), 503)
    assert other.client.post(f"/v1/responses/{ids[0]}/cancel").get_json()["status"] == "cancelled"
    assert other.client.delete(f"/v1/responses/{ids[1]}").status_code == 200
    wait_until(lambda: all(run.cancelled for run in one.service.background))
    held.let_go()
    wait_until(lambda: not len(one.service.background))
    assert get(one.client, ids[0]).get_json()["status"] == "cancelled"
    error(get(one.client, ids[1]), 404)


def test_it_shows_that_it_is_still_worked_on(start):
    service = start()
    service.service.background.times = RunTimes(beat=0.02, lease=0.5)
    held = Held(service)
    id = made(service.client, background=True)["id"]
    first = service.store.get("", id).lease
    wait_until(lambda: service.store.get("", id).lease > first)
    held.let_go()
    assert ended(service.client, id)["status"] == "completed" and service.store.get("", id).lease is None


# ---------------------------------------------------------------- what else is there


def test_the_count_is_what_create_reports(client):
    first = made(client, "One")
    for body in (
        {"input": "Hello"},
        {"input": [{"role": "user", "content": "x"}], "instructions": "Be brief."},
        {"input": "Two", "previous_response_id": first["id"]},
        {"input": "Two", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
    ):
        counted = client.post("/v1/responses/input_tokens", json=body).get_json()
        assert counted == {
            "object": "response.input_tokens",
            "input_tokens": made(client, **body)["usage"]["input_tokens"],
        }
    assert client.post("/v1/responses/input_tokens", json={}).get_json()["input_tokens"] > 0


def test_a_compacted_conversation_can_go_on(client):
    items = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}]
    compacted = client.post("/v1/responses/compact", json={"model": "fake", "input": items}).get_json()
    assert compacted["object"] == "response.compaction" and compacted["usage"]["total_tokens"]
    assert [item["type"] for item in compacted["output"]] == ["message", "compaction"]
    assert text_of(made(client, [*compacted["output"], {"role": "user", "content": "Three"}])) == "You said: Three"


def test_a_trigger_compacts_what_was_stored(client):
    first = made(client, "One")
    response = add_up(
        payloads(create(client, [{"type": "compaction_trigger"}], previous_response_id=first["id"], stream=True))
    )
    (item,) = response["output"]
    assert item["type"] == "compaction"


def test_too_long_is_an_error_unless_it_may_be_truncated(client):
    turns = [{"role": role, "content": "x" * 100} for _ in range(10) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": "last"})
    assert error(create(client, turns), 400, "context_length_exceeded")["param"] == "input"
    assert error(create(client, turns, stream=True), 400, "context_length_exceeded")
    response = made(client, turns, truncation="auto")
    assert text_of(response) == "You said: last" and response["usage"]["input_tokens"] < 1024 * 3 / 4
    assert len(client.get(f"/v1/responses/{response['id']}/input_items?limit=100").get_json()["data"]) == 21


def test_tools_that_are_left_out_are_named_in_a_header(client):
    tools = [{"type": "web_search"}, {"type": "image_generation"}, {"type": "web_search"}]
    for more in ({}, {"stream": True}, {"background": True}):
        with create(client, tools=tools, **more) as response:
            assert response.headers[LEFT_OUT] == "web_search, image_generation"
    assert LEFT_OUT not in create(client).headers


def test_a_websocket_is_declined_so_that_clients_fall_back(client):
    error(client.get("/v1/responses", headers={"Upgrade": "websocket", "Connection": "Upgrade"}), 426)
    response = client.get("/v1/responses")
    error(response, 405)
    assert "POST" in response.headers["Allow"] and "GET" not in response.headers["Allow"]


def test_a_failure_in_the_middle_is_reported_in_the_stream(own):
    def spoil():
        if len(own.backend.calls) > 6:
            raise DecodeFailed("it broke")

    decode = own.backend.decode
    own.backend.decode = lambda: (spoil(), decode())
    response = add_up(payloads(create(own.client, "x" * 50, stream=True)))
    assert response["status"] == "failed" and response["error"]["code"] == "server_error"
    assert get(own.client, response["id"]).get_json()["status"] == "failed"


def test_a_failure_before_anything_is_a_real_error(own):
    own.backend.fail_next = [DecodeFailed("it broke")] * 3
    error(create(own.client, stream=True), 500)


def test_what_a_client_did_not_wait_for_is_not_stored(start, tmp_path):
    service = start(web=WebOptions(keepalive=0.05), store=f"sqlite:///{tmp_path}/responses.db")
    held = Held(service)
    response = create(service.client, stream=True)
    assert next(iter(response.response)).startswith(b"event: response.created\n")
    told = threading.Thread(target=held.let_go_with_mail)
    told.start()
    response.close()  # waits for the end of what it cancels
    told.join(10)
    wait_until(lambda: service.engine.num_open == 0)
    with closing(sqlite3.connect(tmp_path / "responses.db")) as db:
        assert db.execute("SELECT count(*) FROM responses").fetchone() == (0,)
