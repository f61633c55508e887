"""What a request has cost, from how its choices ended."""

from __future__ import annotations

from collections.abc import Sequence

from llamasrv.domain.events import DraftCounts, Usage
from llamasrv.engine.base.channels import End
from llamasrv.pipeline.detokenizer import Detokenizer


def usage_of(end: End, choice: Detokenizer) -> Usage:
    return Usage(
        end.num_prompt,
        end.num_reused,
        end.num_generated,
        choice.num_reasoning,
        end.queue_seconds,
        end.prefill_seconds,
        end.decode_seconds,
        end.num_forgotten,
        end.drafts,
        tuple(end.pinned),
        paused_seconds=end.paused_seconds,
    )


def usage_of_all(ends: list[End], choices: Sequence[Detokenizer], each: int) -> Usage:
    if len(ends) == 1:
        return usage_of(ends[0], choices[0])
    prompts = range(len(choices) // each)
    reused = [min((e.num_reused for e in ends if e.choice // each == p), default=0) for p in prompts]
    return Usage(
        prompt_tokens=sum(max(e.num_prompt for e in ends if e.choice // each == p) for p in prompts),
        cached_tokens=sum(reused),  # the choices of one prompt share it: it was cached if it was for all of them
        completion_tokens=sum(e.num_generated for e in ends),
        reasoning_tokens=sum(choice.num_reasoning for choice in choices),
        queue_seconds=max(e.queue_seconds for e in ends),
        prefill_seconds=max(e.prefill_seconds for e in ends),
        decode_seconds=max(e.decode_seconds for e in ends),
        forgotten_tokens=sum(e.num_forgotten for e in ends),
        drafts=_draft_counts([e.drafts for e in ends]),
        pinned=tuple(pin for e in ends for pin in e.pinned),
        paused_seconds=max(e.paused_seconds for e in ends),
    )


def _draft_counts(counts: list[DraftCounts]) -> DraftCounts:
    predicted = [c.predicted for c in counts if c.predicted is not None]
    return DraftCounts(
        sum(c.drafted for c in counts),
        sum(c.accepted for c in counts),
        sum(predicted) if predicted else None,
        sum(c.predicted_accepted for c in counts),
    )
