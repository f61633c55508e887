"""The engine's counters. Plain numbers: the engine thread writes, anyone reads; no locks, no label objects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from llamasrv.engine.base.step_watch import PARTS

if TYPE_CHECKING:
    from llamasrv.engine.base.batch import StepRows
    from llamasrv.engine.base.channels import End
    from llamasrv.engine.base.sequence import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
PART_SECONDS = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
STEP_PARTS = ("plan", "decode", "sample")  # deciding and filling the batch, the library, choosing tokens
SOURCES = ("running", "resident", "checkpoint", "host", "disk")
"""Sources of reused tokens; `checkpoint`: a lane brought back to one."""


class Histogram:
    """Counts per bucket (upper bounds, inclusive), with sum; Prometheus' shape."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound as text, count up to it), the last one "+Inf"."""
        out, count = [], 0
        for bound, n in zip((*map(str, self.bounds), "+Inf"), self.counts):
            count += n
            out.append((bound, count))
        return out


class Figure(NamedTuple):
    """How `/metrics` shows a counter, under its field's name."""

    help: str
    label: str = ""  # label for the keys of a dict; "": a single value
    is_sorted: bool = False  # sort values by key; else in order of declaration


def _count(help: str) -> Any:
    return field(default=0, metadata={"figure": Figure(help)})


def _seconds(help: str) -> Any:
    return field(default=0.0, metadata={"figure": Figure(help)})


def _counts(help: str, label: str, keys: tuple[str, ...] = ()) -> Any:
    """Counts by key. Without `keys`, of the keys that occur."""
    figure = Figure(help, label, is_sorted=not keys)
    return field(default_factory=lambda: dict.fromkeys(keys, 0), metadata={"figure": figure})


def _histogram(help: str, bounds: tuple[float, ...]) -> Any:
    return field(default_factory=lambda: Histogram(bounds), metadata={"figure": Figure(help)})


def _histograms(help: str, label: str, keys: tuple[str, ...], bounds: tuple[float, ...]) -> Any:
    figure = Figure(help, label)
    return field(default_factory=lambda: {key: Histogram(bounds) for key in keys}, metadata={"figure": figure})


Value = Union[float, Histogram]


def figures(
    metrics: EngineMetrics | EmbedderMetrics | SpeakerMetrics,
) -> Iterator[tuple[str, str, dict[str, str], Value]]:
    """(name, help, labels, value) of each counter that is shown, in the order of the fields."""
    for one in fields(metrics):
        figure: Figure | None = one.metadata.get("figure")
        if figure is None:
            continue
        value = getattr(metrics, one.name)
        if figure.label:
            for key in sorted(value) if figure.is_sorted else list(value):
                yield one.name, figure.help, {figure.label: key}, value[key]
        else:
            yield one.name, figure.help, {}, value


@dataclass(eq=False)
class EngineMetrics:
    """Totals since the start. Seconds are wall time. `/metrics` shows the fields that have a text, by their names."""

    requests: int = _count("Requests that reached the engine.")
    prompt_tokens: int = _count("Prompt tokens computed.")
    cached_tokens: int = _count("Prompt tokens reused instead of computed.")
    generated_tokens: int = _count("Tokens generated.")
    steps: int = _count("Steps of the engine.")
    prefill_seconds: float = _seconds("Time in steps with prompt tokens.")
    decode_seconds: float = _seconds("Time in steps without prompt tokens.")
    preemptions: int = _count("Sequences preempted.")
    swaps: int = _count("Preempted sequences kept in host memory.")
    context_shifts: int = _count("Times a sequence dropped tokens because its context was full.")
    checkpoints: int = _count("Checkpoints kept where prompts diverge.")
    pins: int = _count("Prefixes kept because a client asked for it.")
    evictions: int = _count("Prefixes dropped to make room.")
    prefixes_read: int = _count("Prefixes read from disk.")
    prefixes_written: int = _count("Prefixes written to disk.")
    media_encoded: int = _count("Images, image slices and audio windows encoded for answers.")
    media_served: int = _count("Those that prompts needed, newly encoded or cached.")
    media_encode_seconds: float = _seconds("Seconds spent encoding images and audio.")
    failed_steps: int = _count("Steps that failed.")
    restarts: int = _count("Contexts recreated after a failure.")
    spoiled_rows: int = _count("Rows of logits that were not numbers.")
    unread: int = _count("Sequences cancelled because nobody read their answer.")
    slow_step_parts: dict[str, int] = _counts(
        "Parts of steps, beside computing, that took longer than 50 ms while all sequences waited.", "part", PARTS
    )
    reused_tokens: dict[str, int] = _counts("Prompt tokens reused, by tier.", "source", SOURCES)
    drafted_tokens: dict[str, int] = _counts("Tokens tried as drafts, by their source.", "source")
    accepted_tokens: dict[str, int] = _counts("Accepted draft tokens.", "source")
    finished: dict[str, int] = _counts("Sequences ended, by reason.", "reason")  # values of FinishReason
    queue_seconds: Histogram = _histogram("Time from arrival to a lane.", SECONDS)
    first_token_seconds: Histogram = _histogram("Time from arrival to the first token.", SECONDS)
    token_seconds: Histogram = _histogram("Average time between two tokens of a sequence.", SECONDS)
    step_seconds: Histogram = _histogram("Duration of an engine step.", SECONDS)
    step_rows: Histogram = _histogram("Tokens computed in one step.", ROWS)
    step_part_seconds: dict[str, Histogram] = _histograms(
        "Parts of a step: deciding, computing, choosing tokens and delivering them.", "part", STEP_PARTS, PART_SECONDS
    )
    busy_rows: int = 0  # summed over steps: sequences that decoded
    drafts: int = 0  # sequences' steps with a draft
    longest_sequence: int = 0
    last_wait: float = 0.0  # seconds that the last admitted sequence waited

    def note_reuse(self, source: str, num_tokens: int) -> None:
        """A sequence starts with `num_tokens` reused tokens."""
        if num_tokens:
            self.cached_tokens += num_tokens
            self.reused_tokens[source] = self.reused_tokens.get(source, 0) + num_tokens

    def note_step(self, step: StepRows, planned: float, decoded: float, sampled: float) -> None:
        """A computed step, with the seconds of its parts."""
        seconds = planned + decoded + sampled
        parts = self.step_part_seconds
        parts["plan"].observe(planned)
        parts["decode"].observe(decoded)
        parts["sample"].observe(sampled)
        self.steps += 1
        self.busy_rows += step.num_decodes
        self.prompt_tokens += step.num_prompt
        self.step_seconds.observe(seconds)
        self.step_rows.observe(step.num_decodes + step.num_drafted + step.num_prompt + step.num_filling)
        if step.num_prompt:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds

    def note_draft(self, source: str, count: int, accepted: int) -> None:
        """The draft of one sequence in one step."""
        self.drafts += 1
        self.drafted_tokens[source] = self.drafted_tokens.get(source, 0) + count
        self.accepted_tokens[source] = self.accepted_tokens.get(source, 0) + accepted

    def note_end(self, seq: Sequence, end: End) -> None:
        reason, generated = end.reason.value, end.num_generated
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.generated_tokens += generated
        self.longest_sequence = max(self.longest_sequence, seq.num_tokens)
        if generated and seq.first_token is not None:
            self.first_token_seconds.observe(seq.first_token - seq.arrived)
        if generated > 1:
            self.token_seconds.observe(end.decode_seconds / (generated - 1))


@dataclass(eq=False)
class EmbedderMetrics:
    """Totals since the start, for embeddings and ranking. `/metrics` shows all, as `embedding_...`."""

    requests: int = _count("Requests that reached the embedder.")
    inputs: int = _count("Inputs turned into vectors or scores.")
    tokens: int = _count("Tokens of those inputs.")
    groups: int = _count("Computations, each over several inputs.")
    failed: int = _count("Computations that failed.")
    seconds: float = _seconds("Time in them.")
    media_encoded: int = _count("Images, slices and windows encoded for vectors.")
    media_encode_seconds: float = _seconds("Seconds spent encoding them.")


@dataclass(eq=False)
class SpeakerMetrics:
    """Totals since the start, for speech. `/metrics` shows all, as `speech_...`."""

    requests: int = _count("Texts that reached the speaker.")
    frames: int = _count("Frames of speech generated.")
    steps: int = _count("Steps, each over several texts.")
    failed: int = _count("Steps that failed.")
    seconds: float = _seconds("Time in them.")
    sounds: int = _count("Pieces of frames that became sound.")
    sound_seconds: float = _seconds("Time in that.")


AnyMetrics = Union[EngineMetrics, EmbedderMetrics, SpeakerMetrics]
