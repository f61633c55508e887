"""What other threads see of an engine: one frozen view, which the engine thread replaces as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, TypedDict

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.base.interface import ModelFacts
from llamasrv.engine.base.options import Status
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.kv.policy import Pins

VIEW_SECONDS = 0.05  # maximum age of a view while no sequence arrives or ends
MAX_WAITING_SHOWN = 50


class SequenceView(NamedTuple):
    """One open sequence."""

    id: int
    lane: int | None
    slot: int | None
    num_prompt: int
    num_computed: int
    num_reused: int
    source: str  # tier of the reused tokens, one of metrics.SOURCES; "" for none
    num_generated: int
    max_tokens: int | None
    params: SamplingParams
    num_drafted: int = 0
    num_accepted: int = 0  # accepted ones among the drafted tokens
    changed: str = ""  # part of the prompt that differs from the last prompt of the conversation; "" for none
    adapters: Adapters = ()
    owner: str = ""
    arrived: float = 0.0  # this and the next two on the engine's clock
    first_token: float | None = None
    preempted: float | None = None  # while it waits again
    queued: float | None = None  # seconds until it had a lane; None: it has had none
    paused: float = 0.0  # seconds without a lane, after preemptions that are over


def _view_of(seq: Sequence) -> SequenceView:
    spec, drafts = seq.spec, seq.drafts
    counts = (0, 0) if drafts is None else drafts.counts[:2]
    return SequenceView(
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
        spec.cache_key.adapters,
        spec.owner,
        seq.arrived,
        seq.first_token,
        seq.preempted,
        seq.queued,
        seq.paused,
    )


class PlainView(TypedDict):
    """An EngineView as dicts and lists, for pages and metrics."""

    status: Status
    at: float  # when, on the engine's clock
    running: list[dict[str, object]]  # fields of SequenceView
    waiting: list[dict[str, object]]
    num_waiting: int
    cells: dict[str, int]  # total, used, held
    lanes: dict[str, int]  # total, held, resident
    strip: list[tuple[int, int, str]]  # lane, cells, held or resident
    swapped_bytes: int
    pins: dict[str, int]  # num, bytes
    num_sessions: int  # prefixes kept while a client runs a tool


class EngineView(NamedTuple):
    """The engine after one of its turns."""

    status: Status = Status("loading")
    model: ModelFacts | None = None  # once it is loaded
    at: float | None = None  # when the turn ended, on the engine's clock; None before the first
    running: tuple[SequenceView, ...] = ()  # sequences that hold a lane
    waiting: tuple[SequenceView, ...] = ()  # the first MAX_WAITING_SHOWN of the others
    total_cells: int = 0
    used_cells: int = 0
    held_cells: int = 0
    total_lanes: int = 0
    held_lanes: int = 0
    resident_lanes: int = 0
    lengths: tuple[int, ...] = ()  # cells by lane
    held: frozenset[int] = frozenset()  # lanes of running sequences
    swapped_bytes: int = 0  # host memory of preempted sequences
    media_bytes: int = 0  # host memory of encoded images and audio
    pins: tuple[int, int] = (0, 0)  # number of pinned prefixes, and their bytes
    num_sessions: int = 0  # prefixes kept while a client runs a tool

    @property
    def strip(self) -> list[tuple[int, int, str]]:
        """(lane, cells, "held" or "resident") of each lane with cells."""
        lengths, held = enumerate(self.lengths), self.held
        return [(lane, length, "held" if lane in held else "resident") for lane, length in lengths if length]


class ViewPublisher:
    """Holds the current view. Only the engine thread writes; any thread reads."""

    def __init__(self, on_status: Callable[[], None] | None = None) -> None:
        """`on_status` is called, on the engine thread, whenever the status changes."""
        self._on_status = on_status
        self.view = EngineView()
        self.num_ended = 0  # sequences, since the start
        self.is_stale = True  # a sequence has arrived, ended or moved since the view was made

    def is_due(self, now: float) -> bool:
        """Whether the view is stale or as old as VIEW_SECONDS."""
        return self.is_stale or now - (self.view.at or 0.0) >= VIEW_SECONDS

    def publish(
        self,
        now: float,
        running: list[Sequence],
        waiting: Iterable[Sequence],
        lanes: LaneTable,
        swapped_bytes: int,
        media_bytes: int,
        pins: Pins,
        num_sessions: Callable[[], int],
    ) -> None:
        """Replace the view."""
        last = self.view
        self.is_stale = False
        self.view = EngineView(
            last.status,
            last.model,
            now,
            tuple([_view_of(s) for s in running]),
            tuple([_view_of(s) for s in islice(waiting, MAX_WAITING_SHOWN)]),
            lanes.num_cells,
            lanes.used_cells,
            lanes.held_cells,
            lanes.num_lanes,
            len(lanes.held),
            len(lanes.resident),
            tuple(lanes.lengths),
            frozenset(lanes.held),
            swapped_bytes,
            media_bytes,
            pins.standing(),
            num_sessions(),
        )

    def set_status(self, status: Status) -> None:
        self.view = self.view._replace(status=status)
        if self._on_status is not None:
            self._on_status()

    def set_model(self, model: ModelFacts | None) -> None:
        self.view = self.view._replace(model=model)
