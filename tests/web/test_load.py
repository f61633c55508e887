"""The load report: what routers and autoscalers poll, in the names that they know."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llamasrv.engine.base.interface import Adapter
from llamasrv.engine.engine import Status
from llamasrv.web.ops.load import LoadReport
from llamasrv.web.service import WebOptions

LOAD = (
    "dp_rank", "num_running_reqs", "num_waiting_reqs", "num_total_reqs", "num_used_tokens", "max_total_num_tokens",
    "token_usage", "max_running_requests", "gen_throughput", "cache_hit_rate",
)  # fmt: skip


def gauges(client, path="/metrics/load"):
    """Name to value of vLLM's names; each occurs once."""
    families = text_string_to_metric_families(client.get(path).get_data(as_text=True))
    samples = [sample for family in families for sample in family.samples if sample.name.startswith("vllm:")]
    assert len({sample.name for sample in samples}) == len(samples)
    return {sample.name[5:]: sample for sample in samples}


def complete(client, prompt, **more):
    reply = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4, **more})
    assert reply.status_code == 200
    return reply


@pytest.mark.parametrize("path", ["/v1/loads", "/loads", "/loads?model=fake", "/v1/loads?include=core,queues"])
def test_an_idle_server_reports_itself_as_sglang_does(client, path):
    report = client.get(path).get_json()
    assert report["dp_rank_count"] == 1 and report["timestamp"] > 1e9
    (load,) = report["loads"]
    assert tuple(load) == LOAD
    assert load["num_total_reqs"] == load["num_used_tokens"] == load["token_usage"] == 0
    assert load["max_total_num_tokens"] > 0 and load["max_running_requests"] > 0


def test_running_and_waiting_are_counted(start):
    running = start()
    client, lanes = running.client, running.client.get("/loads").get_json()["loads"][0]["max_running_requests"]
    body = {"prompt": ["x"] * (lanes + 3), "max_tokens": 2000, "ignore_eos": True, "stream": True}
    reply = client.post("/v1/completions", json=body, buffered=False)
    next(reply.response)
    (load,) = client.get("/loads").get_json()["loads"]
    now = gauges(client)
    assert load["num_total_reqs"] == lanes + 3 and load["num_waiting_reqs"] >= 3
    assert 0 < load["token_usage"] <= 1 and load["num_used_tokens"] > 0
    assert now["num_requests_waiting"].value >= 3 and 0 < now["kv_cache_usage_perc"].value <= 1
    reply.close()


def test_kept_prefixes_are_no_load_but_hits(start):
    client = start().client
    for _ in range(2):
        complete(client, "a prompt of some length " * 8)
    now, (load,) = gauges(client), client.get("/loads").get_json()["loads"]
    queries, hits = now["prefix_cache_queries_total"].value, now["prefix_cache_hits_total"].value
    assert 0 < hits < queries
    assert load["cache_hit_rate"] == pytest.approx(hits / queries, abs=1e-3)
    assert load["token_usage"] == now["kv_cache_usage_perc"].value == 0
    labels = now["cache_config_info"].labels
    assert int(labels["num_gpu_blocks"]) == load["max_total_num_tokens"] // int(labels["block_size"])


def test_it_is_short_and_the_same_in_metrics(client):
    complete(client, "x")
    text = client.get("/metrics/load").get_data()
    assert len(text) < 1024
    assert text in client.get("/metrics").get_data()
    assert {sample.labels["model_name"] for sample in gauges(client).values()} == {"fake"}


def test_a_model_that_is_not_ready_has_no_load(start):
    running = start()
    running.engine.show(Status("loading", 0.5))
    try:
        (load,) = running.client.get("/loads").get_json()["loads"]
        assert load["max_total_num_tokens"] == 0 and load["token_usage"] == 0.0
        assert running.client.get("/metrics/load").status_code == 200
    finally:
        running.engine.show(Status("ready", 1.0))


def test_a_model_that_is_not_served_is_404(client):
    assert client.get("/loads?model=nope").status_code == 404


@pytest.mark.parametrize("path", ["/metrics/load", "/v1/loads", "/loads"])
def test_it_is_off_where_metrics_are(start, path):
    reply = start(web=WebOptions(metrics=False)).client.get(path)
    assert reply.status_code == 501 and path in reply.get_json()["error"]["message"]


@pytest.mark.parametrize("path", ["/metrics/load", "/v1/loads", "/loads", "/readyz", "/health"])
def test_polls_are_logged_at_debug(client, caplog, path):
    caplog.set_level(logging.DEBUG, logger="llamasrv.request")
    logging.getLogger("llamasrv").propagate = True
    assert client.get(path).status_code == 200
    assert [r.levelname for r in caplog.records if r.name == "llamasrv.request"] == ["DEBUG"]


def model(**more):
    """As much of a Model as the report reads; it is not loaded."""
    counters = SimpleNamespace(prompt_tokens=0, cached_tokens=0, busy_rows=0)
    return SimpleNamespace(name="m", metrics=counters, current=None, state="unloaded", parallel=4, adapters=(), **more)


def test_the_rate_covers_a_second_at_least_however_many_poll():
    now, one = [100.0], model()
    report = LoadReport(clock=lambda: now[0])

    def rate(seconds, rows):
        now[0] += seconds
        one.metrics.busy_rows += rows
        return report.loads([one])["loads"][0]["gen_throughput"]

    assert [rate(0, 0), rate(0.4, 80), rate(0.4, 80), rate(0.2, 40), rate(0.5, 0), rate(0.5, 0)] == [
        0,
        0,
        0,
        200,
        200,
        0,
    ]


def test_adapters_in_use_are_named():
    one = model()
    one.adapters = (Adapter("sql", None), Adapter('odd"name', None), Adapter("idle", None))
    rows = [SimpleNamespace(adapters=((1, 1.0),)), SimpleNamespace(adapters=((0, 0.5), (1, 1.0)))]
    view = SimpleNamespace(running=rows, total_cells=640, held_cells=64, total_lanes=4)
    one.current, one.state = SimpleNamespace(view=view, num_open=2), "loaded"
    (family,) = [
        found
        for found in text_string_to_metric_families(LoadReport().text([one]).decode())
        if found.name == "vllm:lora_requests_info"
    ]
    assert family.samples[0].labels == {
        "model_name": "m",
        "max_lora": "3",
        "running_lora_adapters": 'sql,odd"name',
        "waiting_lora_adapters": "",
    }


@pytest.mark.parametrize("store, told", [("memory", 1), ("none", 0)])
def test_a_router_over_servers_that_share_no_store_is_warned_of_once(start, caplog, store, told):
    own = start(store=store)
    for path in ("/metrics", "/metrics/load"):
        own.client.get(path)
    assert "previous_response_id" not in caplog.text
    for _ in range(3):
        own.client.get("/loads")
    assert caplog.text.count("previous_response_id") == told
