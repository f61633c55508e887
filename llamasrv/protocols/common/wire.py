"""Parts that replies of chat and completions share: ids, usage, finish reasons, log-probabilities."""

from __future__ import annotations

from random import getrandbits
from typing import Any

import orjson

from llamasrv.domain.events import FinishReason, TokenLogprob, Usage

UNLIKELY = -9999.0
"""What OpenAI writes for a log-probability that is as good as minus infinity."""

FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.CANCELLED: "stop",
}


_LINE_ENDS = tuple((chr(code).encode(), b"\\u%04x" % code) for code in (0x2028, 0x2029, 0x85))


def new_id(prefix: str) -> str:
    """Unique, but not secret; so it costs no system call."""
    return f"{prefix}{getrandbits(120):030x}"


def dumps(value: Any) -> bytes:
    """JSON for a line of a stream. U+2028, U+2029 and U+0085 are escaped: some clients take them for line ends."""
    data = orjson.dumps(value)
    if data.isascii():
        return data
    for character, escape in _LINE_ENDS:
        data = data.replace(character, escape)
    return data


def usage_body(usage: Usage) -> dict[str, Any]:
    details = {"reasoning_tokens": usage.reasoning_tokens}
    drafts = usage.drafts
    if drafts.predicted is not None:  # rejected ones were never output, so the completion does not count them
        details["accepted_prediction_tokens"] = drafts.predicted_accepted
        details["rejected_prediction_tokens"] = drafts.predicted - drafts.predicted_accepted
    if usage.audio_tokens:
        details["audio_tokens"] = usage.audio_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": details,
    }


def logprob(value: float | None) -> float:
    return UNLIKELY if value is None or not value > UNLIKELY else value


def chat_logprob(entry: TokenLogprob, top: int) -> dict[str, Any]:
    return {
        **_token(entry.piece, entry.logprob),
        "top_logprobs": [_token(other.piece, other.logprob) for other in entry.top[:top]],
    }


def _token(piece: bytes, value: float | None) -> dict[str, Any]:
    return {"token": piece.decode("utf-8", "replace"), "logprob": logprob(value), "bytes": list(piece)}
