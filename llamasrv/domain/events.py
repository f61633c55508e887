"""The neutral events of a generation: the pipeline makes them, protocols render them.

For each choice: any number of Text, Reasoning, ToolCallStart and ToolCallArguments, then exactly one of Finished or
Failed. After the last choice ended: one Usage.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Union

from llamasrv.domain.request import Message
from llamasrv.errors import LlamasrvError


class FinishReason(str, Enum):
    """Why a sequence ended. Every sequence ends with exactly one."""

    STOP = "stop"  # the model's own end token
    STOP_STRING = "stop_string"  # a stop string or stop token of the request
    LENGTH = "length"  # max_tokens
    CONTEXT = "context"  # the context is full
    TOOL_CALLS = "tool_calls"  # ended by itself with complete calls (set by the pipeline)
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    FAILED = "failed"


class TopLogprob(NamedTuple):
    token: int
    piece: bytes
    logprob: float


class TokenLogprob(NamedTuple):
    """Log-probability (natural) of one token, and the most likely tokens at its place, most likely first."""

    token: int
    piece: bytes
    logprob: float | None  # None: the first token of a prompt has none
    top: tuple[TopLogprob, ...] = ()


class Text(NamedTuple):
    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: tuple[int, ...] = ()


class Reasoning(NamedTuple):
    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class PromptProgress(NamedTuple):
    """How much of a choice's prompt is computed, before its first text: `processed` of `total` tokens, `cached` of
    them reused. Only if it was asked for."""

    choice: int
    total: int
    cached: int
    processed: int
    seconds: float  # since its computation began


class PromptWaits(NamedTuple):
    """A choice waits: for a lane, at `place` of `num_waiting` (1: the next), or, without a place, for its images and
    sounds to be encoded. Only if it was asked for."""

    choice: int
    place: int | None
    num_waiting: int


class Pace(NamedTuple):
    """How far a choice is: its usage so far, before the events that it belongs to. Only if it was asked for."""

    choice: int
    usage: Usage


class ToolCallStart(NamedTuple):
    choice: int
    call: int  # 0, 1, 2 ... within the choice
    id: str
    name: str


class ToolCallArguments(NamedTuple):
    choice: int
    call: int
    fragment: str


class ToolsFound(NamedTuple):
    """The server ran a call of a tool search. The answer goes on after it. `error` names what was wrong with the
    arguments."""

    choice: int
    id: str
    name: str
    arguments: str
    found: tuple[str, ...]  # names of the tools
    error: str = ""


class Compacted(NamedTuple):
    """The answer is made from a shortened conversation; the first event, if any. `text` is the turn that stands for
    the older ones, `messages` is the conversation that the model read, `usage` is what the summary cost just now."""

    choice: int
    text: str
    messages: tuple[Message, ...]
    usage: Usage


class Spoken(NamedTuple):
    """The next bytes of the audio file in which the answer is spoken; they may lag behind the text. Only if it was
    asked for."""

    choice: int
    data: bytes


class Finished(NamedTuple):
    choice: int
    reason: FinishReason
    stop: str | None = None  # the stop string that was met
    usage: Usage | None = None  # of this choice alone
    slot: int | None = None  # the number under which llama.cpp's routes show and save it


class Failed(NamedTuple):
    choice: int
    error: LlamasrvError


class DraftCounts(NamedTuple):
    """Tokens that were tried before they were certain."""

    drafted: int = 0
    accepted: int = 0  # of those; the others cost time and changed nothing
    predicted: int | None = None  # those that came from the client's prediction; None: it sent none
    predicted_accepted: int = 0


class Usage(NamedTuple):
    """Counts of the whole request. `prompt_tokens` includes the cached ones; each prompt counts once."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    forgotten_tokens: int = 0  # of prompts and answers, that made room in a full context
    drafts: DraftCounts = DraftCounts()
    pinned: tuple[tuple[float, int], ...] = ()  # (seconds, computed prompt tokens kept for that long)
    audio_tokens: int = 0  # frames of speech, among the completion tokens
    paused_seconds: float = 0.0  # that it made room for others, within the seconds of prefill and decode


Event = Union[
    Text,
    Reasoning,
    PromptWaits,
    PromptProgress,
    Pace,
    ToolCallStart,
    ToolCallArguments,
    ToolsFound,
    Compacted,
    Spoken,
    Finished,
    Failed,
    Usage,
]
