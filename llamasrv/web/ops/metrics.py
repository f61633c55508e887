"""Prometheus metrics, read from plain counters on each scrape. Waits for no engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from llamasrv import __version__
from llamasrv.concurrency import compute_off_hub
from llamasrv.engine.base.metrics import AnyMetrics, Histogram, figures
from llamasrv.engine.engine import Engine
from llamasrv.engine.view import PlainView
from llamasrv.models.model import Model
from llamasrv.web.ops.llama_metrics import LlamaMetrics
from llamasrv.web.ops.load import LoadReport
from llamasrv.web.service import Service

Rows = tuple[tuple[str, str, float], ...]  # name, text, value


class Exposition:
    """The text of GET /metrics: our figures, the process's, llama-server's and vLLM's."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service) -> None:
        self._service = service
        self._llama = LlamaMetrics()
        self._load = LoadReport()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ServiceCollector(service))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Counters are read here, at once; formatting them takes time that grows with models and routes, so it leaves
        the hub."""
        models = self._service.registry.models
        read = _Collected(list(self._registry.collect()))
        ours = compute_off_hub(lambda: generate_latest(read))
        return ours + self._llama.text(models) + self._load.text(models)


class _Collected(NamedTuple):
    """What a registry has collected, as `generate_latest` reads it."""

    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


class ServiceCollector(Collector):
    """Reads the counters on each scrape. Labels are bounded: models, routes, statuses, finish reasons."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        families.gauge("llamasrv_build", "Always 1; labelled with the version.", 1, version=__version__)
        families.gauge("llamasrv_start_time_seconds", "Start time of the process.", self._started)
        self._web(families)
        for model in self._service.registry.models:
            self._model(families, model)
            if model.current is not None and model.state == "loaded":
                self._engine(families, model.name, model.current)
        yield from families.all.values()

    def _web(self, families: _Families) -> None:
        stats = self._service.stats
        families.gauge("llamasrv_http_open", "Requests in progress.", stats.num_open)
        text = "Turns longer than 0.01 s of the thread that serves all connections: streams wait for them."
        stalls = self._service.hub_stalls
        families.histogram("llamasrv_hub_stall_seconds", text, stalls.cumulative(), stalls.total)
        background = self._service.background
        families.gauge("llamasrv_background", "Background responses in progress.", len(background))
        unstored = background.memory.num_unstored
        families.counter("llamasrv_unstored", "Responses that could not be stored.", unstored)
        for (route, status), count in sorted(stats.counts.items()):
            families.counter("llamasrv_http_requests", "Requests answered.", count, route=route, status=str(status))
        for code, count in sorted(stats.errors.items()):
            families.counter("llamasrv_errors", "Requests answered with an error, by its code.", count, code=code)
        for route, histogram in sorted(stats.seconds.items()):
            text = "Time from a request's arrival to the last byte of its answer."
            families.histogram("llamasrv_http_seconds", text, histogram.cumulative(), histogram.total, route=route)
        for name, quota in self._service.access.quotas.items():
            families.gauge("llamasrv_key_open", "Running requests of a key.", quota.num_open, key=name)
            families.counter("llamasrv_key_refused", "Requests refused by a key's quota.", quota.num_refused, key=name)

        for (key, model, kind), number in sorted(self._service.usage.tokens.items()):
            text = "Tokens of a key's requests: prompt, cached (of those), generated."
            families.counter("llamasrv_key_tokens", text, number, key=key, model=model, kind=kind)
        for (model, reason), number in sorted(self._service.pipeline.cache_book.changes.items()):
            text = "Prompts that diverged from an earlier one of the same key, by what changed first."
            families.counter("llamasrv_cache_changes", text, number, model=model, reason=reason)

    def _model(self, families: _Families, model: Model) -> None:
        loaded = model.state == "loaded"
        families.gauges(
            "llamasrv_",
            (
                ("model_loaded", "1 while the model is loaded.", int(loaded)),
                ("model_memory_bytes", "Memory the loaded model may take, its caches full.", model.memory * loaded),
                ("model_memory_used_bytes", "Memory the loaded model takes now.", model.memory_used),
                (
                    "windows_saved_bytes",
                    "Estimated KV saved by sliding windows; --swa-full would take it.",
                    model.load_plan.windows_save * loaded if model.load_plan is not None else 0,
                ),
                ("load_progress", "Share of the model that is loaded.", model.progress),
            ),
            model=model.name,
        )
        families.counters(
            "llamasrv_",
            (
                ("model_loads", "Number of times the model was loaded.", model.num_loads),
                ("model_unloads", "Number of times the model was unloaded.", model.num_unloads),
            ),
            model=model.name,
        )

    def _engine(self, families: _Families, model: str, engine: Engine) -> None:
        now = engine.snapshot()
        self._pool(families, model, engine, now)
        families.add("llamasrv_", engine.metrics, model=model)
        families.add("llamasrv_embedding_", engine.embedder.metrics, model=model)
        waiting = engine.embedder.num_open
        families.gauge("llamasrv_embedding_waiting", "Inputs not answered yet.", waiting, model=model)
        families.add("llamasrv_speech_", engine.speaker.metrics, model=model)
        families.gauge("llamasrv_speech_open", "Texts not ended yet.", engine.speaker.num_open, model=model)

    @staticmethod
    def _pool(families: _Families, model: str, engine: Engine, now: PlainView) -> None:
        running, cells, lanes = len(now["running"]), now["cells"], now["lanes"]
        families.gauges(
            "llamasrv_",
            (
                ("running", "Sequences that hold a lane.", running),
                ("waiting", "Sequences that wait for a lane.", now["num_waiting"]),
                ("cells_used", "KV cells in use, by running sequences and kept prefixes.", cells["used"]),
                ("cells_held", "KV cells in use by running sequences.", cells["held"]),
                ("cells", "KV cells.", cells["total"]),
                ("lanes", "Lanes.", lanes["total"]),
                (
                    "cells_ratio",
                    "Share of the KV cells that running sequences use.",
                    _ratio(cells["held"], cells["total"]),
                ),
                ("stalled_seconds", "Duration of the engine's current turn so far.", engine.stalled_seconds),
                ("lanes_held", "Lanes of running sequences.", lanes["held"]),
                ("lanes_resident", "Lanes that keep a prefix.", lanes["resident"]),
                ("swapped_bytes", "Host memory that holds preempted sequences.", now["swapped_bytes"]),
                ("pinned_bytes", "Host memory of prefixes that clients asked to be kept.", now["pins"]["bytes"]),
                ("ready", "1 when the model can be used.", int(now["status"].state == "ready")),
            ),
            model=model,
        )


class _Families:
    """Metrics by name, so that several models share one family."""

    def __init__(self) -> None:
        self.all: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        if name not in self.all:
            self.all[name] = GaugeMetricFamily(name, text, labels=list(labels))
        self.all[name].add_metric(list(labels.values()), value)  # type: ignore[attr-defined]

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        if name not in self.all:
            self.all[name] = CounterMetricFamily(name, text, labels=list(labels))
        self.all[name].add_metric(list(labels.values()), value)  # type: ignore[attr-defined]

    def gauges(self, prefix: str, rows: Rows, **labels: str) -> None:
        for name, text, value in rows:
            self.gauge(prefix + name, text, value, **labels)

    def counters(self, prefix: str, rows: Rows, **labels: str) -> None:
        for name, text, value in rows:
            self.counter(prefix + name, text, value, **labels)

    def add(self, prefix: str, metrics: AnyMetrics, **labels: str) -> None:
        for name, text, own, value in figures(metrics):
            if isinstance(value, Histogram):
                self.histogram(prefix + name, text, value.cumulative(), value.total, **labels, **own)
            else:
                self.counter(prefix + name, text, value, **labels, **own)

    def histogram(self, name: str, text: str, buckets: list[tuple[str, int]], total: float, **labels: str) -> None:
        if name not in self.all:
            self.all[name] = HistogramMetricFamily(name, text, labels=list(labels))
        self.all[name].add_metric(list(labels.values()), buckets, total)  # type: ignore[attr-defined]


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
