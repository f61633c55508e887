"""One span per request, with OpenTelemetry's names for generative models. Needs the extra `otel`.

OpenTelemetry's own variables say where spans go, how often and under what service name (OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER ...). A client's `traceparent` makes a span part of its trace. No content.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from llamasrv.errors import ConfigError

if TYPE_CHECKING:
    from llamasrv.web.ops.request_log import RequestLog

NEEDED = "log.spans needs OpenTelemetry: pip install 'llamasrv[otel]'"

OPERATIONS = (
    ("/v1/embeddings", "embeddings"), ("/api/embed", "embeddings"), ("/embedding", "embeddings"),
    ("/v1/completions", "text_completion"), ("/completion", "text_completion"), ("/api/generate", "text_completion"),
    ("/v1/chat", "chat"), ("/chat", "chat"), ("/v1/messages", "chat"), ("/v1/responses", "chat"), ("/api/chat", "chat"),
)  # fmt: skip
"""Route prefixes and the name of their operation. Other routes get no span."""


class Spans:
    """Sends the spans of finished requests to a tracer. `provider` None: the one described by the environment."""

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            provider = provider or _provider()
        except ImportError:
            raise ConfigError(NEEDED) from None
        self._provider = provider
        self._tracer = provider.get_tracer("llamasrv")
        self._kind = trace.SpanKind.SERVER
        self._failed = trace.Status(trace.StatusCode.ERROR)
        self._propagator = TraceContextTextMapPropagator()

    def enter(self, record: RequestLog, status: int) -> None:
        """Queue the span of a finished request."""
        operation = next((name for start, name in OPERATIONS if record.route.startswith(start)), None)
        if operation is None:
            return
        carrier = {} if record.trace is None else {"traceparent": record.trace}
        span = self._tracer.start_span(
            f"{operation} {record.model}" if record.model else operation,
            context=self._propagator.extract(carrier),
            kind=self._kind,
            start_time=int(record.started * 1e9),
            attributes=_attributes(record, operation, status),
        )
        if status >= 500:
            span.set_status(self._failed)
        span.end(time.time_ns())

    def close(self) -> None:
        """Send the spans still in the queue."""
        self._provider.shutdown()


def _provider() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _attributes(record: RequestLog, operation: str, status: int) -> dict[str, Any]:
    usage = record.usage
    values = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "llamasrv",
        "gen_ai.response.id": record.id,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": None if record.reason is None else [record.reason],
        "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
        "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
        "llamasrv.cached_tokens": None if usage is None else usage.cached_tokens,
        "llamasrv.queue_seconds": None if usage is None else usage.queue_seconds,
        "llamasrv.key": record.owner or None,
        "http.route": record.route,
        "http.response.status_code": status,
        "error.type": record.error,
    }
    return {name: value for name, value in values.items() if value is not None}
