"""What the engine gets per choice: the token timeline to continue, and how.

Plain frozen data. The pipeline submits one per choice; the engine turns it into an `engine.sequence.Sequence`.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple

from llamasrv.domain.media import MediaSpan
from llamasrv.domain.params import SamplingParams

Adapters = tuple[tuple[int, float], ...]
"""LoRA adapters by number, with their scales; sorted, without zero scales."""


class Urgency(IntEnum):
    """How soon a deferrable request is needed."""

    NONE = 0  # computed while there are no others
    URGENT = 1  # beside others, after their prompts, where they hardly notice
    PRESSING = 2  # even if they notice


class CacheKey(NamedTuple):
    """Timelines share prefixes only if their keys are equal: what they were computed with, and who may learn of it."""

    adapters: Adapters = ()
    scope: str = ""  # "": shared by all


class SequenceSpec(NamedTuple):
    """One choice."""

    tokens: array[int]  # the prompt; shared by the choices of a prompt, never modified
    media: tuple[MediaSpan, ...] = ()  # its images and sounds, in order; their tokens are negative
    params: SamplingParams = SamplingParams()
    choice: int = 0  # number of the choice within its request
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # alternatives per token; None: no log-probabilities
    prompt_logprobs: bool = False
    reads: tuple[int, ...] = ()  # tokens whose log-probabilities after the prompt are the answer; max_tokens is 0
    leaves_prefix: bool = True  # its lane stays when it ends, for prompts that begin like it
    passes: bool = False  # these come soon: its prefix is not copied when its lane is needed
    sampled_probs: bool = False  # log-probabilities after the samplers, instead of the model's own
    reports_progress: bool = False  # emit PromptProgress events
    cache_prompt: bool = True
    keep: int | None = None  # tokens to keep in a context shift; -1: the prompt; None: the engine's default
    discard: int = 0  # tokens to drop in a context shift; 0: half of the rest
    prediction: array[int] | None = None  # text that the answer probably resembles
    boundaries: tuple[int, ...] = ()  # positions where other prompts may diverge: starts of messages
    pins: tuple[tuple[int, float], ...] = ()  # (number of first tokens to keep, seconds)
    slot: int | None = None  # the slot number to save the state under; None: its lane's
    deadline: float | None = None  # seconds on the engine's clock
    owner: str = ""
    session: str = ""  # the owner's name for a conversation, whose prefix is kept while its client runs a tool
    priority: int = 0
    deferrable: bool = False  # computed only while the server is otherwise idle
    cache_key: CacheKey = CacheKey()
    changed: str = ""  # what changed since an earlier request, as shown in the view
