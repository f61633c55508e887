"""Google's cachedContents: the beginning of conversations, kept by name and found in the cache."""

from __future__ import annotations

import pytest
from serving import wait_until

LONG = "Be brief, and never say what is not so. " * 8
HEAD = {"role": "user", "parts": [{"text": LONG}]}
ANSWER = {"role": "model", "parts": [{"text": "I see."}]}
ASK = {"role": "user", "parts": [{"text": "Hello"}]}
PATH = "/v1beta/cachedContents"
GENERATE = "/v1beta/models/fake:generateContent"


@pytest.fixture
def running(start):
    return start()


@pytest.fixture
def client(running):
    return running.client


def create(client, **body):
    reply = client.post(PATH, json={"model": "models/fake", "contents": [HEAD, ANSWER, ASK, ANSWER], **body})
    assert reply.status_code == 200, reply.get_data()
    return reply.get_json()


def generate(client, name, **body):
    body = {"contents": [ASK], "cachedContent": name, "generationConfig": {"maxOutputTokens": 4}, **body}
    return client.post(GENERATE, json=body)


def num_pins(running):
    return running.engine.snapshot()["pins"]["num"]


def test_what_is_cached_goes_before_and_is_found(client, running):
    made = create(client, ttl="300s", display_name="mine", systemInstruction="Be kind.")
    assert made["model"] == "models/fake" and made["displayName"] == "mine"
    num_cached = made["usageMetadata"]["totalTokenCount"]
    assert num_cached > len(LONG)
    wait_until(lambda: num_pins(running) == 1)
    usage = generate(client, made["name"]).get_json()["usageMetadata"]
    assert usage["cachedContentTokenCount"] >= num_cached - 20
    whole = {"contents": [HEAD, ANSWER, ASK, ANSWER, ASK], "systemInstruction": "Be kind."}
    alike = client.post(GENERATE, json={**whole, "generationConfig": {"maxOutputTokens": 4}}).get_json()
    assert alike["usageMetadata"]["promptTokenCount"] == usage["promptTokenCount"]
    counted = client.post("/v1beta/models/fake:countTokens", json={"contents": [ASK], "cachedContent": made["name"]})
    assert counted.get_json()["totalTokens"] == usage["promptTokenCount"]


def test_a_system_instruction_alone_can_be_cached(client, running):
    made = create(client, contents=None, systemInstruction=LONG)
    assert num_pins(running) == 0 and generate(client, made["name"]).status_code == 200
    wait_until(lambda: num_pins(running) == 1)


def test_they_are_listed_changed_and_deleted(client, running):
    names = [create(client, ttl="60s")["name"] for _ in range(3)]
    page = client.get(f"{PATH}?pageSize=2").get_json()
    assert [one["name"] for one in page["cachedContents"]] == names[:2] and page["nextPageToken"] == "2"
    one = f"/v1beta/{names[0]}"
    before = client.get(one).get_json()
    after = client.patch(one, json={"ttl": "3600s"}).get_json()
    assert after["expireTime"] > before["expireTime"] and client.get(f"/v1/{names[0]}").get_json() == after
    assert client.patch(one, json={"expireTime": "2020-01-01T00:00:00Z"}).status_code == 400
    assert client.delete(one).get_json() == {} and client.get(one).status_code == 404
    assert client.delete(one).status_code == 404 and generate(client, names[0]).status_code == 404
    now = running.service.cached_contents.clock()
    running.service.cached_contents.clock = lambda: now + 100.0
    assert client.get(PATH).get_json() == {"cachedContents": []}
    assert generate(client, names[1]).status_code == 404


@pytest.mark.parametrize(
    "body, field",
    [
        ({"ttl": "5m"}, "ttl"),
        ({"ttl": "0s"}, "ttl"),
        ({"expireTime": "soon"}, "expireTime"),
        ({"model": 5}, "model"),
        ({"ttl": "5s", "expireTime": "2999-01-01T00:00:00Z"}, "ttl"),
        ({"contents": [{"role": "x"}]}, "contents[0].role"),
        ({"expireTime": "2999-01-01T00:00:00.123456789Z"}, "expireTime"),
        ({"contents": []}, "contents"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_kept(client, body, field):
    reply = client.post(PATH, json={"model": "fake", "contents": [HEAD], **body})
    assert reply.status_code == 400 and field in reply.get_data(as_text=True)
    assert client.get(PATH).get_json() == {"cachedContents": []}


@pytest.mark.parametrize("more", [{"systemInstruction": "x"}, {"tools": [{"functionDeclarations": [{"name": "f"}]}]}])
def test_a_request_cannot_change_what_was_cached(client, more):
    reply = generate(client, create(client)["name"], **more)
    assert reply.status_code == 400 and next(iter(more)) in reply.get_data(as_text=True)


def test_there_is_an_end_to_what_is_kept(client, running):
    running.service.cached_contents._most = 2
    create(client), create(client)
    reply = client.post(PATH, json={"model": "fake", "contents": [HEAD]})
    assert reply.status_code == 400 and "cached already" in reply.get_data(as_text=True)
