"""llama-server's metrics, under its names and in its text format, for its dashboards.

A single model has no label, as in llama-server; several models are distinguished by `model`. Reads plain counters,
which outlive the engine: an unloaded model still reports its work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from llamasrv.engine.base.metrics import EmbedderMetrics, EngineMetrics
from llamasrv.models.model import Model


class WorkTotals(NamedTuple):
    """Tokens, and the seconds spent on them."""

    tokens: int = 0
    seconds: float = 0.0

    def since(self, before: WorkTotals) -> float:
        """Tokens per second since `before`; 0 if nothing was done."""
        seconds = self.seconds - before.seconds
        return (self.tokens - before.tokens) / seconds if seconds > 0 else 0.0


class LlamaMetrics:
    """Remembers the previous scrape: rates cover the time since then, as in llama-server."""

    def __init__(self) -> None:
        self._prompts: dict[str, WorkTotals] = {}
        self._answers: dict[str, WorkTotals] = {}

    def text(self, models: Iterable[Model]) -> bytes:
        found = [(model.name, self._figures(model)) for model in models]
        several = len(found) > 1
        lines: list[str] = []
        for i, (name, kind, about, _) in enumerate(found[0][1] if found else ()):
            lines += [f"# HELP llamacpp:{name} {about}", f"# TYPE llamacpp:{name} {kind}"]
            for model, figures in found:
                label = f'{{model="{escaped(model)}"}}' if several else ""
                lines.append(f"llamacpp:{name}{label} {figures[i][3]!r}")
        return "".join(f"{line}\n" for line in lines).encode()

    def _figures(self, model: Model) -> list[tuple[str, str, str, float]]:
        """(name, type, description, value) of each metric, in the same order for all models."""
        m = model.metrics
        e, running, waiting = EmbedderMetrics(), 0, 0
        if model.current is not None and model.state == "loaded":
            now = model.current.snapshot()
            e, running, waiting = model.current.embedder.metrics, len(now["running"]), now["num_waiting"]
        prompts = WorkTotals(m.prompt_tokens + e.tokens, m.prefill_seconds + e.seconds)
        answers = _answers(m)
        before = self._prompts.get(model.name, WorkTotals()), self._answers.get(model.name, WorkTotals())
        self._prompts[model.name], self._answers[model.name] = prompts, answers
        counters: list[tuple[str, str, float]] = [
            ("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", prompts.tokens),
            ("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", m.cached_tokens),
            ("prompt_seconds_total", "Total time spent processing prompts", prompts.seconds),
            ("tokens_predicted_total", "Number of generation tokens processed", m.generated_tokens),
            ("tokens_predicted_seconds_total", "Total time spent generating tokens", m.decode_seconds),
            ("n_decode_total", "Total number of llama_decode() calls", m.steps + e.groups),
            ("n_tokens_max", "Largest observed sequence length (prompt + generation)", m.longest_sequence),
            (
                "spec_decode_num_draft_tokens_total",
                "Speculative: Total draft tokens generated",
                sum(m.drafted_tokens.values()),
            ),
            (
                "spec_decode_num_accepted_tokens_total",
                "Speculative: Total draft tokens accepted by the model",
                sum(m.accepted_tokens.values()),
            ),
            ("spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", m.drafts),
        ]
        gauges: list[tuple[str, str, float]] = [
            ("prompt_tokens_seconds", "Average prompt throughput in tokens/s", prompts.since(before[0])),
            ("predicted_tokens_seconds", "Average generation throughput in tokens/s", answers.since(before[1])),
            ("requests_processing", "Number of requests processing", running),
            ("requests_deferred", "Number of requests deferred", waiting),
            (
                "n_busy_slots_per_decode",
                "Average number of busy slots per llama_decode() call",
                m.busy_rows / m.steps if m.steps else 0.0,
            ),
        ]
        rows = [(name, "counter", about, value) for name, about, value in counters]
        return rows + [(name, "gauge", about, value) for name, about, value in gauges]


def _answers(m: EngineMetrics) -> WorkTotals:
    return WorkTotals(m.generated_tokens, m.decode_seconds)


def escaped(name: str) -> str:
    """The text escaped for the value of a label."""
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
