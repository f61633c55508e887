"""The engine thread's loop.

    take mail -> plan -> fill batch -> decode -> sample -> deliver -> account

All of it runs on the engine thread, and what it owns belongs to that thread: the backend, the books, who waits and who
runs. Other threads come in by engine.py, read its figures, and put commands in the mailbox. Knows tokens and bytes;
knows no protocol, no HTTP and no chat. README.md in this folder has the invariants.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from llamasrv.domain.events import FinishReason, TokenLogprob
from llamasrv.engine.channels import Doorbell, End, Mailbox, PromptComputed, PromptScored, Stream
from llamasrv.engine.disk import DiskStore
from llamasrv.engine.embedder import Embedder
from llamasrv.engine.interface import Backend, DecodeFailed, LoadFailed, OutOfCells, Progress
from llamasrv.engine.memory import Memory
from llamasrv.engine.metrics import EngineMetrics
from llamasrv.engine.native_pool import NativePool
from llamasrv.engine.options import EngineOptions, Status
from llamasrv.engine.prefix_cache import Match
from llamasrv.engine.sampling.grammar_compiler import GrammarCompiler
from llamasrv.engine.sampling.sampler import log_probability
from llamasrv.engine.sampling.state import Choice, Ending, SamplingState
from llamasrv.engine.sampling.step_sampler import Row, StepSampler
from llamasrv.engine.scheduler import Plan, Pool, Scheduler
from llamasrv.engine.sequence import Sequence, State
from llamasrv.engine.slots import Slots
from llamasrv.engine.spill import Spilled
from llamasrv.errors import DeadlineExceeded, EngineFailure, LlamasrvError, TooSlow, Unavailable

log = logging.getLogger("llamasrv.engine")

IDLE_CHECK = 1.0  # seconds without work after which the books are checked
STUCK_CHECK = 0.05  # seconds after which those whom nothing could be done for are looked at again
WINDOW_ALONE, WINDOW_BURST = 0.03, 0.1  # of the next step: so long the first waits for others
WINDOW_LONGEST = 0.03  # seconds
WINDOW_SHORTEST = 0.0005  # seconds; less is not worth a wait
REQUEST_SECONDS = 0.0003  # of the HTTP side's work for one that comes or goes
MAX_FAILED_STEPS = 3  # in a row; then the context is made anew


class EngineCore:
    """What one engine thread has and does. Tests drive it by hand: `open`, then `turn` by turn."""

    def __init__(
        self,
        open_backend: Callable[[Progress], Backend],
        options: EngineOptions | None = None,
        *,
        name: str = "model",
        clock: Callable[[], float] = time.monotonic,
        metrics: EngineMetrics | None = None,
        on_status: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.options = options or EngineOptions()
        self.metrics = metrics or EngineMetrics()
        self._on_status = on_status
        self.status = Status("loading")
        self.clock = clock
        self._open_backend = open_backend
        self._mailbox = Mailbox()
        self._doorbell = Doorbell()
        self.embedder = Embedder(clock=clock)
        self._num_ended = 0  # written by the engine thread only
        self._requests_seen = 0  # come and gone, up to the last step
        self._stopping = False
        self.pool = NativePool()
        self.grammars = GrammarCompiler(self.pool)
        self._late: list[Sequence] = []  # whose logits are kept until their mask is there
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._swapped_bytes = 0
        self._failed_in_a_row = 0
        self._next_expiry_check = 0.0
        self._woke = 0.0
        self._moved: float | None = None  # when the last turn began
        self._burst = 0  # most sequences at work together since a start last waited for company
        self._stuck = False  # the last turn found nothing to do: only mail or time can change that
        self._urgent = False  # somebody waits for a first token or an end
        self._disk: DiskStore | None = None
        self.backend: Backend
        self.memory: Memory
        self.scheduler: Scheduler

    @property
    def status(self) -> Status:
        return self._status

    @status.setter
    def status(self, status: Status) -> None:
        self._status = status
        if self._on_status is not None:
            self._on_status()

    def _run(self) -> None:
        try:
            self.open()
        except LoadFailed as e:
            self.status = Status("failed", reason=str(e))
            self.pool.close()
            return
        except Exception:
            log.exception("loading %s failed", self.name)
            self.status = Status("failed", reason="loading the model failed; the log has the cause")
            self.pool.close()
            return
        if self.embedder.backend is not None:
            self.embedder.start()
        try:
            while not self._stopping:
                self._turn_safely()
        finally:
            self.close()

    def open(self) -> None:
        """Load the model. Raises LoadFailed."""
        self.backend = self._open_backend(self._loading)
        try:
            self._prepare()
        except BaseException:
            self.backend.close()  # the weights would stay in memory
            raise
        if self.status.state == "loading":  # a drain may have come in between
            self.status = Status("ready", 1.0)

    def _prepare(self) -> None:
        """Make what goes with the model."""
        options = self.options
        self.scheduler = Scheduler(
            parallel=min(options.parallel, self.backend.num_lanes),
            batch_size=self.backend.batch.capacity,
            ubatch_size=self.backend.ubatch_size,
            target=options.step_target,
            row_multiple=self.backend.row_multiple,
            deterministic=options.deterministic,
        )
        for timing in self.backend.timings * 3:
            self.scheduler.cost.learn(*timing)
        self._sampler = StepSampler(self.pool, options.threads or os.cpu_count() or 1, self.backend.vocab.size)
        if self.backend.generates:
            self.grammars.open(self.backend.vocab)
        self._disk = self._open_disk()
        self._forget_context()
        self.embedder.backend = self.backend.embeddings

    def close(self) -> None:
        """Fail what is open, free everything."""
        self._take_mail(wait=False)
        self._fail_all(Unavailable("The server is shutting down."))
        self._doorbell.ring()
        self.status = Status("stopped")
        self.embedder.close()
        if self._disk is not None:
            self._disk.close()
        self.grammars.close()
        self.pool.close()
        self.backend.close()

    def turn(self, *, wait: bool = False) -> bool:
        """One turn of the loop; with `wait`, sleep while there is nothing to do. True when something was computed."""
        self._take_mail(wait)
        if wait and self.waiting and not self.running:
            self._wait_for_burst()
        worked = bool(self.waiting or self.running) and self.step()
        self._stuck = not worked
        if not self.running:
            self._doorbell.ring()  # else the next step does it
        return worked

    def step(self) -> bool:
        started = self.clock()
        self._expire(started)
        if self._late:
            self._catch_up()
        plan = self._plan(started)
        self._carry_out(plan)
        self._burst = max(self._burst, len(self.running))
        if not plan.parts:
            if self._late:
                self._sampler.wait_for_masks(self._sampler.begin_masks(_states(self._late)), IDLE_CHECK)
            return bool(plan.preempt or self._late)
        self.backend.batch.fill(plan.parts)
        filled = self.clock()
        if not self._decode(plan):
            return True
        decoded = self.clock()
        for seq, choice in self._sample():
            self._advance(seq, choice)
        ended = self.clock()
        parts = self.metrics.parts
        parts["plan"].observe(filled - started)
        parts["decode"].observe(decoded - filled)
        parts["sample"].observe(ended - decoded)
        self._account(plan, ended - started)
        return True

    def _turn_safely(self) -> None:
        self._moved = self.clock()
        try:
            self.turn(wait=True)
        except Exception:
            # Our own mistake: tell everybody, start over with a fresh context.
            log.exception("the engine loop failed; its context is made anew")
            self.metrics.restarts += 1
            self.status = Status("failed", reason="the engine loop failed and is being restarted")
            try:
                self._fail_all(EngineFailure("The engine failed while working on this request."))
                self._doorbell.ring()
                self.backend.reset()
                self._forget_context()
                self.status = Status("ready", 1.0)
            except Exception:
                log.exception("the engine cannot be restarted")
                self.status = Status("failed", reason="the engine failed and cannot be restarted")
                self._stopping = True

    def _loading(self, share: float) -> bool:
        if self.status.state == "loading":
            self.status = Status("loading", share)
        return not self._stopping

    def _forget_context(self) -> None:
        self.slots = Slots()
        self.memory = Memory(
            self.backend, cache_bytes=self.options.cache_bytes, time=self.scheduler.cost, metrics=self.metrics,
            disk=self._disk,
        )  # fmt: skip

    def _open_disk(self) -> DiskStore | None:
        options, backend = self.options, self.backend
        if not options.disk_bytes or options.disk_folder is None or not options.digest:
            return None
        if backend.split or not backend.generates:
            return None
        disk = DiskStore(
            options.disk_folder, options.disk_bytes,
            facts={"model": options.digest, **backend.state_facts}, largest=options.cache_bytes,
            adapter_digests=tuple(adapter.digest for adapter in backend.adapters), can_cut=backend.can_cut_saved,
            work=self.pool.queue(1).put, post=self._mailbox.put, give=lambda entry: self.memory.spilled.put(entry),
            metrics=self.metrics,
        )  # fmt: skip
        return disk

    def _take_mail(self, wait: bool) -> None:
        timeout: float | None = 0
        if wait and not self.running:
            timeout = (STUCK_CHECK if self._stuck else 0) if self.waiting else IDLE_CHECK
        mail = self._mailbox.take(timeout)
        if not mail and timeout == IDLE_CHECK:
            self.memory.lanes.check()
            self.scheduler.forget_owners(self.waiting, self.running)
            self._burst = 0
        self._follow(mail)

    def _follow(self, mail: list[Any]) -> None:
        for act, argument in mail:
            act(argument)

    def _wait_for_burst(self) -> None:
        """Wait a moment for those who may come along with the first, longer where there was company just now.

        What is computed together ends together: steps that are full for as long as they last are worth more than a
        start a few milliseconds sooner.
        """
        started = self.clock()
        share = WINDOW_BURST if self._burst > 1 else WINDOW_ALONE
        places = self.scheduler.parallel
        while self.waiting and len(self.waiting) < places and not 1 < self._burst <= len(self.waiting):
            step = self.scheduler.cost.predict(sum(s.owed for s in self.waiting), 0)
            left = started + min(WINDOW_LONGEST, share * step) - self.clock()
            if left < WINDOW_SHORTEST:
                break
            mail = self._mailbox.take(left)
            if not mail:
                break
            self._follow(mail)
        self._burst = 0

    # commands

    def _arrive(self, sequences: list[Sequence]) -> None:
        self.metrics.requests += 1
        for seq in sequences:
            self.scheduler.arrive(seq)
        self.waiting += sequences

    def _cancel(self, stream: Stream) -> None:
        for seq in self._open_of(stream):
            self._end(seq, FinishReason.CANCELLED)

    def _give_up_unread(self, stream: Stream) -> None:
        for seq in self._open_of(stream):
            self.metrics.unread += 1
            self._end(seq, FinishReason.FAILED, error=TooSlow("The answer was not read."))

    def _open_of(self, stream: Stream) -> list[Sequence]:
        return [s for s in (*self.running, *self.waiting) if s.stream is stream]

    def _fail_all(self, error: LlamasrvError) -> None:
        for seq in [*self.running, *self.waiting]:
            self._end(seq, FinishReason.FAILED, error=error)

    def _answer(self, question: tuple[Callable[[], Any], Stream]) -> None:
        act, stream = question
        try:
            stream.put(act())
        except LlamasrvError as error:
            stream.put(error)

    def _preempt_on_request(self, seq: Sequence) -> None:
        if seq.state is State.RUNNING:
            self._preempt(seq)

    def _expire(self, now: float) -> None:
        if now < self._next_expiry_check:
            return
        self._next_expiry_check = now + 0.05
        here = (*self.running, *self.waiting)
        for seq in [s for s in here if s.spec.deadline is not None and now >= s.spec.deadline]:
            self._end(seq, FinishReason.DEADLINE, error=DeadlineExceeded("The request's time limit passed."))

    # plan and its consequences

    def _plan(self, now: float) -> Plan:
        lanes = self.memory.lanes
        pool = Pool(lanes.reclaimable_cells, len(lanes.free) + len(lanes.resident), self.backend.max_outputs)
        return self.scheduler.plan(self.waiting, self.running, pool, now, self.memory.lookup, self.memory.common)

    def _carry_out(self, plan: Plan) -> None:
        for seq in plan.preempt:
            self._preempt(seq)
        if plan.admit:
            self._admit_all(plan)
            room = self.scheduler.batch_size - sum(count for _, count in plan.parts)
            plan.parts = [(seq, _with_forced(seq, count, room // len(plan.admit))) for seq, count in plan.parts]
            plan.num_prompt = sum(count for _, count in plan.parts[plan.num_decodes :])
        if self.running:
            self.memory.clear_idle()
        self.memory.make_room(sum(count for _, count in plan.parts))

    def _admit_all(self, plan: Plan) -> None:
        failed = set()
        for i, (seq, match) in enumerate(plan.admit):
            try:
                # An admission before this one may have moved what was matched.
                self._admit(seq, self.memory.lookup(seq) if i and seq.saved is None else match)
            except Exception:
                log.exception("sequence %d cannot be admitted", seq.id)
                failed.add(id(seq))
                if seq.lane is not None:
                    self.memory.drop(seq.lane)
                    seq.lane, seq.num_computed = None, 0
                self._end(seq, FinishReason.FAILED, error=EngineFailure("Computing this request could not be begun."))
        self.waiting = [s for s in self.waiting if s.state is State.WAITING]
        if failed:
            plan.parts = [part for part in plan.parts if id(part[0]) not in failed]

    def _admit(self, seq: Sequence, match: Match | None) -> None:
        """Seat a sequence that waits; it runs once all of this is done."""
        now = self.clock()
        memory = self.memory
        branches = memory.branches(match)
        seq.lane = memory.seat(match)
        seq.num_computed = memory.lanes.lengths[seq.lane]
        if seq.saved is not None:
            seq.num_computed = memory.restore(seq.lane, seq.saved, seq.saved.length)
            self._swapped_bytes -= seq.saved.data.nbytes
            seq.saved = None
        elif match is not None and match.spilled is not None:
            seq.num_computed = memory.restore(seq.lane, match.spilled, match.length)
        if seq.admitted is None:
            seq.reused = seq.num_computed
            self.metrics.cached_tokens += seq.num_computed
            self.metrics.last_wait = now - seq.arrived
            self.metrics.queue_time.observe(now - seq.arrived)
        seq.admitted = now
        if branches:  # its lane holds what is shared, and nothing else yet
            memory.keep(seq.lane, seq.tokens, seq.spec.realm)
        memory.cache.put(seq.lane, seq.tokens, seq.spec.realm)
        if seq.sampling is None:
            seq.sampling = SamplingState(seq.spec, seq.tokens, seq.constraint, self.backend)
            if not self.options.deterministic:
                seq.sampling.jump_with_prompt()
        seq.state = State.RUNNING
        self.running.append(seq)
        self._tell_progress(seq)

    def _tell_progress(self, seq: Sequence) -> None:
        """How much of its prompt is computed, where its client asked for that."""
        if seq.spec.reports_progress and seq.first_token is None:
            computed = min(seq.num_computed, seq.num_prompt)
            seconds = self.clock() - seq.admitted if computed > seq.reused and seq.admitted is not None else 0.0
            seq.stream.put(PromptComputed(seq.spec.index, seq.num_prompt, seq.reused, computed, seconds))

    def _preempt(self, seq: Sequence) -> None:
        """Take the lane away; keep its KV in host memory if there is room, else it is computed again."""
        self.metrics.preemptions += 1
        exact = self.options.deterministic  # computing it again would round differently
        room = self.options.swap_bytes - self._swapped_bytes
        if seq.num_computed and (room > 0 or exact):
            data = self.backend.save(seq.lane)
            if data.nbytes <= room or exact:
                seq.saved = Spilled(seq.tokens[: seq.num_computed], data)
                self._swapped_bytes += data.nbytes
                self.metrics.swaps += 1
        self.memory.drop(seq.lane)
        seq.lane = None
        seq.num_computed = 0
        seq.state = State.WAITING
        self.running.remove(seq)
        self.waiting.insert(0, seq)

    # decode

    def _decode(self, plan: Plan) -> bool:
        """True when the batch was computed."""
        self._wake_readers(plan)
        masks = self._sampler.begin_masks(_states(seq for seq, _ in plan.parts))
        try:
            self.backend.use(plan.adapters)
            self.backend.front_end_load = self._front_end_load(plan)
            self.backend.decode()
        except OutOfCells:
            self._relieve(plan)
            return False
        except DecodeFailed as e:
            log.error("a step failed: %s", e)
            self._step_failed(plan, fatal=e.fatal)
            return False
        self._failed_in_a_row = 0
        for seq, count in plan.parts:
            seq.num_computed += count
            self.memory.lanes.extend(seq.lane, count)
            self._tell_progress(seq)
        self._sampler.wait_for_masks(masks)
        return True

    def _front_end_load(self, plan: Plan) -> float:
        """For what share of this step the HTTP side will be busy with those who came and went since the last one."""
        requests = self.metrics.requests + self._num_ended
        changed, self._requests_seen = requests - self._requests_seen, requests
        if not changed or self.options.deterministic:
            return 0.0
        return REQUEST_SECONDS * changed / self.scheduler.cost.predict(plan.num_prompt, plan.num_decodes)

    def _wake_readers(self, plan: Plan) -> None:
        """Before a decode, not after: whoever wakes works while the library computes, and leaves this thread the GIL.

        Where steps are much shorter than anybody can see, several share a wake-up: a socket write costs as much as the
        step of a tiny model. First tokens and ends never wait, and nothing waits for a long step.
        """
        now = self.clock()
        soon = now + self.scheduler.cost.predict(plan.num_prompt, plan.num_decodes)
        if self._urgent or plan.num_prompt or soon - self._woke >= self.options.coalesce:
            self._doorbell.ring()
            self._woke, self._urgent = now, False

    def _relieve(self, plan: Plan) -> None:
        """The library found no cells although the books say there are some: give way one by one."""
        if self.memory.lanes.resident:
            self.memory.evict()
        elif len(self.running) > 1:
            self._preempt(max(self.running, key=lambda s: (s.admitted or 0.0, s.id)))
        else:
            for seq, _ in plan.parts:
                self._end(seq, FinishReason.FAILED, error=EngineFailure("There is no memory left for this request."))

    def _step_failed(self, plan: Plan, *, fatal: bool) -> None:
        """Only the sequences of this batch fail; what their lanes hold is not trusted again."""
        self.metrics.failed_steps += 1
        self._failed_in_a_row += 1
        for seq, _ in plan.parts:
            self._end(seq, FinishReason.FAILED, error=EngineFailure("Computing this request failed."))
        if fatal or self._failed_in_a_row >= MAX_FAILED_STEPS:
            for seq in list(self.running):
                self.memory.drop(seq.lane)
                seq.lane, seq.num_computed, seq.state = None, 0, State.WAITING
                self.running.remove(seq)
                self.waiting.insert(0, seq)
            self.metrics.restarts += 1
            self.backend.reset()
            self._forget_context()
            self._failed_in_a_row = 0

    # sample and deliver

    def _sample(self) -> list[tuple[Sequence, Choice]]:
        """A token for each sequence whose last one was computed."""
        batch = self.backend.batch
        if not batch.num_outputs:
            return []
        rows = self.backend.logits(batch.num_outputs)
        ready: list[tuple[Sequence, Row]] = []
        end = 0
        for seq, count in batch.outputs:
            start, end = end, end + count
            if seq.spec.prompt_logprobs and len(seq.scores) < seq.num_prompt:
                self._score(seq, rows[start:end], seq.num_computed - count)
            if seq.num_computed < len(seq.tokens):
                continue
            if seq.spec.max_tokens == 0:
                self._end(seq, FinishReason.LENGTH)
                continue
            state = seq.sampling
            assert state is not None
            if state.num_undelivered and self._deliver_forced(seq, state):
                continue
            row = rows[end - 1]
            if state.late_row is not None:
                continue  # preempted and computed again: its mask is still waited for
            if state.is_late:
                state.late_row = row.copy()
                self._late.append(seq)
                continue
            ready.append((seq, (state, row)))
        choices = self._sampler.choose([row for _, row in ready])
        chosen: list[tuple[Sequence, Choice]] = []
        for (seq, _), choice in zip(ready, choices):
            if choice is None:
                self._fail_choice(seq)
            else:
                chosen.append((seq, choice))
        return chosen

    def _deliver_forced(self, seq: Sequence, state: SamplingState) -> bool:
        """Deliver what was computed with the prompt. True where that was all."""
        self._note_first_token(seq)
        ending = state.deliver(seq.stream.put)
        if ending is None:
            return False
        self._finish(seq, ending)
        return True

    def _fail_choice(self, seq: Sequence) -> None:
        log.error("sequence %d: the model produced nothing to choose from", seq.id)
        self._end(seq, FinishReason.FAILED, error=EngineFailure("The model produced nothing to choose from."))

    def _catch_up(self) -> None:
        """Choose for those whose mask has come; nobody waited for it but themselves."""
        late, self._late = self._late, []
        for seq in late:
            state = seq.sampling
            if seq.state is State.ENDED or state is None or state.late_row is None:
                continue
            if state.is_late:
                self._late.append(seq)
                continue
            row, state.late_row = state.late_row, None
            (choice,) = self._sampler.choose([(state, row)])
            if choice is None:
                self._fail_choice(seq)
            else:
                self._advance(seq, choice)

    def _score(self, seq: Sequence, rows: np.ndarray, start: int) -> None:
        """Log-probabilities of prompt tokens: row i belongs to the token at start + i + 1."""
        pieces, top = self.backend.vocab.pieces, seq.spec.logprobs or 0
        if not seq.scores:
            seq.scores.append(TokenLogprob(seq.tokens[0], pieces[seq.tokens[0]], None))
        for i in range(len(seq.scores) - 1 - start, len(rows)):
            position = start + i + 1
            if position < seq.num_prompt:
                seq.scores.append(log_probability(rows[i], seq.tokens[position], top, pieces))
        if len(seq.scores) == seq.num_prompt:
            seq.stream.put(PromptScored(seq.spec.index, tuple(seq.scores)))

    def _advance(self, seq: Sequence, choice: Choice) -> None:
        """One more token, and those that must follow it; the end of the sequence where it ends."""
        self._note_first_token(seq)
        state, put = seq.sampling, seq.stream.put
        assert state is not None
        ending = state.accept(choice.token, choice.logprobs, put)
        if ending is None and state.constraint is not None:
            ending = state.jump_forward(put)
        if ending is not None:
            self._finish(seq, ending)

    def _finish(self, seq: Sequence, ending: Ending) -> None:
        if ending.error is not None:
            log.warning("sequence %d failed: %s", seq.id, ending.error)
        self._end(seq, ending.reason, stop=ending.stop, error=ending.error)

    def _note_first_token(self, seq: Sequence) -> None:
        if seq.first_token is None:
            seq.first_token = self.clock()
            self._urgent = True

    def _end(
        self, seq: Sequence, reason: FinishReason, *, stop: str | None = None, error: LlamasrvError | None = None
    ) -> None:
        """Every sequence ends here, once; its client hears of it."""
        assert seq.state is not State.ENDED, seq
        if seq.sampling is not None:
            if reason is not FinishReason.STOP_STRING:
                seq.sampling.flush(seq.stream.put)
            seq.sampling.close()
        lane = seq.lane
        if seq.state is State.RUNNING:
            self.running.remove(seq)
            trusted = reason is not FinishReason.FAILED
            # What was not computed is not coming any more.
            computed = seq.tokens[: seq.num_computed]
            self.memory.leave(seq.lane, computed, seq.spec.realm, keep=trusted and seq.spec.cache_prompt)
            if trusted and seq.spec.cache_prompt:
                self.slots.left(seq.lane, computed, seq.spec.realm)
            seq.lane = None
        else:
            self.waiting.remove(seq)
        if seq.saved is not None:
            self._swapped_bytes -= seq.saved.data.nbytes
            seq.saved = None
        seq.state, seq.finish, seq.ended = State.ENDED, reason, self.clock()
        end = self._farewell(seq, reason, stop, error, lane)
        self._num_ended += 1
        seq.stream.open_choices -= 1
        seq.stream.put(end)
        self._urgent = True

    def _farewell(
        self, seq: Sequence, reason: FinishReason, stop: str | None, error: LlamasrvError | None, lane: int | None
    ) -> End:
        """The End of a sequence, and its share in the figures."""
        m = self.metrics
        ended = seq.ended or 0.0
        admitted = seq.admitted if seq.admitted is not None else ended
        first = seq.first_token if seq.first_token is not None else ended
        generated = seq.num_generated - seq.num_undelivered
        # Nothing is charged for that was not computed: a client may have left the queue.
        prompt = seq.num_prompt if seq.first_token is not None else min(seq.num_prompt, seq.num_computed)
        m.finished[reason.value] = m.finished.get(reason.value, 0) + 1
        m.generated_tokens += generated
        m.longest_sequence = max(m.longest_sequence, seq.num_tokens)
        if generated:
            m.first_token_time.observe(first - seq.arrived)
        if generated > 1:
            m.token_time.observe((ended - first) / (generated - 1))
        return End(
            seq.spec.index, reason, stop, error, prompt, seq.reused, generated,
            max(0.0, admitted - seq.arrived), max(0.0, first - admitted), max(0.0, ended - first),
            lane,
        )  # fmt: skip

    def _account(self, plan: Plan, seconds: float) -> None:
        self.scheduler.account(plan, seconds)
        m = self.metrics
        m.steps += 1
        m.busy_rows += plan.num_decodes
        m.prompt_tokens += plan.num_prompt
        m.step_time.observe(seconds)
        m.batch_rows.observe(plan.num_decodes + plan.num_prompt)
        if plan.num_prompt:
            m.prefill_seconds += seconds
        else:
            m.decode_seconds += seconds


def _states(sequences: Iterable[Sequence]) -> Iterator[SamplingState]:
    return (seq.sampling for seq in sequences if seq.sampling is not None)


def _with_forced(seq: Sequence, count: int, room: int) -> int:
    """How many of its tokens a step computes: as planned, and those forced since then where there is room."""
    if count < seq.owed - seq.num_undelivered:
        return count
    return min(seq.owed, count + room)
