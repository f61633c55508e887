"""Google's Interactions over the store of responses: made, continued, streamed, shown, cancelled, forgotten."""

from __future__ import annotations

import json

import pytest
from serving import wait_until

PATH = "/v1beta/interactions"
GOOGLE = {"x-goog-api-client": "google-genai-sdk/3.4.0"}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}


def create(client, given="Hello", **body):
    reply = client.post(PATH, json={"model": "fake", "input": given, **body})
    assert reply.status_code == 200, reply.get_data()
    return reply


def events(reply):
    lines = reply.get_data(as_text=True).split("\n\n")
    assert lines[-2:] == ["event: done\ndata: [DONE]", ""]
    made = [json.loads(line.partition("data: ")[2]) for line in lines[:-2]]
    assert [line.partition("\n")[0] for line in lines[:-2]] == [f"event: {one['event_type']}" for one in made]
    return made


def test_an_interaction_is_answered_and_continued(client):
    first = create(client).get_json()
    assert first["status"] == "completed" and first["output_text"] == "You said: Hello"
    assert first["steps"] == [{"type": "model_output", "content": [{"type": "text", "text": "You said: Hello"}]}]
    usage = first["usage"]
    assert usage["total_tokens"] == usage["total_input_tokens"] + usage["total_output_tokens"] > 0
    second = create(client, "And?", previous_interaction_id=first["id"]).get_json()
    assert second["previous_interaction_id"] == first["id"] and second["output_text"] == "You said: And?"
    assert second["usage"]["total_cached_tokens"] >= 0.97 * usage["total_input_tokens"]
    shown = client.get(f"{PATH}/{second['id']}?include_input=true").get_json()
    assert [step["type"] for step in shown["steps"]] == ["user_input", "model_output"]
    assert client.get(f"/v1/responses/{second['id']}").get_json()["output"][0]["content"][0]["text"] == "You said: And?"


def test_googles_clients_find_it_under_v1(client):
    reply = client.post("/v1/interactions", json={"model": "fake", "input": "Hello"}, headers=GOOGLE)
    assert reply.get_json()["object"] == "interaction"


def test_its_events_are_numbered_and_read_again(client):
    made = events(create(client, stream=True))
    kinds = [one["event_type"] for one in made]
    assert kinds[:3] == ["interaction.created", "interaction.status_update", "step.start"]
    assert kinds[-2:] == ["step.stop", "interaction.completed"] and set(kinds[3:-2]) == {"step.delta"}
    assert "".join(one["delta"]["text"] for one in made[3:-2]) == "You said: Hello"
    assert made[-1]["interaction"]["status"] == "completed" and made[-1]["interaction"]["usage"]["total_tokens"] > 0
    id = made[0]["interaction"]["id"]
    again = events(client.get(f"{PATH}/{id}?stream=true"))
    assert again == made
    assert events(client.get(f"{PATH}/{id}?stream=true&last_event_id={made[3]['event_id']}")) == made[4:]
    assert client.get(f"{PATH}/{id}?stream=true&last_event_id=x").status_code == 400


def test_a_call_asks_for_its_result(client):
    config = {"tool_choice": "any"}
    made = events(create(client, tools=[CLOCK], generation_config=config, stream=True))
    start = next(one for one in made if one["event_type"] == "step.start")["step"]
    assert start["type"] == "function_call" and start["arguments"] == {}
    deltas = [one["delta"] for one in made if one["event_type"] == "step.delta"]
    assert json.loads("".join(delta["arguments"] for delta in deltas)) == {}
    last = made[-1]["interaction"]
    assert last["status"] == "requires_action"
    result = [{"type": "function_result", "call_id": start["id"], "result": "noon"}]
    done = create(client, result, previous_interaction_id=last["id"], tools=[CLOCK]).get_json()
    assert done["status"] == "completed"


def test_what_is_not_stored_is_not_found_in_googles_words(client):
    made = create(client, store=False).get_json()
    for reply in (client.get(f"{PATH}/{made['id']}"), client.delete(f"{PATH}/{made['id']}")):
        error = reply.get_json()["error"]
        assert reply.status_code == 404 and error["status"] == "NOT_FOUND" and "Interaction with id" in error["message"]
    kept = create(client).get_json()
    assert client.delete(f"{PATH}/{kept['id']}").get_json() == {}
    assert client.get(f"{PATH}/{kept['id']}").status_code == 404


def test_one_in_the_background_is_polled_followed_and_cancelled(client):
    queued = create(client, background=True).get_json()
    assert queued["status"] in ("queued", "in_progress") and queued["steps"] == []
    wait_until(lambda: client.get(f"{PATH}/{queued['id']}").get_json()["status"] == "completed")
    assert events(client.get(f"{PATH}/{queued['id']}?stream=true"))[-1]["event_type"] == "interaction.completed"
    assert client.post(f"{PATH}/{queued['id']}/cancel").get_json()["status"] == "completed"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{"type": "google_search"}]}, "tools[0].type"),
        ({"previous_interaction_id": "x"}, "previous_interaction_id"),
    ],
)
def test_what_is_refused_is_named(client, body, field):
    reply = client.post(PATH, json={"model": "fake", "input": "x", **body})
    assert reply.status_code == 400
    assert reply.get_json()["error"]["details"][0]["fieldViolations"][0]["field"] == field
