"""The load report: what routers and autoscalers poll to choose a replica.

`LoadReport.loads` is SGLang's JSON, which smg reads; `LoadReport.text` is Prometheus' text in vLLM's names, which
llm-d's endpoint picker, AIBrix and vLLM's router know. Cheap enough for many polls a second: it reads the published
view and plain counters, without a collector, and waits for no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llamasrv.models.model import Model
from llamasrv.web.ops.llama_metrics import escaped

BLOCK = 64  # tokens; routers count a cache in blocks, llamasrv's cells are single tokens
RATE_SECONDS = 1.0  # shortest time that a rate covers, however many poll


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model now. Cells are tokens of KV."""

    name: str
    running: int = 0  # sequences that hold a lane
    waiting: int = 0  # sequences and embedding inputs that do not run yet
    cells: int = 0
    cells_held: int = 0  # held by running sequences; kept prefixes are evicted when needed
    max_running: int = 0
    prompt_tokens: int = 0  # since the start, computed or reused
    cached_tokens: int = 0  # part of prompt_tokens that was reused
    decoded: int = 0  # rows decoded since the start

    @classmethod
    def of(cls, model: Model) -> ModelLoad:
        m = model.metrics
        counts = {
            "prompt_tokens": m.prompt_tokens + m.cached_tokens,
            "cached_tokens": m.cached_tokens,
            "decoded": m.busy_rows,
        }
        engine = model.current
        if engine is None or model.state != "loaded":
            return cls(model.name, max_running=model.parallel, **counts)
        view = engine.view
        running = len(view.running)
        return cls(
            model.name,
            running,
            max(0, engine.num_open - running),
            view.total_cells,
            view.held_cells,
            view.total_lanes or model.parallel,
            **counts,
        )


class LoadReport:
    """Remembers one sample for the rate of generated tokens."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[str, tuple[float, int]] = {}  # by model: time and rows decoded until then
        self._rates: dict[str, float] = {}

    def loads(self, models: Iterable[Model]) -> dict[str, Any]:
        """All of `models` as one worker."""
        found = [ModelLoad.of(model) for model in models]
        running, waiting = sum(one.running for one in found), sum(one.waiting for one in found)
        cells, held = sum(one.cells for one in found), sum(one.cells_held for one in found)
        prompts = sum(one.prompt_tokens for one in found)
        return {
            "timestamp": time.time(),
            "dp_rank_count": 1,
            "loads": [
                {
                    "dp_rank": 0,
                    "num_running_reqs": running,
                    "num_waiting_reqs": waiting,
                    "num_total_reqs": running + waiting,
                    "num_used_tokens": held,
                    "max_total_num_tokens": cells,
                    "token_usage": round(held / cells, 4) if cells else 0.0,
                    "max_running_requests": sum(one.max_running for one in found),
                    "gen_throughput": round(sum(self._rate(one) for one in found), 2),
                    "cache_hit_rate": round(sum(one.cached_tokens for one in found) / prompts, 4) if prompts else 0.0,
                }
            ],
        }

    def text(self, models: Sequence[Model]) -> bytes:
        """vLLM's names, labelled with `model_name` as there."""
        found = [ModelLoad.of(model) for model in models]
        lines: list[str] = []

        def family(
            name: str, kind: str, value: Callable[[ModelLoad], float], more: Callable[[int], str] = _no_label
        ) -> None:
            lines.append(f"# TYPE vllm:{name} {kind}")
            for i, one in enumerate(found):
                lines.append(f'vllm:{name}{{model_name="{escaped(one.name)}"{more(i)}}} {value(one)!r}')

        family("num_requests_running", "gauge", lambda one: one.running)
        family("num_requests_waiting", "gauge", lambda one: one.waiting)
        family("kv_cache_usage_perc", "gauge", lambda one: round(one.cells_held / one.cells, 6) if one.cells else 0.0)
        family(
            "cache_config_info",
            "gauge",
            lambda one: 1,
            lambda i: f',block_size="{BLOCK}",num_gpu_blocks="{found[i].cells // BLOCK}"',
        )
        family("prefix_cache_queries_total", "counter", lambda one: one.prompt_tokens)
        family("prefix_cache_hits_total", "counter", lambda one: one.cached_tokens)
        if any(model.adapters for model in models):
            family("lora_requests_info", "gauge", lambda one: round(time.time(), 3), lambda i: _adapters(models[i]))
        return "".join(f"{line}\n" for line in lines).encode()

    def _rate(self, load: ModelLoad) -> float:
        """Tokens decoded per second since a sample that is at least RATE_SECONDS old."""
        now = self._clock()
        at, decoded = self._samples.setdefault(load.name, (now, load.decoded))
        if now - at >= RATE_SECONDS:
            self._rates[load.name] = max(0, load.decoded - decoded) / (now - at)
            self._samples[load.name] = (now, load.decoded)
        return self._rates.get(load.name, 0.0)


def _no_label(i: int) -> str:
    return ""


def _adapters(model: Model) -> str:
    """The labels of vLLM's gauge. Adapters stay loaded with their model: no request waits until one is."""
    running: set[int] = set()
    if model.current is not None and model.state == "loaded":
        running = {number for row in model.current.view.running for number, _ in row.adapters}
    names = [adapter.name for adapter in model.adapters]
    shown = ",".join(escaped(names[number]) for number in sorted(running) if number < len(names))
    return f',max_lora="{len(names)}",running_lora_adapters="{shown}",waiting_lora_adapters=""'
