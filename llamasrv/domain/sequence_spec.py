"""What the engine is asked for one choice: the token timeline to continue, and how.

Plain frozen data. The pipeline makes one for each choice and submits them; `engine.sequence.Sequence` is what becomes
of one.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from llamasrv.domain.media import MediaSpan
from llamasrv.domain.params import SamplingParams

Adapters = tuple[tuple[int, float], ...]
"""LoRA adapters by number, with their scales; in order, none with 0."""


class CacheKey(NamedTuple):
    """Timelines share prefixes only if these are equal: what they are computed with, and who may learn of it."""

    adapters: Adapters = ()
    scope: str = ""  # "": everybody's


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSpec:
    """One choice. Identity counts: two choices of equal tokens are still two."""

    tokens: array[int]  # the prompt; shared by the choices of one prompt, changed by nobody
    media: tuple[MediaSpan, ...] = ()  # where its images and sounds are, in order; their tokens are negative
    params: SamplingParams = SamplingParams()
    index: int = 0  # which choice of its request it is
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # so many alternatives beside each token; None: no log-probabilities at all
    prompt_logprobs: bool = False
    sampled_probs: bool = False  # log-probabilities are what the samplers left, not the model's own
    reports_progress: bool = False  # its stream hears how much of the prompt is computed
    cache_prompt: bool = True
    keep: int | None = None  # first tokens to keep where the context shifts; -1: the prompt; None: as the engine has it
    discard: int = 0  # tokens to forget then; 0: half of the others
    prediction: array[int] | None = None  # what the answer is expected to be for the most part
    boundaries: tuple[int, ...] = ()  # positions where others may part from this prompt: beginnings of messages
    pins: tuple[tuple[int, float], ...] = ()  # its first so many tokens are kept, for so many seconds
    slot: int | None = None  # the number under which what it leaves is saved; None: its lane's
    deadline: float | None = None  # on the engine's clock, seconds
    owner: str = ""
    priority: int = 0
    deferrable: bool = False  # computed for only while there is nobody else
    cache_key: CacheKey = CacheKey()
    changed: str = ""  # since an earlier request, as the view tells it
