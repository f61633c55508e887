"""Models over HTTP: requests that wait for theirs, and clients that manage them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from models.farm import Farm
from serving import wait_until

from llamasrv.engine.base.interface import LoadFailed
from llamasrv.web.app import create_app
from llamasrv.web.service import Service, WebOptions

HELLO = [{"role": "user", "content": "Hello"}]


def settle(model, **settings):
    model.settings = replace(model.settings, **settings)


class Served:
    """The application on models that are loaded when they are asked for."""

    def __init__(self, farm, **options):
        self.farm = farm
        self.service = Service.of(farm.registry(), WebOptions(**options))
        self.client = create_app(self.service).test_client()

    def chat(self, model, **more):
        return self.client.post("/v1/chat/completions", json={"model": model, "messages": HELLO, **more})

    def status(self, model):
        return self.client.get(f"/v1/models/{model}").get_json()["status"]


@pytest.fixture
def start():
    farms = []

    def start(*names, limit=0, load_timeout=300.0, **options):
        farm = Farm(limit=limit, load_timeout=load_timeout, clock=time.monotonic)
        farms.append(farm.add(*names or ("a", "b", "c")))
        return Served(farms[-1], **options)

    yield start
    for farm in farms:
        farm.close()


def test_a_request_waits_until_its_model_is_loaded(start):
    served = start()
    assert served.status("a") == {"value": "unloaded"}
    assert served.chat("a").get_json()["choices"][0]["message"]["content"] == "You said: Hello"
    assert served.status("a") == {"value": "loaded"} and served.farm.opened == ["a"]


def test_any_endpoint_does(start):
    served = start()
    assert served.client.post("/tokenize", json={"content": "x", "model": "b"}).get_json() == {"tokens": [120]}
    assert "prompt" in served.client.post("/apply-template", json={"messages": HELLO, "model": "c"}).get_json()
    assert served.farm.opened == ["b", "c"]


@pytest.mark.parametrize("path", ["/readyz", "/props?model=b", "/slots?model=b", "/health", "/v1/models"])
def test_probes_load_no_model_and_keep_none(start, path):
    """Whoever watched a server kept its models in memory, and loaded those that nobody used."""
    served = start("a", "b")
    served.farm.load("a")
    a = served.farm["a"]
    stay = a.stay
    a.touch(7.0)
    a.last_used = since = -1000.0
    for probe in (path, path.replace("=b", "=a")):
        assert served.client.get(probe).status_code == 200
    assert served.farm.opened == ["a"] and served.farm["b"].state == "unloaded"
    assert (a.last_used, a.stay) == (since, 7.0) != (since, stay)


def test_the_properties_of_a_model_that_is_not_loaded_are_those_of_its_file(start):
    served = start("a")
    settle(served.farm["a"], sampling={"temperature": 0.25})
    props = served.client.get("/props?model=a").get_json()
    assert props["is_sleeping"] and props["model_alias"] == "a" and props["total_slots"] == 4
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 512 and settings["params"]["temperature"] == 0.25
    served.farm.load("a")
    loaded = served.client.get("/props?model=a").get_json()
    assert not loaded["is_sleeping"] and loaded["default_generation_settings"] == settings


def test_a_model_that_could_not_be_loaded_has_no_properties(start):
    served = start("a")
    served.farm.broken["a"] = LoadFailed("no good")
    assert served.chat("a").status_code == 503
    reply = served.client.get("/props?model=a")
    assert reply.status_code == 503 and "no good" in reply.get_json()["error"]["message"]


def test_a_request_never_gets_a_model_other_than_the_one_it_named(start):
    response = start().chat("d")
    assert response.status_code == 404
    assert response.get_json()["error"]["code"] == "model_not_found"


def test_a_stream_gets_comments_while_its_model_is_loaded(start):
    served = start(keepalive=0.005)
    served.farm.gate.clear()
    response = served.chat("a", stream=True)
    assert response.status_code == 200
    stream = response.iter_encoded()
    seen = [next(stream) for _ in range(3)]
    assert set(seen) == {b": ping\n\n"}
    served.farm.gate.set()
    rest = b"".join(stream)
    assert b'"content":"Y' in rest and rest.endswith(b"data: [DONE]\n\n")
    response.close()
    assert not served.farm["a"].in_use and not served.farm["a"].awaited


def test_a_failed_load_is_a_503_with_its_reason(start):
    served = start()
    served.farm.broken["a"] = LoadFailed("a.gguf: no good")
    for more in ({}, {"stream": True}):
        response = served.chat("a", **more)
        assert response.status_code == 503 and float(response.headers["Retry-After"]) >= 1
        assert "could not be loaded: a.gguf: no good" in response.get_json()["error"]["message"]
    assert served.status("a")["failed"]
    assert served.chat("b").status_code == 200


def test_a_load_that_fails_later_is_an_event_of_the_stream(start):
    served = start(keepalive=0.005)
    served.farm.gate.clear()
    served.farm.broken["a"] = LoadFailed("a.gguf: no good")
    stream = served.chat("a", stream=True).iter_encoded()
    assert next(stream) == b": ping\n\n"
    served.farm.gate.set()
    rest = b"".join(stream)
    assert b"a.gguf: no good" in rest and rest.endswith(b"data: [DONE]\n\n")


def test_what_is_wrong_with_a_request_is_reported_after_loading_in_its_own_words(start):
    served = start(keepalive=0.005)
    response = served.chat("a", tool_choice="required")
    assert response.status_code == 400
    served.farm.gate.clear()
    response = served.client.post(
        "/v1/chat/completions",
        json={"model": "b", "stream": True, "messages": [{"role": "user", "content": "x" * 2000}]},
    )
    served.farm.gate.set()
    assert b"context_length_exceeded" in response.data and b'"param":"messages"' in response.data


def test_waiting_has_a_limit(start):
    served = start(load_timeout=0.02)
    served.farm.gate.clear()
    response = served.chat("a")
    assert response.status_code == 503 and "still loading" in response.get_json()["error"]["message"]


def test_a_requests_own_time_limit_counts_while_it_waits(start):
    served = start(timeout=0.02)
    served.farm.gate.clear()
    assert served.chat("a").status_code == 504


def test_a_stream_that_is_closed_while_its_model_is_loaded_waits_no_more(start):
    served = start(keepalive=0.005)
    served.farm.gate.clear()
    response = served.chat("a", stream=True)
    stream = response.iter_encoded()
    next(stream)
    response.close()
    assert not served.farm["a"].awaited
    served.farm.gate.set()
    assert served.chat("a").status_code == 200  # it was loaded all the same


def test_lists_tell_of_models_that_are_not_loaded(start):
    served = start()
    served.chat("b")
    listed = {m["id"]: m for m in served.client.get("/models").get_json()["data"]}
    assert {name: m["status"]["value"] for name, m in listed.items()} == {
        "a": "unloaded",
        "b": "loaded",
        "c": "unloaded",
    }
    assert listed["a"]["context_length"] == 512 and "meta" in listed["b"]


def test_loading_is_reported_with_its_progress(start):
    served = start()
    served.farm.gate.clear()
    served.farm.loader.load(served.farm["a"])
    wait_until(lambda: served.farm["a"].progress == 0.5)
    assert served.status("a") == {"value": "loading", "progress": 0.5}
    assert served.client.get("/readyz").get_json() == {"status": "ok", "loading": {"a": 0.5}}


# Managing


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/models/load", {"model": "a"}),
        ("post", "/models/unload", {"model": "a"}),
        ("delete", "/models?model=a", None),
    ],
)
def test_it_is_off_until_it_is_allowed(start, method, path, body):
    response = getattr(start().client, method)(path, json=body)
    assert response.status_code == 403
    assert "--models-manage" in response.get_json()["error"]["message"]


def test_a_client_may_load_and_unload(start):
    served = start(manage=True)
    assert served.client.post("/models/load", json={"model": "a"}).get_json() == {"success": True}
    wait_until(lambda: served.farm["a"].state == "loaded")
    assert served.client.post("/models/unload", json={"model": "a"}).get_json() == {"success": True}
    wait_until(lambda: served.farm["a"].state == "unloaded")
    assert served.client.post("/models/unload", json={"model": "a"}).status_code == 400


def test_loading_tries_again_what_has_failed(start):
    served = start(manage=True)
    served.farm.broken["a"] = LoadFailed("no good")
    assert served.chat("a").status_code == 503
    del served.farm.broken["a"]
    assert served.chat("a").status_code == 503
    served.client.post("/models/load", json={"model": "a"})
    wait_until(lambda: served.farm["a"].state == "loaded")


def test_a_request_loads_nothing_where_the_operator_says_so(start):
    served = start(manage=True)
    served.farm.loader.on_demand = False
    refused = served.chat("a")
    assert refused.status_code == 400 and "POST /models/load" in refused.get_json()["error"]["message"]
    served.client.post("/models/load", json={"model": "a"})
    wait_until(lambda: served.farm["a"].state == "loaded")
    assert served.chat("a").status_code == 200 and served.farm.opened == ["a"]


def test_tags_are_reported(start):
    served = start()
    settle(served.farm["a"], tags=("small", "fast"))
    assert served.client.get("/v1/models/a").get_json()["tags"] == ["small", "fast"]


@pytest.mark.parametrize("body", [{}, {"model": 3}, {"model": "no such"}])
def test_a_body_that_names_no_model_is_refused(start, body):
    served = start(manage=True)
    assert served.client.post("/models/load", json=body).status_code in (400, 404)


def test_a_configured_model_cannot_be_deleted(start, tmp_path):
    served = start(manage=True, folder=tmp_path)
    assert served.client.delete("/models?model=a").status_code == 403
    assert served.client.delete("/models").status_code == 400
    assert served.client.delete("/models?model=x").status_code == 404


def test_the_metrics_count_loads_and_unloads(start):
    served = start(limit=25)
    for name in "abc":
        served.chat(name)
    text = served.client.get("/metrics").get_data(as_text=True)
    assert 'llamasrv_model_loads_total{model="a"} 1.0' in text and 'llamasrv_model_unloads_total{model="a"} 1.0' in text
    assert 'llamasrv_model_loaded{model="c"} 1.0' in text and 'llamasrv_model_memory_bytes{model="c"} 10.0' in text


def test_where_nothing_loads_by_itself_a_request_says_what_does(start):
    """llama-server's --no-models-autoload."""
    served = start(manage=True)
    served.farm.loader.on_demand = False
    refused = served.chat("a")
    assert refused.status_code == 400 and "POST /models/load" in refused.get_json()["error"]["message"]
    assert served.client.post("/models/load", json={"model": "a"}).status_code == 200
    wait_until(lambda: served.status("a")["value"] == "loaded")
    assert served.chat("a").status_code == 200 and served.farm.opened == ["a"]


def test_a_server_without_a_model_says_that_it_is_a_router(start):
    served = start(router=True)
    served.farm.loader.budget.most = 2
    props = served.client.get("/props").get_json()
    assert (props["role"], props["max_instances"], props["models_autoload"]) == ("router", 2, True)
    assert props["build_info"].startswith("b")
    assert served.client.get("/props?model=b").get_json()["is_sleeping"] is True


def test_the_models_are_looked_for_again_where_that_is_asked_for(start):
    served = start(manage=True)
    looked = []
    served.service.reread = lambda: looked.append(1)
    assert served.client.get("/models").status_code == 200 and not looked
    assert served.client.get("/models?reload=1").status_code == 200 and looked
    assert start().client.get("/models?reload=1").status_code == 403


def test_a_model_shows_what_it_takes_and_gives(client):
    (entry,) = client.get("/v1/models").get_json()["data"]
    assert entry["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}


NAMED = {"X-Conversation-Id": "talk::a"}


def post_named(served, replies):
    """A stream by that name, posted from a thread of its own while its model is being loaded."""

    def post():
        replies.append(
            served.client.application.test_client().post(
                "/v1/chat/completions", json={"model": "a", "messages": HELLO, "stream": True}, headers=NAMED
            )
        )

    thread = threading.Thread(target=post)
    thread.start()
    wait_until(lambda: named_stream(served).status_code == 503)
    return thread


def named_stream(served, method="GET"):
    return served.client.open("/v1/stream?conv_id=talk::a", method=method)


def test_a_stream_that_has_a_name_can_be_ended_while_its_model_is_loaded(start):
    """There was no such stream before its first byte, so a stop in that time was lost, and the answer was computed."""
    served, replies = start(), []
    served.farm.gate.clear()
    thread = post_named(served, replies)
    assert named_stream(served, "DELETE").status_code == 204
    thread.join(10)
    assert replies[0].status_code == 400 and "cancelled" in replies[0].get_json()["error"]["message"]
    served.farm.gate.set()
    assert named_stream(served).status_code == 404
    wait_until(lambda: served.service.stats.num_open == 0)


def test_a_stream_that_has_a_name_can_be_asked_for_while_its_model_is_loaded(start):
    served, replies = start(), []
    served.farm.gate.clear()
    thread = post_named(served, replies)
    early = named_stream(served)
    assert early.status_code == 503 and early.headers["Retry-After"]
    served.farm.gate.set()
    thread.join(10)
    assert named_stream(served).get_data() == replies[0].get_data() != b""


def test_the_same_name_again_ends_the_one_that_has_not_begun(start):
    served, replies = start(), []
    served.farm.gate.clear()
    first = post_named(served, replies)
    second = post_named(served, replies)
    first.join(5)
    assert replies[0].status_code == 400
    served.farm.gate.set()
    second.join(10)
    assert replies[1].status_code == 200 and named_stream(served).status_code == 200


def test_a_request_may_say_whether_it_loads_its_model(start):
    served = start()
    ask = {"model": "a", "content": "x"}
    refused = served.client.post("/tokenize?autoload=0", json=ask)
    assert refused.status_code == 400 and "is not loaded" in refused.get_json()["error"]["message"]
    assert (
        served.client.post("/v1/chat/completions?autoload=false", json={"model": "a", "messages": HELLO}).status_code
        == 400
    )
    assert served.farm.opened == []
    assert served.client.post("/tokenize?autoload=1", json=ask).status_code == 200
    assert served.client.post("/tokenize?autoload=0", json=ask).status_code == 200, "it is loaded"


@pytest.mark.parametrize(("manage", "status"), [(False, 403), (True, 200)])
def test_who_loads_where_requests_do_not_manages_models(start, manage, status):
    served = start(manage=manage)
    served.farm.loader.on_demand = False
    assert served.client.post("/tokenize?autoload=1", json={"model": "a", "content": "x"}).status_code == status
