"""`prompt_cache_retention`: a prompt that is to be kept is pinned."""

from __future__ import annotations

import itertools
import re

import pytest

NUMBERS = itertools.count()


def chat(text):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4}


def responses(text):
    return {"input": text, "max_output_tokens": 16}


def num_pins(client):
    (count,) = re.findall(
        r'^llamasrv_pins_total\{model="fake"\} (\d+)', client.get("/metrics").get_data(as_text=True), re.M
    )
    return int(count)


@pytest.fixture(params=[("/v1/chat/completions", chat), ("/v1/responses", responses)], ids=["chat", "responses"])
def ask(client, request):
    """Asks with a prompt of this test alone."""
    path, body = request.param
    text = f"{next(NUMBERS)} is the number of these words, which are long enough to be worth it. " * 4
    return lambda **more: client.post(path, json={**body(text), **more})


@pytest.mark.parametrize("retention, pins", [("24h", 1), ("in_memory", 0), ("in-memory", 0), (None, 0)])
def test_only_what_is_to_be_kept_for_a_day_is_pinned(client, ask, retention, pins):
    before = num_pins(client)
    assert ask(prompt_cache_retention=retention).status_code == 200
    assert num_pins(client) - before == pins


def test_a_prompt_that_is_pinned_already_is_not_pinned_twice(client, ask):
    before = num_pins(client)
    replies = [ask(prompt_cache_retention="24h") for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 200] and num_pins(client) - before == 1


@pytest.mark.parametrize("retention", ["1h", "", 24, ["24h"]])
def test_any_other_time_is_refused(ask, retention):
    reply = ask(prompt_cache_retention=retention)
    error = reply.get_json()["error"]
    assert reply.status_code == 400 and error["param"] == "prompt_cache_retention" and "'24h'" in error["message"]


@pytest.mark.parametrize(
    "options, pins",
    [({"ttl": "30m"}, 1), ({"ttl": "12h", "mode": "implicit"}, 1), ({"ttl": "30m", "mode": "explicit"}, 0)],
)
def test_a_ttl_keeps_the_prompt_as_long(client, ask, options, pins):
    before = num_pins(client)
    assert ask(prompt_cache_options=options).status_code == 200
    assert num_pins(client) - before == pins


@pytest.mark.parametrize("field, value", [("ttl", "5m"), ("mode", "x"), ("prewarm", 1), ("comparison_response_id", 5)])
def test_options_that_cannot_be_are_refused(ask, field, value):
    reply = ask(prompt_cache_options={field: value})
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == f"prompt_cache_options.{field}"


def test_a_response_says_why_its_prompt_was_not_found(client):
    def respond(**more):
        found = client.post(
            "/v1/responses", json={**responses("Hello there. " * 20), "store": False, **more}
        ).get_json()
        return found["id"], found.get("prompt_cache_diagnostics")

    def compared(id, **more):
        return respond(prompt_cache_options={"comparison_response_id": id}, **more)[1]

    id, none = respond()
    assert none is None and compared(id) == {"type": "cache_hit"}
    assert compared("resp_none") == {"type": "comparison_response_not_found"}
    tools = [{"type": "function", "name": "f"}]
    reasons = [compared(id, tools=tools)["reason"], compared(id, input="Bye. " * 40)["reason"]]
    assert reasons == ["tools_changed", "input_changed"]
