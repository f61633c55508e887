"""GET /v1/usage: tokens by day, key and model, as the requests said themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llamasrv.domain.key import Key
from llamasrv.domain.prices import Prices
from llamasrv.web.service import WebOptions

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


@pytest.fixture
def running(start):
    infer = ("infer",)
    keys = (Key.of("ann", "secret-ann", infer), Key.of("bob", "secret-bob", infer), Key.of("root", "secret-root"))
    return start(web=WebOptions(keys=keys))


def as_(name):
    return {"Authorization": f"Bearer secret-{name}"}


def usage(running, name, **query):
    reply = running.client.get("/v1/usage", query_string=query, headers=as_(name))
    assert reply.status_code == 200, reply.get_json()
    return reply.get_json()["data"]


def chat(running, name, **more):
    return running.client.post("/v1/chat/completions", json={**HELLO, **more}, headers=as_(name)).get_json()["usage"]


def test_a_key_sees_what_it_used_itself(running):
    told = [chat(running, "ann"), chat(running, "ann")]
    chat(running, "bob")
    [mine] = usage(running, "ann")
    assert (mine["key"], mine["model"], mine["requests"]) == ("ann", "fake", 2) and mine["seconds"] > 0
    assert mine["prompt_tokens"] == sum(one["prompt_tokens"] for one in told)
    assert mine["completion_tokens"] == sum(one["completion_tokens"] for one in told)
    assert mine["cached_tokens"] == sum(one["prompt_tokens_details"]["cached_tokens"] for one in told)
    assert usage(running, "ann", key="ann") == [mine]
    assert running.client.get("/v1/usage?key=bob", headers=as_("ann")).status_code == 403


def test_a_model_with_prices_has_its_cost_and_another_none(running):
    told = chat(running, "ann")
    assert usage(running, "ann")[0]["cost"] is None
    [model] = running.service.registry.models
    model.settings = replace(model.settings, prices=Prices(1.0, 0.25, 4.0))
    cached = told["prompt_tokens_details"]["cached_tokens"]
    expected = told["prompt_tokens"] - cached + 0.25 * cached + 4 * told["completion_tokens"]
    assert usage(running, "ann")[0]["cost"] == pytest.approx(expected / 1e6, abs=1e-6)
    assert running.client.get("/v1/usage", headers=as_("ann")).get_json()["currency"] == "USD"


def test_an_admin_sees_all_or_one(running):
    for name in ("ann", "bob"):
        chat(running, name)
    assert [used["key"] for used in usage(running, "root")] == ["ann", "bob"]
    assert [used["key"] for used in usage(running, "root", key="bob")] == ["bob"]


def test_a_stream_and_a_request_that_was_refused_count_as_they_should(running):
    body = {**HELLO, "stream": True}
    with running.client.post("/v1/chat/completions", json=body, headers=as_("ann")) as stream:
        stream.get_data()
    running.client.post("/v1/chat/completions", json={**HELLO, "temperature": 99}, headers=as_("ann"))
    assert [used["requests"] for used in usage(running, "ann")] == [1]


def test_days_are_asked_for(running):
    chat(running, "ann")
    assert usage(running, "ann", until="2001-01-01", since="2000-01-01") == []
    reply = running.client.get("/v1/usage?since=yesterday", headers=as_("ann"))
    assert (reply.status_code, reply.get_json()["error"]["param"]) == (400, "since")


def test_metrics_tell_tokens_by_key(running):
    told = chat(running, "bob")
    text = running.client.get("/metrics", headers=as_("root")).get_data(as_text=True)
    line = 'llamasrv_key_tokens_total{key="bob",kind="prompt",model="fake"}'
    assert f"{line} {float(told['prompt_tokens'])}" in text


def test_without_a_store_totals_last_as_long_as_the_process(start):
    running = start(store="none")
    running.client.post("/v1/chat/completions", json=HELLO)
    assert running.client.get("/v1/usage").get_json()["data"][0]["requests"] == 1
