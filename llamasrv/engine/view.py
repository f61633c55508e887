"""What the engine thread shows to other threads: frozen values, each replaced as a whole.

Knows nothing of how they come about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.interface import ModelInfo, Projector, Vocabulary
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.kv.pins import Pins
from llamasrv.engine.options import Status
from llamasrv.engine.sequence import Sequence

VIEW_SECONDS = 0.05  # that a view may be old while nobody comes or goes
SHOWN_WAITING = 50  # of those that wait, so many are shown


class Row(NamedTuple):
    """One open sequence."""

    id: int
    lane: int | None
    slot: int | None
    num_prompt: int
    num_computed: int
    num_reused: int
    source: str  # where these were: one of metrics.SOURCES; "" for none
    num_generated: int
    max_tokens: int | None
    params: SamplingParams
    num_drafted: int = 0
    num_accepted: int = 0  # of these
    changed: str = ""  # part of its prompt that is not what it was in an earlier one; "" for none


def row_of(seq: Sequence) -> Row:
    spec, drafts = seq.spec, seq.drafts
    counts = (0, 0) if drafts is None else drafts.counts[:2]
    return Row(
        seq.id,
        seq.lane,
        seq.slot,
        seq.num_prompt,
        seq.num_computed,
        seq.reused,
        seq.source,
        seq.num_generated,
        spec.max_tokens,
        spec.params,
        *counts,
        spec.changed,
    )


class Snapshot(TypedDict):
    """The view as plain values, for pages and figures."""

    status: Status
    running: list[dict[str, object]]  # of Row
    waiting: list[dict[str, object]]
    num_waiting: int
    cells: dict[str, int]  # total, used, held
    lanes: dict[str, int]  # total, held, resident
    strip: list[tuple[int, int, str]]  # lane, cells, held or resident
    swapped_bytes: int
    pins: dict[str, int]  # num, bytes


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known once the model is loaded, and does not change."""

    info: ModelInfo
    vocab: Vocabulary
    generates: bool
    context: int  # most tokens of one sequence, prompt and answer together
    num_lanes: int
    num_adapters: int
    state_facts: Mapping[str, object]  # what a saved state depends on beside the model
    projector: Projector | None = None  # where it takes images or sounds
    ubatch_size: int = 0  # most rows of a chunk that is computed whole
    takes_checkpoints: bool = False  # it makes use of `SequenceSpec.boundaries`
    host_bytes: int | None = None  # memory of this machine that it takes; None where nobody tells


@dataclass(frozen=True, slots=True)
class View:
    """The engine after one of its turns."""

    at: float | None = None  # when that turn ended, on the engine's clock; None before the first
    running: tuple[Row, ...] = ()  # sequences that hold a lane
    waiting: tuple[Row, ...] = ()  # the first of the others
    total_cells: int = 0
    used_cells: int = 0
    held_cells: int = 0
    total_lanes: int = 0
    held_lanes: int = 0
    resident_lanes: int = 0
    strip: tuple[tuple[int, int, str], ...] = ()  # (lane, cells, held or resident) of each lane that has any
    swapped_bytes: int = 0  # of host memory, for preempted sequences
    pins: tuple[int, int] = (0, 0)  # prefixes that clients asked to be kept, and their bytes


class Board:
    """Holds the values that others see. Only the engine thread writes; any thread reads."""

    def __init__(self, on_status: Callable[[], None] | None = None) -> None:
        """`on_status` is called, on the engine thread, whenever the status changes."""
        self._on_status = on_status
        self.status = Status("loading")
        self.model: ModelFacts | None = None
        self.view = View()
        self.num_ended = 0  # sequences, since the start
        self.is_stale = True  # somebody has come, gone or changed places since the view was made

    def publish(
        self,
        now: float,
        running: list[Sequence],
        waiting: list[Sequence],
        lanes: LaneTable,
        swapped_bytes: int,
        pins: Pins,
    ) -> None:
        """Replace the view, unless it is only a moment old and the same sequences are in the same places."""
        if not self.is_stale and now - (self.view.at or 0.0) < VIEW_SECONDS:
            return
        self.is_stale = False
        self.view = View(
            now,
            tuple([row_of(s) for s in running]),
            tuple([row_of(s) for s in waiting[:SHOWN_WAITING]]),
            lanes.num_cells,
            lanes.used_cells,
            lanes.held_cells,
            lanes.num_lanes,
            len(lanes.held),
            len(lanes.resident),
            tuple(lanes.strip()),
            swapped_bytes,
            pins.standing(),
        )

    def set_status(self, status: Status) -> None:
        self.status = status
        if self._on_status is not None:
            self._on_status()
