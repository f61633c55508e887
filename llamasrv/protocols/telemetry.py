"""Figures in replies of every protocol: llama.cpp's `timings`, `prompt_progress` and `__verbose`, and `prompt_queue`.

Knows which of them a client asked for and what has been sent so far. Where they go in a reply is the protocol's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import Pace, PromptProgress, PromptWaits, Usage

RETURN_PROGRESS = (
    "llama.cpp's: a stream reports how much of the prompt is computed, in `prompt_progress`, and before that what it "
    "waits for, in `prompt_queue`"
)


def timings(usage: Usage) -> dict[str, Any]:
    """How long prompt and answer took. The first token counts as part of the prompt: rates count the steps after it."""
    prompt_n = max(0, usage.prompt_tokens - usage.cached_tokens)
    prompt_ms, predicted_ms = usage.prefill_seconds * 1000, usage.decode_seconds * 1000
    steps = max(0, usage.completion_tokens - 1)
    figures = {
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n if prompt_n else 0.0,
        "prompt_per_second": prompt_n / usage.prefill_seconds if usage.prefill_seconds else 0.0,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / steps if steps else 0.0,
        "predicted_per_second": steps / usage.decode_seconds if usage.decode_seconds else 0.0,
    }
    if usage.forgotten_tokens:
        figures["forgotten_n"] = usage.forgotten_tokens  # dropped when the context was shifted
    if usage.drafts.drafted:
        figures["draft_n"], figures["draft_n_accepted"] = usage.drafts.drafted, usage.drafts.accepted
    return figures


def progress(event: PromptProgress) -> dict[str, Any]:
    return {
        "total": event.total,
        "cache": event.cached,
        "processed": event.processed,
        "time_ms": event.seconds * 1000,
    }


def progress_of(event: PromptProgress | PromptWaits) -> dict[str, Any]:
    """The chunk member that reports progress. A waiting prompt gets a member of its own: `prompt_progress` cannot
    express it, and clients that only know that one ignore the other."""
    return {"prompt_queue": queue(event)} if isinstance(event, PromptWaits) else {"prompt_progress": progress(event)}


def queue(event: PromptWaits) -> dict[str, Any]:
    return {
        "reason": "media" if event.place is None else "place",
        "place": event.place,
        "waiting": event.num_waiting,
    }


class Extras(NamedTuple):
    """The extra figures that a client asked for."""

    per_token: bool = False  # `timings` in every chunk of a stream
    progress: bool = False  # `prompt_queue` while the prompt waits, `prompt_progress` while it is computed
    verbose: bool = False  # `__verbose`


class Paces:
    """The latest figures of each choice of a stream, as JSON members to append to a chunk."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}

    def note(self, event: Pace) -> None:
        self._last[event.choice] = members({"timings": timings(event.usage)})

    def of(self, choice: int) -> bytes:
        return self._last.get(choice, b"")


def members(fields: dict[str, Any]) -> bytes:
    """`fields` as the end of an object: `,"timings":{...}`, without the brace."""
    return b"," + orjson.dumps(fields)[1:-1]
