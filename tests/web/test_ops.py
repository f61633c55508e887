"""Health, readiness and metrics: true at every state of the model, and never in its way."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llamasrv.engine.base.metrics import EmbedderMetrics, EngineMetrics, figures
from llamasrv.engine.engine import Status
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.web.service import WebOptions

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def paused(start):
    """A service whose model is in another state than ready."""
    running = start()
    yield running
    running.engine.show(Status("ready", 1.0))


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/livez", "/readyz"])
def test_a_ready_server_is_ok(client, path):
    response = client.get(path)
    assert (response.status_code, response.get_json()) == (200, {"status": "ok"})


def test_a_loading_server_says_so_in_llama_cpps_words(paused):
    paused.engine.show(Status("loading", 0.25))
    response = paused.client.get("/health")
    assert response.status_code == 503
    assert response.get_json()["error"] == {
        "message": "Loading model",
        "type": "unavailable_error",
        "param": None,
        "code": 503,
    }
    assert response.get_json()["progress"] == 0.25


@pytest.mark.parametrize("state", ["loading", "draining", "failed", "stopped"])
def test_only_liveness_is_independent_of_the_model(paused, state):
    paused.engine.show(Status(state, 0.5, "because"))
    assert [paused.client.get(path).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
    assert paused.client.get("/readyz").headers["Retry-After"]


def test_requests_wait_for_the_model_elsewhere(paused):
    paused.engine.show(Status("loading"))
    for path, body in (("/v1/chat/completions", HELLO), ("/tokenize", {"content": "x"})):
        response = paused.client.post(path, json=body)
        assert response.status_code == 503 and response.headers["Retry-After"]
    assert paused.client.get("/v1/models").status_code == 200


def test_readiness_prepares_what_the_first_request_needs(start, monkeypatch):
    running, prepared, prepare = start(), [], LoadedModel.of
    monkeypatch.setattr(LoadedModel, "of", lambda model: (prepared.append(model.name), prepare(model))[1])
    assert running.client.get("/readyz").status_code == 200
    assert prepared == ["fake"]
    assert running.client.post("/v1/chat/completions", json=HELLO).status_code == 200
    assert prepared == ["fake"]


def families(client):
    response = client.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(response.get_data(as_text=True))}


def value(families, name, **labels):
    samples = [sample for family in families.values() for sample in family.samples]
    found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
    assert len(found) == 1, (name, found)
    return found[0]


def test_metrics_count_what_was_served(start):
    client = start().client
    client.post("/v1/chat/completions", json=HELLO)
    client.get("/no/such/path")
    now = families(client)
    assert value(now, "llamasrv_http_requests_total", route="/v1/chat/completions", status="200") == 1
    assert value(now, "llamasrv_http_requests_total", route="unknown", status="404") == 1
    assert value(now, "llamasrv_generated_tokens_total", model="fake") == 16
    assert value(now, "llamasrv_finished_total", reason="stop") == 1
    assert value(now, "llamasrv_first_token_seconds_count") == 1
    assert value(now, "llamasrv_running") == 0


def test_every_counter_of_the_engine_is_shown_under_its_name(start):
    client = start().client
    client.post("/v1/chat/completions", json=HELLO)
    shown = families(client)
    for prefix, metrics in (("llamasrv_", EngineMetrics()), ("llamasrv_embedding_", EmbedderMetrics())):
        declared = {name: help for name, help, _, _ in figures(metrics)}
        assert {name: shown[prefix + name].documentation for name in declared} == declared


def test_metrics_have_llama_servers_names(client, start):
    now = families(client)
    for name in (
        "prompt_tokens_total",
        "prompt_tokens_cached_total",
        "prompt_seconds_total",
        "tokens_predicted_total",
        "tokens_predicted_seconds_total",
        "n_decode_total",
        "prompt_tokens_seconds",
        "predicted_tokens_seconds",
        "requests_processing",
        "requests_deferred",
        "n_busy_slots_per_decode",
    ):
        value(now, f"llamacpp:{name}")
    # A counter whose name does not say so, as llama-server has it; the parser here would give it another name.
    assert "\nllamacpp:n_tokens_max 0\n" in start().client.get("/metrics").get_data(as_text=True)


def test_labels_do_not_grow_with_what_clients_invent(start):
    running = start()
    for i in range(50):
        running.client.get(f"/path{i}")
        running.client.get(f"/v1/models/model{i}")
    assert set(running.service.stats.counts) == {("unknown", 404), ("/v1/models/<path:name>", 404)}


def test_a_histogram_is_cumulative(start):
    client = start().client
    client.post("/v1/chat/completions", json=HELLO)
    buckets = [s.value for s in families(client)["llamasrv_step_seconds"].samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] > 0


def test_reused_tokens_are_counted_by_where_they_were(start):
    client = start().client
    for _ in range(2):
        client.post("/v1/chat/completions", json=HELLO)
    counted = {s.labels["source"]: s.value for s in families(client)["llamasrv_reused_tokens"].samples}
    assert set(counted) == {"running", "resident", "checkpoint", "host", "disk"}
    assert counted["resident"] > 10 and counted["running"] == counted["disk"] == 0


def test_what_is_switched_off_is_501(start):
    """llama-server's status for it, and its words of an error."""
    client = start(web=WebOptions(slots=False, metrics=False)).client
    replies = [client.get("/slots"), client.get("/metrics"), client.post("/props", json={})]
    assert [reply.status_code for reply in replies] == [501, 501, 501]
    assert [reply.get_json()["error"]["type"] for reply in replies] == ["not_supported_error"] * 3


def test_the_figures_of_a_single_model_have_no_label(start):
    """llama-server's dashboards look for the bare name."""
    running = start()
    running.client.post("/v1/chat/completions", json=HELLO)
    lines = running.client.get("/metrics").get_data(as_text=True).splitlines()
    assert "llamacpp:tokens_predicted_total 16" in lines and "llamacpp:requests_processing 0" in lines
    assert "# TYPE llamacpp:n_tokens_max counter" in lines
    assert running.client.get("/metrics").headers["Process-Start-Time-Unix"].isdecimal()


def test_rates_cover_the_time_since_the_last_look(start):
    """As in llama-server: an average since the start would tell less and less."""
    running = start()
    running.client.post("/v1/chat/completions", json=HELLO)
    rate = "llamacpp:predicted_tokens_seconds"
    assert value(families(running.client), rate) > 0
    assert value(families(running.client), rate) == 0
