"""A Sequence: one token timeline while the engine works on it, and how much of it is in KV.

    [0, reused)                  shared with a lane that had computed it
    [reused, num_computed)       computed for this sequence
    [num_computed, num_tokens)   waiting for a step

A context that is full may shift (context_shift.py): then the timeline is shorter than what was written.
Belongs to the engine thread from submission on.
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import TYPE_CHECKING

from llamasrv.domain.events import DraftCounts, TokenLogprob
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.channels import End, PromptComputed, Stream
from llamasrv.engine.kv.prefix_index import Commons, Match
from llamasrv.engine.media.timeline import MediaTimeline

if TYPE_CHECKING:
    from llamasrv.engine.drafts.sequence_drafts import SequenceDrafts
    from llamasrv.engine.kv.host_tier import SavedState
    from llamasrv.engine.sampling.output_constraint import OutputConstraint
    from llamasrv.engine.sampling.state import Ending, SamplingState

_ids = itertools.count(1)


class SequenceState(Enum):
    """What a sequence waits for."""

    WAITING = "waiting"  # a place: submitted or preempted
    PREFILL = "prefill"  # steps: seated, and not yet at the end of what it has
    DECODE = "decode"  # a step for the tokens it wrote last
    AWAITING_MASK = "awaiting a mask"  # or its samplers: its logits are kept; preempted meanwhile, it has no lane
    AWAITING_DISK = "awaiting a disk"  # a file that its prompt begins with; it has no lane
    AWAITING_ENCODER = "awaiting an encoder"  # rows for its images or sound; it has no lane
    ENDED = "ended"


TRANSITIONS = {
    SequenceState.WAITING: (
        SequenceState.PREFILL,
        SequenceState.AWAITING_DISK,
        SequenceState.AWAITING_ENCODER,
        SequenceState.ENDED,
    ),
    SequenceState.AWAITING_DISK: (SequenceState.WAITING, SequenceState.ENDED),
    SequenceState.AWAITING_ENCODER: (SequenceState.WAITING, SequenceState.ENDED),
    SequenceState.PREFILL: (
        SequenceState.DECODE,
        SequenceState.AWAITING_MASK,
        SequenceState.WAITING,
        SequenceState.ENDED,
    ),
    SequenceState.DECODE: (SequenceState.AWAITING_MASK, SequenceState.WAITING, SequenceState.ENDED),
    SequenceState.AWAITING_MASK: (SequenceState.DECODE, SequenceState.WAITING, SequenceState.ENDED),
    SequenceState.ENDED: (),
}
"""What may follow what. A sequence ends once, and nothing follows."""


class Sequence:
    """A running SequenceSpec and its state."""

    __slots__ = (
        "id", "spec", "stream", "tokens", "num_prompt", "num_computed", "reused", "lane", "state", "arrived",
        "admitted", "first_token", "ended", "constraint", "sampling", "saved", "scores", "num_forgotten", "num_exact",
        "draft", "drafts", "media", "shift", "checkpoints", "source", "pinned", "slot", "found", "commons",
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
        self.source = ""  # where these tokens were
        self.num_forgotten = 0  # tokens that the timeline had, and has no more: context_shift.py
        self.num_exact: int | None = None  # first tokens whose KV was not moved; None: all
        self.lane: int | None = None  # while it is seated
        self.slot: int | None = None  # since it was seated first
        self.state = SequenceState.WAITING
        self.arrived = arrived
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.sampling: SamplingState | None = None  # made at admission
        self.saved: SavedState | None = None  # KV in host memory while preempted
        self.media = MediaTimeline(spec.media) if spec.media else None
        self.shift = self.media.shift if self.media is not None else 0  # cells less positions, behind the prompt
        self.scores: list[TokenLogprob] = []  # of the prompt, as far as it is scored
        self.draft: list[int] = []  # behind the timeline, in this step: tokens that nobody was told of
        self.drafts: SequenceDrafts | None = None  # made when it is first asked for any
        self.pinned: list[tuple[float, int]] = []  # seconds for which so many new tokens of it are kept
        self.found: tuple[int, Match | None] | None = None  # by the last lookup, and the age of the books then
        self.commons = Commons()
        self.checkpoints: list[int] = []  # positions ahead of it where its state is kept, ascending

    def enter(self, state: SequenceState) -> None:
        assert state in TRANSITIONS[self.state], f"{self} cannot become {state.value}"
        self.state = state

    def lose_context(self) -> None:
        """Its context is gone, and its lane with it. It keeps its tokens and its sampler, logits that wait for their
        mask, its slot, and what is outside of the context: its copy in host memory and rows of images."""
        self.lane, self.num_computed, self.num_exact, self.draft, self.found = None, 0, None, [], None
        if self.drafts is not None:
            self.drafts.tried = None
        if self.state in (SequenceState.PREFILL, SequenceState.DECODE):
            self.enter(SequenceState.WAITING)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt + self.num_forgotten

    @property
    def num_undelivered(self) -> int:
        """How many of the last tokens the client has not received yet."""
        return 0 if self.sampling is None else self.sampling.num_undelivered

    @property
    def is_resumed(self) -> bool:
        """Whether it waits for a second time, because it was preempted."""
        return self.saved is not None or self.num_generated > 0

    @property
    def is_scored(self) -> bool:
        """Whether log-probabilities of its prompt are still to come: each row that is computed has logits. Not a
        matter of lengths, since a context that shifts makes a prompt short again."""
        return self.spec.prompt_logprobs and len(self.scores) < self.num_prompt

    @property
    def owed(self) -> int:
        """Tokens whose KV is still missing: one while decoding, more while a prompt is computed."""
        return len(self.tokens) - self.num_computed

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.state.value} {self.num_computed}/{self.num_tokens} lane={self.lane}>"


def tell_progress(seq: Sequence, now: float) -> None:
    """Report how much of its prompt is computed, until its first token."""
    if seq.first_token is not None:
        return
    computed = min(seq.num_computed, seq.num_prompt)
    seconds = now - seq.admitted if computed > seq.reused and seq.admitted is not None else 0.0
    seq.stream.put(PromptComputed(seq.spec.index, seq.num_prompt, seq.reused, computed, seconds))


def end_of(seq: Sequence, ending: Ending) -> End:
    """The last item of its stream."""
    ended = seq.ended or 0.0
    admitted = seq.admitted if seq.admitted is not None else ended
    first = seq.first_token if seq.first_token is not None else ended
    # Nothing is charged for that was not computed: a client may have left the queue.
    prompt = seq.num_prompt if seq.first_token is not None else min(seq.num_prompt, seq.num_computed)
    return End(
        seq.spec.index,
        ending.reason,
        ending.stop,
        ending.error,
        prompt,
        seq.reused,
        seq.num_generated - seq.num_undelivered,
        max(0.0, admitted - seq.arrived),
        max(0.0, first - admitted),
        max(0.0, ended - first),
        seq.slot,
        seq.num_forgotten,
        _draft_counts(seq),
        tuple(seq.pinned),
    )


def _draft_counts(seq: Sequence) -> DraftCounts:
    counts = DraftCounts() if seq.drafts is None else seq.drafts.counts
    return counts if seq.spec.prediction is None else counts._replace(predicted=counts.predicted or 0)
