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
from llamasrv.engine.channels import Stream

if TYPE_CHECKING:
    from llamasrv.engine.sampling.output_constraint import OutputConstraint
    from llamasrv.engine.sampling.state import SamplingState
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
        "arrived", "admitted", "first_token", "ended", "constraint", "sampling", "saved", "scores",
    )  # fmt: skip

    def __init__(
        self, spec: SequenceSpec, stream: Stream, *, constraint: OutputConstraint | None = None, arrived: float = 0.0
    ) -> None:
        self.id = next(_ids)
        self.spec = spec
        self.stream = stream
        self.constraint = constraint
        self.tokens = spec.tokens[:]
        self.num_prompt = len(self.tokens)
        self.num_computed = 0
        self.reused = 0
        self.lane: Any = None  # an int while running
        self.state = State.WAITING
        self.finish: FinishReason | None = None
        self.arrived = arrived
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.sampling: SamplingState | None = None  # made at admission
        self.saved: Spilled | None = None  # KV in host memory while preempted
        self.scores: list[TokenLogprob] = []  # of the prompt, as far as it is scored

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_undelivered(self) -> int:
        """Of the last tokens: the client has not got them yet."""
        return 0 if self.sampling is None else self.sampling.num_undelivered

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
