"""A Sequence: one token timeline while the engine works on it, and how much of it is in KV.

    [0, reused)                  shared with a lane that had computed it
    [reused, num_computed)       computed for this sequence
    [num_computed, num_tokens)   waiting for a step

Belongs to the engine thread from submission on.
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import TYPE_CHECKING, Any

from llamasrv.domain.events import FinishReason, TokenLogprob
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.channels import Delta, Stream

if TYPE_CHECKING:
    from llamasrv.engine.sampling.output_constraint import Steering
    from llamasrv.engine.spill import Spilled

_ids = itertools.count(1)


class State(Enum):
    WAITING = "waiting"  # submitted or preempted; holds no lane
    RUNNING = "running"  # holds a lane
    ENDED = "ended"


class Sequence:
    """What has become of a SequenceSpec."""

    __slots__ = (
        "id", "spec", "stream", "tokens", "num_prompt", "num_computed", "reused", "lane", "state", "finish",
        "arrived", "admitted", "first_token", "ended", "sampler", "stopper", "saved", "scores", "held_back",
        "steering", "num_foreseen",
    )  # fmt: skip

    def __init__(
        self, spec: SequenceSpec, stream: Stream, *, constraint: Steering | None = None, arrived: float = 0.0
    ) -> None:
        self.id = next(_ids)
        self.spec = spec
        self.stream = stream
        self.steering: Any = constraint
        self.tokens = spec.tokens[:]
        self.num_prompt = len(self.tokens)
        self.num_foreseen = 0  # of the last tokens: nobody was told of them yet
        self.num_computed = 0
        self.reused = 0
        self.lane: Any = None  # an int while running
        self.state = State.WAITING
        self.finish: FinishReason | None = None
        self.arrived = arrived
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.sampler: Any = None  # made at admission
        self.stopper: Any = None  # if there are stop strings
        self.saved: Spilled | None = None  # KV in host memory while preempted
        self.scores: list[TokenLogprob] = []  # of the prompt, as far as it is scored
        self.held_back: list[Delta] = []  # deltas that may yet turn out to be a stop string

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
