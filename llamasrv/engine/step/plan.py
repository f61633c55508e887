"""What a plan depends on, and what it says. Frozen: equal situations get equal plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.base.batch import Part
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.match import Match

Line = tuple[Sequence, ...]


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
    owes_decodes: bool = False  # the last step left the decodes out


class Situation(NamedTuple):
    """Everything a plan depends on, except what the cost model has learnt.

    `waiting`: sequences that may be admitted, by kind, each in order of arrival; `running`: those with a lane.
    `hits`: those of the waiting sequences that may be admitted in this step, in order, with the prefixes found for
    them.
    `served`: tokens per owner; the owner with the fewest goes first."""

    waiting: tuple[Line, ...]
    running: tuple[Sequence, ...]
    pool: Pool
    now: float
    turns: PlanTurns = PlanTurns()
    hits: tuple[tuple[Sequence, Match | None], ...] = ()
    served: Mapping[str, float] = {}
    holds_until: float = -inf  # until then deferrable sequences are held back


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
    adapters: Adapters = ()  # of all parts
    turns: PlanTurns = PlanTurns()  # of the next situation


@dataclass(slots=True)
class PlanDraft:
    """A plan in the making."""

    turns: PlanTurns
    preempt: list[Sequence] = field(default_factory=list)
    encode: list[tuple[Sequence, int]] = field(default_factory=list)
    read: list[tuple[Sequence, Match]] = field(default_factory=list)
    marks: list[tuple[Sequence, int]] = field(default_factory=list)
    admit: list[tuple[Sequence, Match | None]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
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
