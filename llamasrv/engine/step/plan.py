"""What a plan depends on, and what it says. Frozen: equal situations get equal plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.base.batch import Part
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.match import Match


class Pool(NamedTuple):
    """The cells and lanes available now. `reclaimable_cells`: free ones and those that eviction would free."""

    reclaimable_cells: int
    available_lanes: int
    max_outputs: int


class PlanTurns(NamedTuple):
    """What one plan hands to the next."""

    adapters: tuple[Adapters, ...] = ()  # sets in use, in order of their turns
    alone: int = 0  # number of the next sequence in deterministic mode
    had_media: bool = False  # the last step computed media rows

    @property
    def current(self) -> Adapters:
        """The set whose turn it has just been."""
        return self.adapters[-1] if self.adapters else ()


class Hit(NamedTuple):
    """A waiting sequence and the prefix found for it. `start`: how many of its tokens are in KV once it is admitted;
    `leader`: one before it that computes what both begin with, and the length of that."""

    seq: Sequence
    match: Match | None
    start: int
    leader: tuple[Sequence, int] | None


class Situation(NamedTuple):
    """Everything a plan depends on, except what the cost model has learnt.

    `running`: sequences with a lane that may compute; `resting`: deferrable ones with a lane that may not, now.
    `hits`: the next waiting sequences, in order; at most `places` may be admitted."""

    running: tuple[Sequence, ...]
    pool: Pool
    now: float
    turns: PlanTurns = PlanTurns()
    resting: tuple[Sequence, ...] = ()
    hits: tuple[Hit, ...] = ()
    places: int = 0
    any_wait: bool = False  # whether any sequence might be admitted
    more_wait: bool = False  # beyond `hits`
    lacks_lanes: bool = False  # whether `places` are few for want of lanes
    most_seconds: float | None = None  # max seconds of a step that no reader waits for


class Plan(NamedTuple):
    """What to do, in this order, and what to compute."""

    preempt: tuple[Sequence, ...] = ()
    encode: tuple[tuple[Sequence, int], ...] = ()  # sequences that need rows, from this cell on
    read: tuple[tuple[Sequence, Match], ...] = ()  # sequences that wait for a file
    marks: tuple[tuple[Sequence, int], ...] = ()  # sequences asked for a checkpoint at a position, and that position
    admit: tuple[tuple[Sequence, Match | None], ...] = ()
    parts: tuple[Part, ...] = ()
    num_decodes: int = 0  # the first parts: one owed token each
    num_prompt: int = 0  # prompt tokens in the other parts
    adapters: Adapters = ()  # adapters of all parts
    turns: PlanTurns = PlanTurns()  # turns for the next situation


@dataclass(slots=True)
class PlanDraft:
    """A plan in the making."""

    turns: PlanTurns
    preempt: list[Sequence]
    encode: list[tuple[Sequence, int]]
    read: list[tuple[Sequence, Match]]
    marks: list[tuple[Sequence, int]]
    admit: list[tuple[Sequence, Match | None]]
    parts: list[Part]
    num_decodes: int = 0
    num_prompt: int = 0
    adapters: Adapters = ()

    def freeze(self) -> Plan:
        return Plan(
            tuple(self.preempt),
            tuple(self.encode),
            tuple(self.read),
            tuple(self.marks),
            tuple(self.admit),
            tuple(self.parts),
            self.num_decodes,
            self.num_prompt,
            self.adapters,
            self.turns,
        )
