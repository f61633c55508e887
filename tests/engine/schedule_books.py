"""Checks that all tables of an engine agree with each other and the back end, between two turns."""

from __future__ import annotations

from collections import Counter

from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.engine import _fail

SEATED = {SequenceState.PREFILL, SequenceState.DECODE, SequenceState.AWAITING_MASK}


def check_books(core, sequences, backend):
    """`sequences`: all ever submitted to this engine. Returns the open ones."""
    opens = check_sequences(core, sequences)
    _check_plan(core, backend)
    _check_lanes(core, backend)
    _check_tiers(core)
    _check_media(core, opens)
    _check_reads(core, opens)
    assert core.admission.swapped_bytes == sum(s.saved.data.nbytes for s in opens if s.saved is not None), "swap"
    if not core.options.deterministic:  # there what is computed again would round differently
        assert core.admission.swapped_bytes <= core.options.swap_bytes, "more is swapped than the limit says"
    assert core.scheduler.restore_cost.room == core.options.swap_bytes - core.admission.swapped_bytes
    assert core.drafter._warm <= {seq.id for seq in opens}, "drafts of sequences that have ended"
    slots, taken = core.admission.slots, Counter(seq.slot for seq in opens if seq.slot is not None)
    assert slots._users == taken and set(slots._free) == set(range(slots._count)) - set(taken), "slots"


def _handed_in(command):
    """The sequences that a command of the mailbox brings."""
    return command.refuse.args[0] if getattr(command.refuse, "func", None) is _fail else ()


def check_sequences(core, sequences):
    """Returns those that are open."""
    coming = {seq for command in core._mail for seq in _handed_in(command)}
    opens = [seq for seq in sequences if seq.state is not SequenceState.ENDED and seq not in coming]
    running, waiting = core.running, core.waiting
    assert {*running, *waiting} == set(opens) and len(running) + len(waiting) == len(opens), "sequences lost"
    for seq in running:
        assert seq.lane is not None and seq.state in SEATED and seq.saved is None, seq
    for seq in waiting:
        assert (
            seq.lane is None and seq.state not in (SequenceState.PREFILL, SequenceState.DECODE) and not seq.num_computed
        ), seq
    for seq in opens:
        assert not seq.draft and (seq.drafts is None or seq.drafts.tried is None), f"{seq} has a draft between steps"
        assert seq.spec.choice not in seq.stream.ended
    late = core.outputs.late
    assert {s for s in late if s.state is not SequenceState.ENDED} == {
        s for s in opens if s.state is SequenceState.AWAITING_MASK
    }
    for seq in sequences:
        if seq.state is SequenceState.ENDED:
            assert seq.lane is None and seq.saved is None and seq.spec.choice in seq.stream.ended, seq
    return opens


def _check_plan(core, backend):
    """Looking prefixes up and planning change nothing, and an equal situation gets an equal plan."""
    before = _kept(core)
    fail_in, backend.fail_in = getattr(backend, "fail_in", None), None  # a failure is the engine's to meet
    plans = [core._plan(core.clock()) for _ in range(2)]
    backend.fail_in = fail_in
    assert plans[0] == plans[1], "plans of one situation differ"
    assert _kept(core) == before, "planning has effects"


def _kept(core):
    """All that a plan could change, in order where the order decides who is evicted."""
    memory, reads = core.memory, core.reads
    lanes, host = memory.lanes, memory.host
    sequences = [(seq, seq.state, seq.lane, [*seq.checkpoints]) for seq in (*core.running, *core.waiting)]
    holders = [*memory.tree.holders()]
    reading = [] if reads is None else [(f, r.state, {*r.until}, {*r.holders}) for f, r in reads._reads.items()]
    answered = set() if reads is None else {*reads._answered}
    turns = core.scheduler.turns, dict(core.scheduler.served)
    return (
        sequences,
        memory.resident.best(),
        [*lanes.lengths],
        [*lanes.generations],
        host.used,
        host.reserved,
        host.states(),
        memory.checkpoints.states(),
        holders,
        reading,
        answered,
        turns,
    )


def _check_lanes(core, backend):
    memory = core.memory
    lanes, kv = memory.lanes, backend._kv
    memory.check()
    assert lanes.held == {seq.lane for seq in core.running} and len(lanes.held) == len(core.running), "lanes held"
    assert lanes.used_cells == backend.used_cells <= lanes.num_cells, "cells"
    for lane in lanes.free:
        assert not kv[lane], "a free lane is not empty"
    for seq in core.running:
        lane = seq.lane
        assert lanes.lengths[lane] == seq.num_computed == len(kv[lane]), (seq, len(kv[lane]), lanes.lengths[lane])
        assert _same(kv[lane], seq.tokens), f"{seq}: the lane has other tokens"
        assert memory.timelines[lane].cache_key == seq.spec.cache_key
    for lane in lanes.resident:
        tokens = memory.timelines[lane].tokens
        assert lanes.lengths[lane] == len(kv[lane]) == len(tokens) and _same(kv[lane], tokens), "a resident prefix"


def _same(kv, tokens):
    """The fake model numbers rows of images differently."""
    return all(a == b or (a < 0 and b < 0) for a, b in zip(kv, tokens))


def _check_tiers(core):
    host, checkpoints = core.memory.host, core.memory.checkpoints
    entries = host.states()
    assert host.used == sum(entry.num_bytes for entry in entries) <= max(0, host.limit), "host memory"
    pins = host.pins
    assert pins.used == sum(state.num_bytes for state in pins._pins) <= pins.limit, "pins"
    assert {id(state) for state in pins._pins} <= {id(entry) for entry in entries}, "a pin of nothing"
    points = checkpoints.states()
    assert checkpoints.used == sum(point.num_bytes for point in points) <= max(0, checkpoints.limit), "checkpoints"
    tree, files = core.memory.tree, [] if core.disk is None else list(core.disk._known.values())
    tree.check()
    lanes = [core.memory.timelines[lane] for lane in core.memory.timelines]
    here = (
        [lane for lane in lanes if lane.tokens] + entries + points + files + [p for file in files for p in file.points]
    )
    assert Counter(map(id, here)) == Counter(map(id, tree.holders())), "the tree"


def _check_reads(core, opens):
    reads = core.reads
    if reads is None:
        assert not any(seq.state is SequenceState.AWAITING_DISK for seq in opens)
        return
    awaiting = [seq for read in reads._reads.values() for seq in read.until]
    assert len(awaiting) == len(set(awaiting)) == reads.num_waiting, "who waits for a file waits for one"
    assert set(awaiting) == {seq for seq in opens if seq.state is SequenceState.AWAITING_DISK}, "nobody reads for them"
    assert {seq for read in reads._reads.values() for seq in read.holders} <= {s for s in opens if s.lane is None}
    assert reads._answered <= set(opens) and reads.held == sum(stored.size for stored in reads._reads)


def _check_media(core, opens):
    encoder = core.encoder
    if encoder is None:
        return
    pins = Counter(
        (s.spec.cache_key.scope, s.media.spans[n].chunk.key) for s in opens if s.media is not None for n in s.media.rows
    )
    assert dict(pins) == encoder._pins, "rows pinned by nobody"
    assert encoder.used == sum(rows.nbytes for rows in encoder._rows.values())
    waiting = {seq for seq, _ in encoder._line}
    assert waiting == {seq for seq in opens if seq.state is SequenceState.AWAITING_ENCODER}, "nobody encodes for them"
