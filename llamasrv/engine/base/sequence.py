"""A Sequence: one token timeline while the engine works on it, and how much of it is in KV.

    [0, reused)                  shared with a lane that had computed it
    [reused, num_computed)       computed for this sequence
    [num_computed, num_tokens)   waiting for a step

A full context may shift (context_shift.py): then the timeline is shorter than prompt plus answer.
Belongs to the engine thread once it is submitted.
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import TYPE_CHECKING

from llamasrv.domain.events import DraftCounts, TokenLogprob
from llamasrv.domain.sequence_spec import SequenceSpec, Urgency
from llamasrv.engine.base.channels import End, PromptComputed, TokenStream
from llamasrv.engine.base.media_timeline import MediaTimeline

if TYPE_CHECKING:
    from llamasrv.engine.drafts.sequence_drafts import SequenceDrafts
    from llamasrv.engine.kv.state import SavedState
    from llamasrv.engine.sampling.output_constraint import OutputConstraint
    from llamasrv.engine.sampling.state import Ending, SamplingState

_ids = itertools.count(1)


class SequenceState(Enum):
    """What a sequence waits for."""

    WAITING = "waiting"  # a lane: submitted or preempted
    PREFILL = "prefill"  # steps: seated, its known tokens not all computed
    DECODE = "decode"  # a step for its newest tokens
    AWAITING_MASK = "awaiting a mask"  # or its sampler chain; its logits are kept. If preempted, it has no lane
    AWAITING_DISK = "awaiting a disk"  # a file with a prefix of its prompt; it has no lane
    AWAITING_ENCODER = "awaiting an encoder"  # rows of its images or sounds; it has no lane
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
"""Allowed transitions. ENDED is final."""


class Sequence:
    """A running SequenceSpec and its state."""

    __slots__ = (
        "kind", "id", "spec", "stream", "tokens", "num_prompt", "num_computed", "reused", "lane", "state", "arrived",
        "admitted", "first_token", "ended", "constraint", "sampling", "saved", "scores", "num_forgotten",
        "draft", "drafts", "media", "shift", "checkpoints", "source", "num_held", "pinned", "slot",
        "queued", "preempted", "paused", "urgency",
    )  # fmt: skip

    def __init__(
        self,
        spec: SequenceSpec,
        stream: TokenStream,
        *,
        constraint: OutputConstraint | None = None,
        arrived: float = 0.0,
    ) -> None:
        self.id = next(_ids)
        self.spec = spec
        self.kind = f"{spec.priority} {spec.deferrable} {spec.owner}"  # those of one kind run in order of arrival
        self.stream = stream
        self.constraint = constraint
        self.tokens = spec.tokens[:]
        self.num_prompt = len(self.tokens)
        self.num_computed = 0
        self.reused = 0
        self.source = ""  # tier of the reused tokens
        self.num_forgotten = 0  # tokens that context shifts dropped
        self.lane: int | None = None  # while seated
        self.slot: int | None = None  # since it was first seated
        self.state = SequenceState.WAITING
        self.arrived = arrived
        self.admitted: float | None = None  # the last time
        self.queued: float | None = None  # seconds until it was admitted for the first time
        self.preempted: float | None = None  # when, while it waits again
        self.paused = 0.0  # seconds that it has waited again
        self.first_token: float | None = None
        self.ended: float | None = None
        self.sampling: SamplingState | None = None  # made at admission
        self.saved: SavedState | None = None  # KV in host memory while preempted
        self.media = MediaTimeline(spec.media) if spec.media else None
        self.shift = self.media.shift if self.media is not None else 0  # cells minus positions, after the prompt
        self.scores: list[TokenLogprob] = []  # log-probabilities of the prompt tokens scored so far
        self.draft: list[int] = []  # in this step: unverified tokens after the timeline
        self.drafts: SequenceDrafts | None = None  # made on first use
        self.num_held = 0  # tokens of the prompt that were held for its session
        self.pinned: list[tuple[float, int]] = []  # (seconds, number of newly pinned tokens)
        self.urgency = Urgency.NONE  # for deferrable sequences
        self.checkpoints: list[int] = []  # future positions at which to save its state, ascending

    def enter(self, state: SequenceState) -> None:
        assert state in TRANSITIONS[self.state], f"{self} cannot become {state.value}"
        self.state = state

    def drop_context(self) -> None:
        """The context is gone, and with it the lane. It keeps its tokens, its sampler, logits that wait for a mask, its
        slot, its copy in host memory, and rows of images."""
        self.lane, self.num_computed, self.draft = None, 0, []
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
        """Number of last tokens that were not delivered yet."""
        return 0 if self.sampling is None else self.sampling.num_undelivered

    @property
    def is_resumed(self) -> bool:
        """Whether it waits again, after a preemption."""
        return self.saved is not None or self.num_generated > 0

    @property
    def is_scored(self) -> bool:
        """Whether log-probabilities of its prompt are still due, so that every row needs logits. Do not derive it from
        `num_computed`: a context shift makes that smaller again."""
        return self.spec.prompt_logprobs and len(self.scores) < self.num_prompt

    @property
    def seat(self) -> int:
        """The lane of a sequence that is seated."""
        assert self.lane is not None, self
        return self.lane

    @property
    def own_sampling(self) -> SamplingState:
        """The state of a sequence that has been seated."""
        assert self.sampling is not None, self
        return self.sampling

    @property
    def own_media(self) -> MediaTimeline:
        """The images and sounds of a sequence that has some."""
        assert self.media is not None, self
        return self.media

    @property
    def owed(self) -> int:
        """Number of tokens not in KV: one while decoding, more while a prompt is computed."""
        return len(self.tokens) - self.num_computed

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.state.value} {self.num_computed}/{self.num_tokens} lane={self.lane}>"


def tell_progress(seq: Sequence, now: float) -> None:
    """Report how much of the prompt is computed, until the first token."""
    if seq.first_token is not None:
        return
    computed = min(seq.num_computed, seq.num_prompt)
    seconds = now - seq.admitted if computed > seq.reused and seq.admitted is not None else 0.0
    seq.stream.put(PromptComputed(seq.spec.choice, seq.num_prompt, seq.reused, computed, seconds))


def end_of(seq: Sequence, ending: Ending) -> End:
    """The End of a sequence's stream."""
    ended = seq.ended or 0.0
    begun = ended if seq.queued is None else seq.arrived + seq.queued
    paused = seq.paused + (0.0 if seq.preempted is None else max(0.0, ended - seq.preempted))
    first = seq.first_token if seq.first_token is not None else ended
    # Do not charge for prompt tokens that were not computed: a client may leave while queued.
    prompt = seq.num_prompt if seq.first_token is not None else min(seq.num_prompt, seq.num_computed)
    return End(
        seq.spec.choice,
        ending.reason,
        ending.stop,
        ending.error,
        prompt,
        seq.reused,
        seq.num_generated - seq.num_undelivered,
        max(0.0, begun - seq.arrived),
        max(0.0, first - begun),
        max(0.0, ended - first),
        seq.slot,
        seq.num_forgotten,
        _draft_counts(seq),
        tuple(seq.pinned),
        paused,
    )


def _draft_counts(seq: Sequence) -> DraftCounts:
    counts = DraftCounts() if seq.drafts is None else seq.drafts.counts
    return counts if seq.spec.prediction is None else counts._replace(predicted=counts.predicted or 0)
