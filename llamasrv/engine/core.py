"""The engine's loop.

    take mail -> plan -> fill batch -> decode -> verify and sample -> deliver -> account

All of it runs on the engine thread, which alone owns the context, the lane tables and the running and waiting
sequences. Other threads post commands to the mailbox, read streams, and read the view (engine.py is their handle).
Knows tokens and bytes; knows no protocol, no HTTP and no chat. README.md in this folder lists the invariants.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from llamasrv.concurrency import Mailbox
from llamasrv.domain.events import FinishReason
from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec, Urgency
from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.base.channels import Doorbell, Stream, TokenItem
from llamasrv.engine.base.interface import Backend, DecodeFailed, OutOfCells
from llamasrv.engine.base.machine import available_cpus
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.base.options import EngineOptions, Status
from llamasrv.engine.base.sequence import Sequence, SequenceState, end_of, tell_progress
from llamasrv.engine.base.step_watch import StepWatch
from llamasrv.engine.kv.disk_reads import DiskReads
from llamasrv.engine.kv.disk_tier import open_disk
from llamasrv.engine.kv.disk_writer import DiskWriter
from llamasrv.engine.kv.host_cache import HostCache
from llamasrv.engine.kv.manager import KVCacheManager
from llamasrv.engine.media.encoder import Encoder
from llamasrv.engine.sampling.state import Ending, TokenChoice
from llamasrv.engine.step.admission import LaneAdmission
from llamasrv.engine.step.context_shift import shift
from llamasrv.engine.step.drafter import Drafter
from llamasrv.engine.step.filling import fill_up
from llamasrv.engine.step.finish import finish
from llamasrv.engine.step.order import WaitingSequences
from llamasrv.engine.step.outputs import Outputs
from llamasrv.engine.step.pacing import IDLE_CHECK, MASK_CHECK, Deadlines, Pacer
from llamasrv.engine.step.plan import Plan, Pool
from llamasrv.engine.step.queue_places import QueuePlaces
from llamasrv.engine.step.refused_steps import RefusedSteps
from llamasrv.engine.step.scheduler import MAY_WAIT, QUIET_SECONDS, scheduler_for
from llamasrv.engine.view import ViewPublisher
from llamasrv.errors import DeadlineExceeded, EngineFailure, LlamasrvError, TooSlow

if TYPE_CHECKING:
    from llamasrv.engine.embedder import Embedder
    from llamasrv.engine.sampling.grammar_compiler import GrammarCompiler
    from llamasrv.engine.speaker import Speaker

log = logging.getLogger("llamasrv.engine")

SEATING = 0.02  # seconds of a step after which no further sequence is given a lane while others run
LATE = 0.02  # seconds of a step after which no further late token is accepted before it
CHECK_EVERY = 64  # steps between two checks of a lane's length against the lane table; a check takes 2 µs


class CoreCommand(NamedTuple):
    """A command in the mailbox. `act` is called with the core between two steps. If the thread has ended, `refuse` is
    called instead, for commands with a waiting caller."""

    act: Callable[[EngineCore], object]
    refuse: Callable[[LlamasrvError], object] | None = None


@dataclass(frozen=True)
class Shared:
    """Thread-safe objects that the engine thread shares with others."""

    mailbox: Mailbox[CoreCommand]
    doorbell: Doorbell
    publisher: ViewPublisher
    metrics: EngineMetrics
    embedder: Embedder
    speaker: Speaker
    grammars: GrammarCompiler
    pool: NativePool
    prefixes: HostCache
    should_stop: Callable[[], bool]


class EngineCore:
    """The loop and its state, for one loaded model. Tests without a thread call `turn`."""

    def __init__(
        self,
        backend: Backend,
        options: EngineOptions,
        shared: Shared,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.backend, self.options, self.clock = backend, options, clock
        self.check_every = CHECK_EVERY
        self.mailbox, self.metrics, self.prefixes = shared.mailbox, shared.metrics, shared.prefixes
        mailbox, metrics, pool = shared.mailbox, shared.metrics, shared.pool
        self.scheduler = scheduler_for(backend, options)
        self.waiting = WaitingSequences()  # those without a lane
        self.running: list[Sequence] = []  # those that hold a lane
        self._mail: deque[CoreCommand] = deque()  # taken, not carried out yet: one that raises must not lose the others
        self.places = QueuePlaces(self.scheduler)
        self.outputs = Outputs(backend, pool, options.threads or available_cpus(), self._note_first_token)
        self._pace = Pacer(self.scheduler.cost, coalesce=options.coalesce)
        self._doorbell, self._publisher = shared.doorbell, shared.publisher
        self._refused = RefusedSteps(self)
        self._deadlines = Deadlines()
        self._served = -inf  # when a sequence that is not deferrable was last running
        self._watch = StepWatch(metrics.slow_step_parts, clock)
        self.encoder = _open_encoder(self)
        self.disk = open_disk(
            backend,
            options,
            self.prefixes.tree,
            work=pool.queue(1).put,
            post=lambda act: mailbox.put(CoreCommand(lambda _: act())),
            clock=clock,
            metrics=metrics,
        )
        self.reads: DiskReads | None = None
        if self.disk is not None:
            self.reads = DiskReads(
                self.disk,
                clock,
                keep=lambda state: self.memory.take_back(state),
                reserve=lambda size: self.memory.host.reserve(size),
            )
        self._open_tables()
        self._publish()  # from here on `Engine.stalled_seconds` notices a turn that hangs

    def turn(self, *, wait: bool = False) -> bool:
        """One turn of the loop; with `wait`, sleep while there is nothing to do. True if it made progress."""
        self._take_mail(wait)
        started = self._watch.begin()
        worked = bool(self.running or self.waiting) and self.step(started)
        if self._writer is not None:
            self._writer.tick(self.clock(), self.running)
        self._pace.stuck = not worked
        self._publish()
        if not (worked and self.running):
            self._doorbell.ring()  # otherwise the next step rings
        self._watch.mark("deliver")
        return worked

    def step(self, started: float) -> bool:
        self.scheduler.note_owners(started, self.waiting, self.running)
        for seq in self._deadlines.passed(started, self.running, self.waiting):
            self.end(seq, Ending(FinishReason.DEADLINE, error=DeadlineExceeded("The request timed out.")))
        if self.outputs.late:
            for seq, outcome in self.outputs.overdue():
                self._advance(seq, outcome)
                if self.clock() - started > LATE:
                    break
            if spoiled := self.outputs.take_spoiled():
                self._refused.look_at(spoiled)
        if self.reads is not None and self.reads.num_waiting:
            self.reads.tick(started)
        plan = self._plan(started)
        self._watch.mark("plan")
        step = self._carry_out(plan)
        self._pace.burst = max(self._pace.burst, len(self.running))
        if not step.parts:
            if self.outputs.late:
                self.outputs.wait_for_late(MASK_CHECK)
            return bool(plan.preempt or self.outputs.late)
        self.backend.batch.fill(step.parts, step.num_filling)
        filled = self._watch.mark("fill")
        computed = self._decode(step)
        decoded = self._watch.begin()
        if not computed:
            return True
        for seq, outcome in self.outputs.take(self.drafter):
            self._advance(seq, outcome)
        spoiled = self.outputs.take_spoiled()
        if spoiled or self.backend.batch.num_outputs:
            self._refused.look_at(spoiled)
        ended = self._watch.mark("sample")
        self.scheduler.account(step, ended - started)
        self.drafter.account(step, ended - started)
        self.metrics.note_step(step, filled - started, decoded - filled, ended - decoded)
        return True

    def reset(self) -> None:
        """Start over with a fresh context and empty tables. Open sequences wait for a lane and continue from their
        tokens; `Sequence.drop_context` says what else they keep."""
        self.waiting, self.running = WaitingSequences([*self.running, *self.waiting]), []
        for seq in self.waiting:
            seq.drop_context()
        self.backend.reset()
        self.prefixes.clear()
        self._open_tables()
        self._refused.in_a_row = 0
        self._publisher.is_stale = True
        self._publish()  # after a failure the loop may sleep before its next turn publishes

    def close(self, error: LlamasrvError, *, keep: bool = True) -> None:
        """Fail all open sequences, including those still in the mailbox. With `keep`, save prefixes to host memory and
        disk."""
        self._take_mail(wait=False)
        self.fail_all(error)
        if keep and self.backend.generates and not self.backend.traits.split:
            try:
                self.memory.save_all()
                if self._writer is not None:
                    self._writer.write_all()
            except Exception:
                log.exception("the prefixes in KV could not be saved")
        self._publish()
        self._doorbell.ring()

    def release(self) -> None:
        """Call it after `close`: finishes pending writes to disk, and frees the context."""
        if self.encoder is not None:
            self.encoder.close()
        if self.disk is not None:
            self.disk.close()
        self.outputs.chains.close()
        self.backend.close()

    # commands from the mailbox

    def arrive(self, sequences: list[Sequence]) -> None:
        self.metrics.requests += 1
        self._pace.turnover += 1
        self._publisher.is_stale = True
        for seq in sequences:  # all of them, before anything can fail: whoever waits is failed with the loop
            self.waiting.add(seq)
        for seq in sequences:
            self.scheduler.arrive(seq)
            self.places.asked |= seq.spec.reports_progress
            if seq.media is not None and self.encoder is not None:
                match = self.memory.lookup(seq)  # what is, or soon will be, in KV
                self.encoder.look_ahead(seq, 0 if match is None else match.length + match.coming)

    def cancel(self, stream: Stream[TokenItem]) -> None:
        for seq in [s for s in (*self.running, *self.waiting) if s.stream is stream]:
            self.end(seq, Ending(FinishReason.CANCELLED))

    def hurry(self, stream: Stream[TokenItem], urgency: Urgency) -> None:
        for seq in [s for s in self.waiting if s.stream is stream and s.spec.deferrable]:
            self.waiting.hurry(seq, urgency)
        for seq in [s for s in self.running if s.stream is stream and s.spec.deferrable]:
            seq.urgency = urgency

    def give_up_unread(self, stream: Stream[TokenItem]) -> None:
        for seq in [s for s in (*self.running, *self.waiting) if s.stream is stream]:
            self.metrics.unread += 1
            self.end(seq, Ending(FinishReason.FAILED, error=TooSlow("The client did not read the response in time.")))

    def hold_session(self, spec: SequenceSpec) -> None:
        seconds = self.options.session_seconds
        if self.disk is not None:
            self.memory.sessions.remember(spec.session, spec.owner, spec.tokens, spec.cache_key)
        self.memory.sessions.hold(spec.session, spec.owner, spec.tokens, spec.cache_key, seconds)
        self._publisher.is_stale = True

    def supersede(self, tokens: array[int], cache_key: CacheKey) -> None:
        self.memory.supersede(tokens, cache_key)
        self._publisher.is_stale = True

    def close_session(self, session: str, owner: str) -> None:
        self.memory.sessions.close(session, owner)
        self._publisher.is_stale = True

    def hold_deferrable(self, seconds: float) -> None:
        self.scheduler.holds_until = self.clock() + seconds

    def fail_all(self, error: LlamasrvError) -> None:
        for seq in [*self.running, *self.waiting]:
            self.end(seq, Ending(FinishReason.FAILED, error=error.but()))

    def abandon_all(self, error: LlamasrvError) -> None:
        """After the loop has failed: end every open sequence without touching the lane table or the context, since
        either may be broken. `reset` recreates both."""
        left = [*self.running, *self.waiting]
        self.running, self.waiting = [], WaitingSequences()
        for seq in left:
            if seq.state is not SequenceState.ENDED:
                self._finish(seq, Ending(FinishReason.FAILED, error=error.but()))
        if self.encoder is not None:
            self.encoder.release_all()
        if self.reads is not None:
            self.reads.release_all()
        self.outputs.late.clear()
        for seq in left:
            seq.drop_context()
            seq.saved = None
            if seq.sampling is not None:
                try:
                    seq.sampling.close()
                except Exception:
                    log.exception("the sampler of sequence %d cannot be closed", seq.id)

    def give_up(self, reason: str) -> None:
        """The model is unusable: fail all sequences and accept no more."""
        self.fail_all(EngineFailure("The model cannot compute this request."))
        self._publisher.set_status(Status("failed", reason=reason))

    # mail

    def _take_mail(self, wait: bool) -> None:
        """Carry out the commands in the mailbox; with `wait`, sleep as long as the pacing policy says."""
        pace, places = self._pace, self.scheduler.parallel
        if not self.running and not self.waiting and self.mailbox.is_empty:
            pace.turnover = 0  # requests that ended were answered while the engine was idle
        while True:
            seconds = 0.0
            if wait and not self._mail:
                seconds = pace.sleep_seconds(self.running, self.waiting, places, self.clock)
            mail = self.mailbox.take(seconds)
            if mail or self._mail:
                self._watch.begin()
                self._mail.extend(mail)
                while self._mail:
                    self._mail.popleft().act(self)
                self._watch.mark("mail")
            pace.stuck = pace.stuck and not mail
            if not mail or not seconds or not self.waiting:
                break  # an idle engine must ring for its answers at the turn's end, not after another sleep
        if not self.running and wait:
            pace.burst = 0  # the next burst starts from here
            if not mail and seconds == IDLE_CHECK:
                self.memory.check()
                self.scheduler.drop_owners()

    # plan, and carry it out

    def _plan(self, now: float) -> Plan:
        """Has no effects on what is kept, waits or runs."""
        lanes, reads = self.memory.lanes, self.reads
        some_wait = self.outputs.late or reads and reads.num_waiting or self.encoder and self.encoder.num_waiting
        states = (SequenceState.WAITING,) if some_wait else MAY_WAIT
        waiting = self.waiting
        if (suspect := self._refused.suspect) is not None:
            waiting = WaitingSequences([suspect] if suspect in waiting else [])
        num_lanes = len(lanes.free) + len(lanes.resident)
        pool = Pool(lanes.reclaimable_cells, num_lanes, self.backend.max_outputs)
        scheduler = self.scheduler
        return scheduler.plan(scheduler.look(waiting, self.running, pool, now, self.memory.lookup, states))

    def _carry_out(self, plan: Plan) -> StepRows:
        """Do what the plan says. Returns what is left to compute."""
        self.scheduler.turns = plan.turns
        for seq in plan.preempt:
            self.preempt(seq)
        for seq, cell in plan.encode:
            self._encode(seq, cell)
        for seq, match in plan.read:
            self.memory.read(seq, match)
        for seq, position in plan.marks:
            self.memory.checkpointing.mark(seq, position)
        absent = self._admit(plan) if plan.admit else []
        if self.places.asked:
            self.places.tell(self.waiting, self.clock())
        if self.running:
            self._evict_idle()
        self._watch.mark("seat")
        step = finish(plan, absent, batch_size=self.scheduler.batch_size, draft=self.drafter.draft)
        self._watch.begin()  # a draft model's computing is not the engine's time
        if step.num_prompt or plan.admit:
            fill_up(step, self.backend, self.memory.lanes, self.scheduler.cost)
        self.memory.make_room(step.num_decodes + step.num_prompt + step.num_drafted + step.num_filling)
        return step

    def _evict_idle(self) -> None:
        """Evict idle prefixes, which slow decodes down. Beside deferrable sequences, what a client has just left stays:
        it is probably what the client's next turn begins with."""
        now = self.clock()
        for seq in self.running:
            if not seq.spec.deferrable:
                self._served = now
                break
        if self._served == now or now - self._served >= QUIET_SECONDS:
            self.memory.evict_idle()

    def _admit(self, plan: Plan) -> list[Sequence]:
        """Seat the admitted sequences. One that cannot be seated fails alone. Returns those, and those for which this
        step has no time: copies of KV take 20 ms each, and all streams wait for them."""
        until = self.clock() + SEATING if self.running else inf
        seated, failed = self.admission.seat_all(plan.admit, until=until)
        for seq in failed:
            self.end(seq, Ending(FinishReason.FAILED, error=EngineFailure("This request could not be started.")))
        self.running += seated
        for seq in seated:
            self.waiting.remove(seq)
        for seq in seated:
            self._note_prompt(seq)
            self.drafter.expect(seq)
        self._publisher.is_stale = True
        return [*failed, *(seq for seq, _ in plan.admit[len(seated) + len(failed) :])]

    def _note_prompt(self, seq: Sequence) -> None:
        """More of a sequence's prompt is in KV: report progress, release encoded rows."""
        if seq.spec.reports_progress:
            tell_progress(seq, self.clock())
        if seq.media is not None and self.encoder is not None and seq.media.rows:
            self.encoder.computed(seq)

    def preempt(self, seq: Sequence, *, save: bool = True) -> None:
        """Take the lane from a running sequence; it resumes later. With `save`, its KV may be copied to host memory."""
        (self.admission.preempt if save else self.admission.unseat)(seq)
        self.running.remove(seq)
        self.waiting.add(seq)
        self._publisher.is_stale = True

    def _encode(self, seq: Sequence, cell: int) -> None:
        """Make a sequence wait until its images and sounds from `cell` on are encoded."""
        if seq.lane is not None:
            self.preempt(seq)
        assert self.encoder is not None
        self.encoder.want(seq, cell)

    # decode

    def _decode(self, step: StepRows) -> bool:
        """Returns True if the batch was computed."""
        num_prompt, num_decodes = step.num_prompt, step.num_decodes
        # Ring before the decode, not after: readers then work while the library computes, and do not compete with this
        # thread for the GIL.
        if self._pace.must_wake(self.clock(), num_prompt, num_decodes):
            self._doorbell.ring()
        masks = self.outputs.begin_masks([seq for seq, _ in step.parts if seq.constraint is not None])
        try:
            self.backend.use(step.adapters)
            self.backend.front_end_load = self._pace.front_end_load(num_prompt, num_decodes)
            self.backend.decode()
        except OutOfCells:
            self.drafter.withdraw(step)
            if not step.num_drafted:
                self._refused.out_of_cells(step)
            return False
        except DecodeFailed as e:
            self.drafter.withdraw(step)
            self._refused.failed(step, e)
            return False
        self._refused.in_a_row = 0
        if step.num_filling:
            last, count = step.parts[-1]
            self.backend.cut(last.seat, last.num_computed - last.shift + count + len(last.draft))
        extend = self.memory.lanes.extend
        for seq, count in step.parts:
            seq.num_computed += count
            extend(seq.seat, count)
            if seq.checkpoints and not seq.draft:  # a draft's rows in the lane are not verified yet
                self.memory.come_to_place(seq)
            if seq.state is SequenceState.PREFILL:
                self._note_prompt(seq)
        if not self.metrics.steps % self.check_every:
            self._check_lane(step)
        self.outputs.wait_for(masks)
        return True

    def _check_lane(self, step: StepRows) -> None:
        """Compare the lane table with the back end, for one of the sequences just computed."""
        seq, _ = step.parts[self.metrics.steps // self.check_every % len(step.parts)]
        if seq.media is None and seq.lane is not None:
            length, expected = self.backend.length(seq.lane), seq.num_computed + len(seq.draft)
            assert length == expected, f"lane {seq.lane} has {length} tokens, but the lane table has {expected}"

    # deliver

    def _advance(self, seq: Sequence, outcome: TokenChoice | Ending) -> None:
        """Deliver one token and the tokens that must follow it, or end the sequence."""
        ending: Ending | None
        if isinstance(outcome, TokenChoice):
            if seq.state is SequenceState.PREFILL:
                seq.enter(SequenceState.DECODE)
            if seq.first_token is None:
                self._note_first_token(seq)
            state, put = seq.own_sampling, seq.stream.put
            ending = state.accept(outcome.token, outcome.logprobs, put)
            if ending is None and state.constraint is not None:
                ending = state.jump_forward(put)
            if ending is None and state.must_shift:
                self.drafter.settle(seq)
                shift(self, seq)
        else:
            ending = outcome
        if ending is not None:
            if ending.error is not None:
                log.warning("sequence %d failed: %s", seq.id, ending.error)
            self.drafter.settle(seq)
            self.end(seq, ending)

    def _note_first_token(self, seq: Sequence) -> None:
        seq.first_token = self.clock()
        self._pace.urgent = True

    def end(self, seq: Sequence, ending: Ending) -> None:
        """End an open sequence. Its stream gets the End first, so that no error in the clean-up leaves a client
        waiting."""
        if seq.sampling is not None and ending.reason is not FinishReason.STOP_STRING:
            seq.sampling.flush(seq.stream.put)
        self._finish(seq, ending)
        group: WaitingSequences | list[Sequence] = self.waiting if seq.lane is None else self.running
        if self.encoder is not None:
            self.encoder.release(seq)
        self.memory.release(seq)
        self.drafter.release(seq)
        self.admission.release(seq, keep=ending.reason is not FinishReason.FAILED)
        if seq.sampling is not None:
            seq.sampling.close()
        group.remove(seq)

    def _finish(self, seq: Sequence, ending: Ending) -> None:
        """The only place where a sequence ends. Touches the sequence and counters, nothing else."""
        seq.ended = self.clock()
        seq.enter(SequenceState.ENDED)
        end = end_of(seq, ending)
        self.metrics.note_end(seq, end)
        self._publisher.num_ended += 1
        self._pace.turnover += 1
        seq.stream.finish(end)
        self._pace.urgent = self._publisher.is_stale = True

    # the view, and the state of a fresh context

    def _publish(self) -> None:
        now, memory = self.clock(), self.memory
        if not self._publisher.is_due(now):
            return
        self._publisher.publish(
            now,
            self.running,
            self.waiting,
            memory.lanes,
            self.admission.swapped_bytes,
            self.encoder.used if self.encoder is not None else 0,
            memory.host.pins,
            memory.sessions.standing,
        )

    def _open_tables(self) -> None:
        """Make everything that belongs to one context: the lane table and the objects built on it."""
        self.memory = KVCacheManager(
            self.backend,
            prefixes=self.prefixes.open(self.backend, self.options, self.clock, self.scheduler.cost.prompt_seconds),
            time=self.scheduler.cost,
            restore_cost=self.scheduler.restore_cost,
            metrics=self.metrics,
            disk=self.disk,
            reads=self.reads,
        )
        self.scheduler.newcomers = self.memory.newcomers
        self._writer = None if self.disk is None else DiskWriter(self.memory, self.disk, self.scheduler.cost)
        self.admission = LaneAdmission(
            self.memory,
            self.backend,
            self.options,
            self.metrics,
            self.scheduler.restore_cost,
            self.clock,
            self.outputs.chains,
            self.waiting,
        )
        self.drafter = Drafter(self.backend, self.memory.lanes, self.options, self.scheduler, self.metrics, self.clock)


def _open_encoder(core: EngineCore) -> Encoder | None:
    projector = core.backend.projector
    if projector is None:
        return None

    encoder = Encoder(
        projector,
        core.options.media_bytes,
        post=lambda result: core.mailbox.put(CoreCommand(lambda _: encoder.take(result))),
        fail=lambda seq, error: core.end(seq, Ending(FinishReason.FAILED, error=error)),
        metrics=core.metrics,
    )
    return encoder
