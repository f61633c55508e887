"""The engine's counters. Plain numbers: the engine thread writes, anyone reads; no locks, no label objects."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from llamasrv.engine.step_watch import PARTS

if TYPE_CHECKING:
    from llamasrv.engine.channels import End
    from llamasrv.engine.scheduler import Plan
    from llamasrv.engine.sequence import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
PART_SECONDS = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


SOURCES = ("running", "resident", "checkpoint", "host", "disk")
"""Where tokens were that are not computed again; `checkpoint`: in a lane that went on, brought back by one."""


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


class EngineMetrics:
    """Totals since the start. Seconds are wall time."""

    def __init__(self) -> None:
        self.requests = 0
        self.finished: dict[str, int] = {}  # by FinishReason value
        self.prompt_tokens = 0  # computed
        self.cached_tokens = 0  # reused instead of computed
        self.reused = dict.fromkeys(SOURCES, 0)  # the same, by where they were
        self.checkpoints = 0  # kept
        self.pins = 0  # made
        self.generated_tokens = 0
        self.steps = 0
        self.busy_rows = 0  # summed over steps: sequences that decoded
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.preemptions = 0
        self.swaps = 0
        self.context_shifts = 0
        self.evictions = 0
        self.compactions = 0
        self.prefixes_read = 0  # from disk
        self.prefixes_written = 0
        self.chunks_encoded = 0  # of images and sounds
        self.chunks_served = 0  # that sequences needed, encoded for them or for others before
        self.encode_seconds = 0.0
        self.failed_steps = 0
        self.restarts = 0
        self.spoiled_rows = 0  # of logits, that were not numbers
        self.longest_sequence = 0
        self.queue_time = Histogram(SECONDS)
        self.last_wait = 0.0  # seconds that the last one to be admitted had waited
        self.first_token_time = Histogram(SECONDS)
        self.token_time = Histogram(SECONDS)
        self.step_time = Histogram(SECONDS)
        self.batch_rows = Histogram(ROWS)
        # The parts of a step: deciding and filling the batch, the library, choosing tokens and delivering them.
        self.parts = {part: Histogram(PART_SECONDS) for part in ("plan", "decode", "sample")}
        self.slow_parts = dict.fromkeys(PARTS, 0)  # that kept all sequences waiting
        self.drafted: dict[str, int] = {}  # tokens tried, by the source of the draft
        self.accepted: dict[str, int] = {}  # those of them that were taken
        self.drafts = 0  # sequences' steps with a draft
        self.unread = 0  # sequences given up because their clients did not read

    def note_reuse(self, source: str, num_tokens: int) -> None:
        """A sequence begins with that many tokens computed before."""
        if num_tokens:
            self.cached_tokens += num_tokens
            self.reused[source] = self.reused.get(source, 0) + num_tokens

    def note_step(self, plan: Plan, planned: float, decoded: float, sampled: float) -> None:
        """A computed step, with the seconds of its parts."""
        seconds = planned + decoded + sampled
        parts = self.parts
        parts["plan"].observe(planned)
        parts["decode"].observe(decoded)
        parts["sample"].observe(sampled)
        self.steps += 1
        self.busy_rows += plan.num_decodes
        self.prompt_tokens += plan.num_prompt
        self.step_time.observe(seconds)
        self.batch_rows.observe(plan.num_decodes + plan.num_drafted + plan.num_prompt)
        if plan.num_prompt:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds

    def note_draft(self, source: str, count: int, accepted: int) -> None:
        """The draft of one sequence in one step."""
        self.drafts += 1
        self.drafted[source] = self.drafted.get(source, 0) + count
        self.accepted[source] = self.accepted.get(source, 0) + accepted

    def note_end(self, seq: Sequence, end: End) -> None:
        reason, generated = end.reason.value, end.num_generated
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.generated_tokens += generated
        self.longest_sequence = max(self.longest_sequence, seq.num_tokens)
        if generated and seq.first_token is not None:
            self.first_token_time.observe(seq.first_token - seq.arrived)
        if generated > 1:
            self.token_time.observe(end.decode_seconds / (generated - 1))


class EmbedderMetrics:
    """Totals since the start, for embeddings and ranking."""

    def __init__(self) -> None:
        self.requests = 0
        self.inputs = 0
        self.tokens = 0
        self.groups = 0  # computations, each of several inputs
        self.failed = 0
        self.seconds = 0.0
        self.chunks_encoded = 0  # of images and sounds
        self.encode_seconds = 0.0
