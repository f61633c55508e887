"""What a request has cost, from how its choices ended."""

from __future__ import annotations

from collections.abc import Mapping

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


def usage_of_all(usages: Mapping[int, Usage], each: int) -> Usage:
    """Of a request with `each` choices per prompt. `usages`: by choice."""
    ended = list(usages.values())
    if len(ended) == 1:
        return ended[0]
    prompts = [[usages[choice] for choice in range(at, at + each)] for at in range(0, len(ended), each)]
    return Usage(
        prompt_tokens=sum(max(u.prompt_tokens for u in choices) for choices in prompts),
        # The choices of a prompt share its tokens: they count as cached if they were for every choice.
        cached_tokens=sum(min(u.cached_tokens for u in choices) for choices in prompts),
        completion_tokens=sum(u.completion_tokens for u in ended),
        reasoning_tokens=sum(u.reasoning_tokens for u in ended),
        queue_seconds=max(u.queue_seconds for u in ended),
        prefill_seconds=max(u.prefill_seconds for u in ended),
        decode_seconds=max(u.decode_seconds for u in ended),
        forgotten_tokens=sum(u.forgotten_tokens for u in ended),
        drafts=_draft_counts([u.drafts for u in ended]),
        pinned=tuple(pin for u in ended for pin in u.pinned),
        paused_seconds=max(u.paused_seconds for u in ended),
    )


def _draft_counts(counts: list[DraftCounts]) -> DraftCounts:
    predicted = [c.predicted for c in counts if c.predicted is not None]
    return DraftCounts(
        sum(c.drafted for c in counts),
        sum(c.accepted for c in counts),
        sum(predicted) if predicted else None,
        sum(c.predicted_accepted for c in counts),
    )
