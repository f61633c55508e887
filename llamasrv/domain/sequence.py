"""A Sequence: one token timeline, and how much of it is in KV.

    [0, reused)                  shared with a lane that had computed it
    [reused, num_computed)       computed for this sequence
    [num_computed, num_tokens)   waiting for a step

Made by the pipeline, owned by the engine thread from submission until its stream ends.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import SamplingParams

_ids = itertools.count(1)

Adapters = tuple[tuple[int, float], ...]
"""LoRA adapters by number, with their scales; in order, none with 0."""


class Realm(NamedTuple):
    """Timelines share a prefix only within one: what they are computed with, and who may know of it."""

    adapters: Adapters = ()
    scope: str = ""  # "": everybody's


class State(Enum):
    WAITING = "waiting"  # submitted or preempted; holds no lane
    RUNNING = "running"  # holds a lane
    ENDED = "ended"


class Sequence:
    """One timeline. Identity counts: two sequences with equal tokens are still two."""

    __slots__ = (
        "id", "index", "params", "max_tokens", "stop", "logprobs", "prompt_logprobs", "cache_prompt", "deadline",
        "owner", "priority", "realm", "tokens", "num_prompt", "num_computed", "reused", "lane", "state", "finish",
        "arrived", "admitted", "first_token", "ended", "stream", "sampler", "stopper", "saved", "scores", "held_back",
        "steering", "num_foreseen",
    )  # fmt: skip

    def __init__(
        self,
        prompt: Iterable[int],
        *,
        params: SamplingParams | None = None,
        index: int = 0,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        logprobs: int | None = None,
        prompt_logprobs: bool = False,
        cache_prompt: bool = True,
        deadline: float | None = None,
        owner: str = "",
        priority: int = 0,
        adapters: Adapters = (),
        scope: str = "",
        steering: Any = None,
    ) -> None:
        self.id = next(_ids)
        self.index = index  # its choice in the request
        self.params = params or SamplingParams()
        self.max_tokens = max_tokens
        self.stop = stop
        self.logprobs = logprobs
        self.prompt_logprobs = prompt_logprobs
        self.cache_prompt = cache_prompt
        self.deadline = deadline  # on the engine's clock, seconds
        self.owner = owner
        self.priority = priority
        self.realm = Realm(adapters, scope)
        self.steering = steering  # engine.sampling.Steering, if a grammar or a thinking budget bears on it
        self.tokens = array("i", prompt)
        self.num_prompt = len(self.tokens)
        self.num_foreseen = 0  # of the last tokens: nobody was told of them yet
        self.num_computed = 0
        self.reused = 0
        self.lane: Any = None  # an int while running
        self.state = State.WAITING
        self.finish: FinishReason | None = None
        self.arrived = 0.0
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.stream: Any = None  # engine.channels.Stream
        self.sampler: Any = None  # a Sampler, made at admission
        self.stopper: Any = None  # a StopMatcher, if there are stop strings
        self.saved: Any = None  # engine.spill.Spilled: KV in host memory while preempted
        self.scores: list[Any] = []  # TokenLogprob of the prompt, as far as it is scored
        self.held_back: list[Any] = []  # deltas that may yet turn out to be a stop string

    @property
    def adapters(self) -> Adapters:
        return self.realm.adapters

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def is_resumed(self) -> bool:
        """Whether it waits for the second time: it had to give way."""
        return self.saved is not None or len(self.tokens) > self.num_prompt

    @property
    def owed(self) -> int:
        """Tokens whose KV is still missing. One while decoding, more while a prompt is computed."""
        return len(self.tokens) - self.num_computed

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.state.value} {self.num_computed}/{self.num_tokens} lane={self.lane}>"
