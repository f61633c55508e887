"""Spans: one for each request that works, with the agreed names and no content."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llamasrv.domain.key import Key
from llamasrv.web.ops.spans import Spans
from llamasrv.web.service import WebOptions

SECRET = "a word that nobody may see"


@pytest.fixture
def traced(start):
    running = start()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    running.service.stats.on_close = Spans(provider).enter
    return running.client, exporter.get_finished_spans


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_a_span_of_the_clients_trace(traced, stream):
    client, spans = traced
    trace = "0af7651916cd43dd8448eb211c80319c"
    body = {"messages": [{"role": "user", "content": SECRET}], "stream": stream}
    shown = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    with client.post("/v1/chat/completions", json=body, headers=shown) as response:
        assert response.get_data()
    (span,) = spans()
    assert span.name == "chat fake" and f"{span.context.trace_id:032x}" == trace
    found = dict(span.attributes)
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.request.model"] == "fake"
    assert found["gen_ai.response.finish_reasons"] == ("stop",)
    assert found["gen_ai.usage.output_tokens"] == len("You said: ") + len(SECRET) + 1
    assert found["http.route"] == "/v1/chat/completions" and found["http.response.status_code"] == 200
    assert span.end_time > span.start_time
    assert SECRET not in span.to_json()


def test_a_refusal_is_one_with_its_code(traced):
    client, spans = traced
    client.post("/v1/completions", data=b"{")
    (span,) = spans()
    assert span.attributes["error.type"] == "invalid_json" and span.attributes["http.response.status_code"] == 400


def test_it_names_the_key(start):
    running = start(web=WebOptions(keys=(Key.of("ann", "key-of-ann"),)))
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    running.service.stats.on_close = Spans(provider).enter
    running.client.post("/v1/completions", data=b"{", headers={"X-Api-Key": "key-of-ann"})
    assert [span.attributes["llamasrv.key"] for span in exporter.get_finished_spans()] == ["ann"]


def test_what_does_no_work_has_none(traced):
    client, spans = traced
    for path in ("/livez", "/v1/models", "/nope", "/metrics"):
        client.get(path)
    assert not spans()


def test_a_broken_parent_is_no_parent(traced):
    client, spans = traced
    client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={"traceparent": "x\x00-1"})
    assert spans()[0].parent is None
