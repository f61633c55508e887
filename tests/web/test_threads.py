"""Anthropic's message threads over Flask's test client: kept under their owner, continued, lost."""

from __future__ import annotations

import pytest
from serving import failing_midway

from llamasrv.domain.key import Key
from llamasrv.web.service import WebOptions

PATH = "/v1/messages"
CREATE = {"type": "create"}


def say(client, text, thread=CREATE, headers=None, **more):
    body = {"max_tokens": 200, "messages": [{"role": "user", "content": text}], "thread": thread, **more}
    return client.post(PATH, json=body, headers=headers)


def go_on(id):
    return {"type": "continue", "previous_message_id": id}


def whole_prompt(reply):
    usage = reply.get_json()["usage"]
    return usage["input_tokens"] + usage["cache_read_input_tokens"]


def refused(reply, status, code):
    error = reply.get_json()["error"]
    assert (reply.status_code, error["details"]["error_code"]) == (status, code)
    return error


@pytest.mark.parametrize("stream", [False, True])
def test_a_thread_remembers(client, stream):
    """It answered 200 and had forgotten everything."""
    first = say(client, "My name is Ann.", system="S", stream=stream)
    id = first.get_data(as_text=True).partition('"id":"')[2].partition('"')[0]
    second = say(client, "And yours?", go_on(id))
    spoken = [
        {"role": "user", "content": "My name is Ann."},
        {"role": "assistant", "content": "You said: My name is Ann."},
        {"role": "user", "content": "And yours?"},
    ]
    whole = client.post(PATH, json={"max_tokens": 200, "messages": spoken, "system": "S"})
    assert whole_prompt(second) == whole_prompt(whole)
    third = say(client, "x", go_on(second.get_json()["id"]))
    assert whole_prompt(third) > whole_prompt(second)


def test_its_tokens_are_counted(client):
    id = say(client, "My name is Ann.").get_json()["id"]
    body = {"messages": [{"role": "user", "content": "And yours?"}], "thread": go_on(id)}
    count = client.post(PATH + "/count_tokens", json=body).get_json()["input_tokens"]
    assert count == whole_prompt(say(client, "And yours?", go_on(id)))


@pytest.mark.parametrize("id", ["msg_x", "msg_" + "0" * 48, "", "resp_" + "0" * 48, "msg_" + "0" * 500])
def test_a_thread_that_is_not_there_is_not_found(client, id):
    error = refused(say(client, "x", go_on(id)), 404, "thread_not_found")
    assert error["type"] == "not_found_error"


def test_a_reply_outside_of_a_thread_cannot_be_continued(client):
    id = say(client, "x", None).get_json()["id"]
    refused(say(client, "y", go_on(id)), 404, "thread_not_found")


def test_a_reply_is_continued_once(client):
    id = say(client, "x").get_json()["id"]
    assert say(client, "y", go_on(id)).status_code == 200
    refused(say(client, "z", go_on(id)), 400, "thread_already_continued")


def test_a_turn_that_failed_can_be_tried_again(start):
    running = start()
    id = say(running.client, "x").get_json()["id"]
    decode = running.backend.decode
    body = {"max_tokens": 200, "messages": [{"role": "user", "content": "y" * 40}], "thread": go_on(id), "stream": True}
    assert b"event: error" in failing_midway(running, PATH, body)
    running.backend.decode = decode
    assert say(running.client, "y", go_on(id)).status_code == 200


def test_another_key_finds_no_thread(start):
    keys = (Key.of("ann", "secret-a"), Key.of("bob", "secret-b"))
    client = start(web=WebOptions(keys=keys)).client
    ann, bob = ({"x-api-key": secret} for secret in ("secret-a", "secret-b"))
    id = say(client, "x", headers=ann).get_json()["id"]
    refused(say(client, "y", go_on(id), bob), 404, "thread_not_found")
    assert say(client, "y", go_on(id), ann).status_code == 200


def test_a_server_that_stores_nothing_says_so_at_once(start):
    client = start(store="none").client
    error = refused(say(client, "x"), 400, "thread_unsupported_request")
    assert error["details"]["unsupported"] == ["thread"] and error["type"] == "invalid_request_error"
    assert say(client, "x", None).status_code == 200


def test_a_thread_is_no_response(client):
    id = say(client, "x").get_json()["id"]
    assert client.get(f"/v1/responses/{id}").status_code == 404
