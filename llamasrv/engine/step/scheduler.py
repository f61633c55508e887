"""Decides what to compute next.

`plan(Situation) -> Plan`, both frozen: it changes nothing, and equal situations get equal plans. The core looks
prefixes up before and carries the plan out afterwards. Has no lock, clock, thread or library.

    1. every running sequence that owes one token goes in
    2. prompt tokens fill the gap that readers have (step_policy.py)
    3. newcomers by priority, then fair share per owner, then age; followers of a prefix that is being computed wait
       for it
    4. admission is optimistic: cells must last until it has paid off, not until the end (preemption.py)
    5. deferrable sequences run only while there are no others, and yield their places to any that arrive; only urgent
       ones run beside another, their prompts beside its decodes alone, and beside several where these hardly feel it
       or it is pressing; and one that has been there for OVERDUE seconds, the oldest
    6. a step computes with one set of adapters; the sets take turns
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import chain
from math import inf

from llamasrv.domain.sequence_spec import Urgency
from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.base.interface import Backend, Together
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.kv.match import FOLLOW, Match
from llamasrv.engine.kv.newcomers import Newcomers
from llamasrv.engine.media.turns import is_at_media, lacks_rows, media_parts
from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.filling import any_exact
from llamasrv.engine.step.order import WaitingSequences
from llamasrv.engine.step.plan import Hit, Plan, PlanDraft, PlanTurns, Pool, Situation
from llamasrv.engine.step.preemption import RestoreCost, growth, left, victim
from llamasrv.engine.step.step_policy import SMALLEST, Piece, StepPolicy

LOOK_AHEAD = 4  # waiting sequences examined per free place, so that a long queue costs little
AWAY = 60.0  # seconds between two checks for owners that are gone
GUESTS = 4  # one extra place per 4, for owners with nothing running
DEFERRED_SECONDS = 0.05  # longest step of deferrable sequences: a newcomer waits for its end
BESIDE_SECONDS = 0.003  # the same within QUIET_SECONDS of another request
QUIET_SECONDS = 5.0
FELT = 0.05  # max share by which urgent deferrable sequences may lengthen a step of several streams
OVERDUE = 60.0  # seconds after which a deferrable sequence runs beside others: on a busy server none would end


MAY_WAIT = tuple(SequenceState)

Lookup = Callable[[Sequence], "Match | None"]


class Scheduler:
    """`parallel`: how many sequences run at once; `target`: seconds of a step while any sequence decodes."""

    def __init__(
        self,
        *,
        parallel: int,
        batch_size: int,
        ubatch_size: int,
        target: float = 0.2,
        deterministic: bool = False,
        one_prompt: bool = False,
        shares: bool = True,
        exact_rows: int = 0,
    ) -> None:
        """`shares`: whether the cells of a prefix are held once, however many sequences begin with it. `exact_rows`:
        what steps for log-probabilities are filled up to, and from where on attention takes rows together."""
        self.newcomers: Callable[[], Newcomers] = Newcomers
        self.parallel = parallel
        self.one_prompt = one_prompt  # at most one sequence per step has several tokens
        self.batch_size = batch_size
        self.ubatch_size = ubatch_size
        self.target = target
        self.deterministic = deterministic
        self.shares = shares
        self.exact_rows = exact_rows
        self.cost = CostModel(tile_rows=exact_rows)
        self.restore_cost = RestoreCost(self.cost)
        self.served: dict[str, float] = {}  # tokens per owner
        self._next_look, self._were_here = -inf, set[str]()  # next check of owners, and those seen at the last one
        self._policy = StepPolicy(self.cost, batch_size=batch_size, ubatch_size=ubatch_size, target=target)
        self.holds_until = -inf  # on the engine's clock: until then deferrable sequences are held back
        self.turns = PlanTurns()  # after the last plan that was carried out

    def look(
        self,
        waiting: WaitingSequences,
        running: Iterable[Sequence],
        pool: Pool,
        now: float,
        lookup: Lookup,
        states: Collection[SequenceState] = MAY_WAIT,
    ) -> Situation:
        """The situation, with the prefixes of the sequences that a step can admit; the others are not looked up.
        `states`: of waiting sequences that may be admitted."""
        situation = Situation(tuple(running), pool, now, self.turns)
        seated = [s for s in situation.running if s.spec.deferrable]
        if not waiting and not seated:
            return situation
        oldest = waiting.oldest(states, deferrable=True)
        others_wait = waiting.oldest(states, deferrable=False) is not None
        extra: list[Sequence] = []
        deferrable = False
        if seated or oldest is not None:
            if others_wait or len(seated) < len(situation.running):
                situation, extra = self._set_aside(situation, seated, oldest, others_wait)
            elif now < self.holds_until:
                return situation._replace(running=(), resting=situation.running)
            else:
                deferrable = True
                longest = DEFERRED_SECONDS if now - self.holds_until > QUIET_SECONDS else BESIDE_SECONDS
                situation = situation._replace(most_seconds=min(self.target, longest))
        if not (extra or (oldest is not None if deferrable else others_wait)):
            return situation

        decodes, prompts, _ = _by_need(situation.running)
        num_running, besides = len(decodes) + len(prompts), None
        places = self.parallel - num_running
        if places <= 0 and len(self.served) > 1:
            most = min(self.parallel + -(-self.parallel // GUESTS), self.batch_size, pool.max_outputs)
            places, besides = most - num_running, {s.spec.owner for s in (*decodes, *prompts)}
        usable = min(places, pool.available_lanes)
        line: list[Sequence] = []
        if places > 0:
            most = usable * LOOK_AHEAD + 1
            line = waiting.first(most, now, self.served, states, deferrable=deferrable, extra=extra, besides=besides)
        budget = self.batch_size - sum([s.owed for s in prompts])
        hits = self._look_up(line[: usable * LOOK_AHEAD], budget, situation.resting, lookup)
        return situation._replace(
            hits=hits,
            places=usable,
            any_wait=True,
            more_wait=len(hits) < len(line),
            lacks_lanes=bool(line) and usable < places,
        )

    def _set_aside(
        self, situation: Situation, seated: list[Sequence], oldest: Sequence | None, others_wait: bool
    ) -> tuple[Situation, list[Sequence]]:
        """Beside other sequences the deferrable ones are set aside, but for those that are urgent or overdue: those
        `seated` keep their lanes without a step until these are needed. `oldest`: of those that wait; returned if it is
        one of these."""
        here = [*seated, *([] if oldest is None else [oldest])]
        first = min(here, key=lambda s: s.arrived)
        late = [s for s in here if s.urgency or s is first and situation.now - s.arrived >= OVERDUE]
        others = [s for s in situation.running if not s.spec.deferrable]
        if len(others) > 1:
            overdue = situation.now - OVERDUE
            late = [s for s in late if _is_pressing(s) or s.arrived <= overdue or self._is_hardly_felt(s, len(others))]
        if any(_is_patient(s, situation.now) for s in late):
            if others_wait or any(s.owed > 1 for s in others):
                late = [s for s in late if not _is_patient(s, situation.now)]
            else:  # hardly longer than without it; one other is probably what needs it soon
                step = self.cost.rows.predict(len(others) + sum(s.owed == 1 for s in late))
                longest = step + (FELT * step if len(others) > 1 else DEFERRED_SECONDS)
                if not any(_is_pressing(s) for s in late):
                    situation = situation._replace(most_seconds=min(self.target, longest))
        resting = tuple([s for s in seated if s not in late])
        running = tuple([s for s in situation.running if s not in resting])
        waits = [oldest] if oldest is not None and oldest in late else []
        return situation._replace(running=running, resting=resting), waits

    def _is_hardly_felt(self, seq: Sequence, num_others: int) -> bool:
        """Whether the least that a step can do for a sequence makes it hardly longer for that many streams."""
        rows = self.cost.rows
        alone = rows.predict(num_others)
        more = self.cost.prompt_seconds(SMALLEST) if seq.owed > 1 else rows.predict(num_others + 1) - alone
        return more <= FELT * alone

    def _look_up(
        self, line: list[Sequence], budget: int, resting: tuple[Sequence, ...], lookup: Lookup
    ) -> tuple[Hit, ...]:
        """The sequences of a line that a step of `budget` prompt tokens can reach, with the prefixes found. Those of
        `resting` sequences do not grow: none waits for them."""
        hits: list[Hit] = []
        begun, still = self.newcomers(), [s.lane for s in resting]
        for seq in line:
            if budget <= 0 and begun:
                break
            match = None if seq.saved is not None else lookup(seq)
            if match is not None and match.coming and match.lane in still:
                match = replace(match, coming=0)
            start = seq.saved.length if seq.saved is not None else match.length if match is not None else 0
            leader = begun.ahead_of(seq)
            hits.append(Hit(seq, match, start, leader))
            waits = match is not None and (match.file is not None or match.coming >= FOLLOW)
            waits = waits or seq.media is not None and lacks_rows(seq, start)
            if waits or leader is not None and leader[1] - start >= FOLLOW:
                continue
            begun.add(seq)
            budget -= seq.num_tokens - start
        return tuple(hits)

    def plan(self, situation: Situation) -> Plan:
        decodes, prompts, media = _by_need(situation.running)
        others = prompts or situation.any_wait or situation.resting or self.deterministic
        if not others and len(decodes) <= situation.pool.reclaimable_cells:  # most steps
            turns, decodes, _ = _next_adapters(situation.turns, decodes, [])
            parts = tuple([(s, 1) for s in decodes])
            return Plan(parts=parts, num_decodes=len(decodes), adapters=turns.current, turns=turns)
        plan = PlanDraft(situation.turns, [], [], [], [], [], [])
        self._fill(plan, situation, decodes, prompts, media)
        return plan.freeze()

    def _fill(
        self,
        plan: PlanDraft,
        situation: Situation,
        decodes: list[Sequence],
        prompts: list[Sequence],
        media: list[Sequence],
    ) -> None:
        now, pool = situation.now, situation.pool
        resting = situation.resting
        cells = self._make_room(plan, decodes, prompts, resting, pool.reclaimable_cells) - len(decodes)
        starts = {hit.seq.id: hit.start for hit in situation.hits}
        newcomers = [hit.seq for hit in situation.hits]
        exact = self.exact_rows if any_exact([*prompts, *newcomers]) else 0

        def most(due: list[Sequence]) -> int:
            pieces = _pieces([s for s in due if s not in media], starts, now)
            return self._policy.choose(decodes, pieces, now, situation.most_seconds, least_rows=exact)

        budget = most([*prompts, *newcomers])
        self._mark_growing(plan, situation)
        if not plan.preempt:  # do not re-admit what was just preempted
            kept_out = self._admit(plan, situation, decodes, prompts, cells, budget)
            if kept_out and resting:
                # A plan that takes lanes away admits none: matches must be looked up again after it.
                plan.preempt += self.restore_cost.leaving(resting)
                plan.admit.clear()
        prompts += [s for s, _ in plan.admit if s.media is None]  # with media, the first part is known once seated
        plan.encode += [(s, s.num_computed) for s in media if lacks_rows(s, s.num_computed) and s not in plan.preempt]
        if self.deterministic:
            lacking = [s for s, _ in plan.encode]
            able = [s for s in decodes + prompts if s not in lacking]
            self._one_alone(plan, able, starts, pool.max_outputs)
            return
        # The last step of media rows delayed the streams: prompts after it wait for one more step.
        after_rows = not media and situation.turns.had_media
        if situation.turns.had_media:
            plan.turns = plan.turns._replace(had_media=False)
        if media and self._rows_next(plan, situation.turns.had_media, media, decodes, prompts, cells, now):
            return
        prompts = [s for s in prompts if s not in media]
        if len(plan.admit) < len(newcomers) and prompts:
            budget = min(budget, most(prompts))  # without those that are kept out, which may have had less behind them
        plan.turns, decodes, prompts = _next_adapters(plan.turns, decodes, prompts)
        plan.adapters = plan.turns.current
        plan.parts = [(s, 1) for s in decodes]
        plan.num_decodes = len(decodes)
        if not (plan.parts and after_rows):
            outputs = pool.max_outputs - plan.num_decodes
            self._put_in_prompts(plan, prompts, starts, budget, cells, outputs, now)

    def _put_in_prompts(
        self,
        plan: PlanDraft,
        prompts: list[Sequence],
        starts: dict[int, int],
        budget: int,
        cells: int,
        outputs: int,
        now: float,
    ) -> None:
        """Add chunks of prompts, within the step's budget, the cells, and the rows of logits available."""
        rest = {s.id: _rest(s, starts.get(s.id, s.num_computed)) for s in prompts}
        prompts.sort(key=lambda s: _place(s, rest[s.id], now))
        shares = _shares(budget, prompts, rest)
        for seq in prompts:
            count = min(rest[seq.id], shares[seq.spec.owner], cells)
            rows_out = 1
            if seq.is_scored:
                count = rows_out = min(count, outputs)
            if count < 1 or outputs < 1:
                continue
            if self.one_prompt and plan.num_prompt:
                break
            plan.parts.append((seq, count))
            plan.num_prompt += count
            shares[seq.spec.owner] -= count
            cells -= count
            outputs -= rows_out

    def _rows_next(
        self,
        plan: PlanDraft,
        had_turn: bool,
        media: list[Sequence],
        decodes: list[Sequence],
        prompts: list[Sequence],
        cells: int,
        now: float,
    ) -> bool:
        """Whether this step computes media rows; adds the parts if so."""
        gone = [*plan.preempt, *(s for s, _ in plan.encode)]
        ready = [s for s in media if s not in gone]
        others = bool(decodes) or any(s not in media for s in prompts)
        if ready and not (others and had_turn):
            rows = self._policy.media_rows(decodes, others, now)
            plan.parts = media_parts(ready, rows, cells=cells, ubatch_size=self.ubatch_size)
        if plan.parts:
            plan.turns = plan.turns._replace(had_media=True)
            plan.adapters = plan.parts[0][0].spec.cache_key.adapters
            plan.num_prompt = sum(count for _, count in plan.parts)
        elif len(ready) > 1 and not others:  # deadlock: each holds some cells, none has enough
            plan.preempt.append(max(ready, key=lambda s: (s.admitted or 0.0, s.id)))
        return bool(plan.parts)

    def account(self, step: StepRows, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        work = step.work
        rows = work.decodes + step.num_drafted
        self.cost.learn(work.prompt, rows, seconds - step.draft_seconds, work.own_cells, work.foreign_cells)
        for seq, count in step.parts:
            self.served[seq.spec.owner] = self.served.get(seq.spec.owner, 0.0) + count

    def charge(self, seq: Sequence, tokens: int) -> None:
        """Count `tokens` that the step computed for a sequence beyond its part."""
        self.served[seq.spec.owner] = self.served.get(seq.spec.owner, 0.0) + tokens

    def drop_owners(self) -> None:
        """The engine is idle: drop all counts, so that no owner accrues credit while away and the table stays small."""
        self.served.clear()

    def note_owners(self, now: float, waiting: Iterable[Sequence], running: list[Sequence]) -> None:
        """The same on a busy engine, for owners absent at two checks in a row."""
        if now < self._next_look:
            return
        self._next_look = now + AWAY
        here = {s.spec.owner for s in waiting} | {s.spec.owner for s in running}
        self.served = {owner: served for owner, served in self.served.items() if owner in here | self._were_here}
        self._were_here = here

    def arrive(self, seq: Sequence) -> None:
        """Register a newcomer; a new owner starts level with the one served least."""
        if seq.spec.owner not in self.served:
            self.served[seq.spec.owner] = min(self.served.values(), default=0.0)

    def _make_room(
        self,
        plan: PlanDraft,
        decodes: list[Sequence],
        prompts: list[Sequence],
        resting: tuple[Sequence, ...],
        cells: int,
    ) -> int:
        """Get cells for the decodes: preempt deferrable sequences first, then those cheapest to restore. Returns the
        cells available."""
        for seq in reversed(resting):
            if len(decodes) + 1 <= cells:
                break
            plan.preempt.append(seq)
            cells += seq.num_computed - seq.reused
        while len(decodes) > cells or (not decodes and prompts and cells < 1):
            leaves = victim(decodes + prompts, self.restore_cost.seconds)
            (decodes if leaves in decodes else prompts).remove(leaves)
            plan.preempt.append(leaves)
            cells += leaves.num_computed - leaves.reused
            if not decodes and not prompts:
                break
        return cells

    def _admit(
        self,
        plan: PlanDraft,
        situation: Situation,
        decodes: list[Sequence],
        prompts: list[Sequence],
        cells: int,
        budget: int,
    ) -> bool:
        """Choose newcomers. Returns whether a lack of lanes or cells keeps one out."""
        places = situation.places
        owed = sum(s.owed for s in prompts)
        budget -= owed
        cells -= owed
        growing = [(left(s), s.num_tokens - s.reused) for s in (*decodes, *prompts)]
        taken: dict[int | None, int] = {}  # by lane: cells of its prefix that newcomers of this plan hold
        for seq, match, have, leader in situation.hits:
            if not places:
                return situation.lacks_lanes
            if budget <= 0 and plan.admit:
                return False
            if match is not None and match.file is not None:
                plan.read.append((seq, match))
                continue
            if match is not None and match.coming >= FOLLOW:
                continue
            if seq.media is not None and lacks_rows(seq, have):
                plan.encode.append((seq, have))
                continue
            if leader is not None:
                plan.marks.append(leader)
                if leader[1] - have >= FOLLOW:
                    continue
            need = seq.num_tokens + 1
            if match is not None and match.lane is not None and self.shares:
                need -= max(match.num_held, min(have, taken.get(match.lane, 0)))
            alone = not (decodes or prompts or plan.admit or situation.resting)
            growing.append((left(seq), need))
            if not alone:
                ahead = self.restore_cost.steps_to_pay_off(len(growing) - 1, seq.num_tokens)
                if need + growth(growing, ahead) > cells:
                    return True  # a smaller one behind might fit, but would starve this one
            plan.admit.append((seq, match))
            if match is not None:
                taken[match.lane] = max(have, taken.get(match.lane, 0))
            places -= 1
            cells -= need
            budget -= seq.num_tokens - have
        return situation.lacks_lanes and not places and situation.more_wait

    def in_order(self, waiting: WaitingSequences, now: float, states: Collection[SequenceState]) -> list[Sequence]:
        """All waiting sequences in the current order, the next one first."""
        both = (waiting.first(len(waiting), now, self.served, states, deferrable=late) for late in (False, True))
        return [*chain.from_iterable(both)]

    @staticmethod
    def _mark_growing(plan: PlanDraft, situation: Situation) -> None:
        """Have running sequences leave a checkpoint where those that wait for their prefixes diverge."""
        coming = [m for _, m, _, _ in situation.hits if m is not None and m.lane is not None and m.coming]
        if coming:
            in_lane = {s.lane: s for s in situation.running}
            plan.marks += [(in_lane[m.lane], m.length + m.coming) for m in coming if m.lane in in_lane]

    def _one_alone(self, plan: PlanDraft, sequences: list[Sequence], starts: dict[int, int], max_outputs: int) -> None:
        """Deterministic mode: one sequence per step, in turn, with prompts cut at fixed positions. Kernels round
        differently for one row and for many, and depending on where a prompt is cut; alone, a sequence's results do not
        depend on others."""
        if sequences:
            seq = sequences[plan.turns.alone % len(sequences)]
            plan.turns = plan.turns._replace(alone=plan.turns.alone + 1)
            start = starts.get(seq.id, seq.num_computed)
            count = min(_rest(seq, start), self.ubatch_size - start % self.ubatch_size)
            if seq.media is not None and (number := seq.media.at(start)) is not None:
                span = seq.media.spans[number]
                count = min(span.end - start, self.ubatch_size - (start - span.start) % self.ubatch_size)
            if seq.is_scored:
                count = min(count, max_outputs)
            plan.parts = [(seq, count)]
            plan.adapters = seq.spec.cache_key.adapters
            plan.num_decodes, plan.num_prompt = (1, 0) if seq.num_tokens - start == 1 else (0, count)


def _by_need(running: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence], list[Sequence]]:
    """(decodes, prompts, media): sequences that owe one token, those that owe more, and those of the latter that
    continue with media rows. A sequence that waits for a mask owes nothing."""
    decodes: list[Sequence] = []
    prompts: list[Sequence] = []
    media: list[Sequence] = []
    for seq in running:
        owed = len(seq.tokens) - seq.num_computed
        if seq.media is not None and is_at_media(seq):
            media.append(seq)
            prompts.append(seq)
        elif owed == 1:
            decodes.append(seq)
        elif owed:
            prompts.append(seq)
    return decodes, prompts, media


def _next_adapters(
    turns: PlanTurns, decodes: list[Sequence], prompts: list[Sequence]
) -> tuple[PlanTurns, list[Sequence], list[Sequence]]:
    """The turns with the set of adapters that is next, and the sequences that use it. New sets queue behind the present
    ones."""
    here = dict.fromkeys([s.spec.cache_key.adapters for s in (*decodes, *prompts)])
    if len(here) == 1 and turns.adapters == (*here,):
        return turns, decodes, prompts
    line = [a for a in turns.adapters if a in here]
    line += [a for a in here if a not in line]
    if len(line) > 1:
        decodes = [s for s in decodes if s.spec.cache_key.adapters == line[0]]
        prompts = [s for s in prompts if s.spec.cache_key.adapters == line[0]]
    return turns._replace(adapters=(*line[1:], *line[:1])), decodes, prompts


def scheduler_for(backend: Backend, options: EngineOptions) -> Scheduler:
    """A scheduler for what a back end can do."""
    return Scheduler(
        parallel=min(options.places, backend.num_lanes),
        batch_size=backend.batch.capacity,
        ubatch_size=backend.ubatch_size,
        target=options.step_target,
        deterministic=options.deterministic or backend.together is Together.ONE_LANE,
        one_prompt=backend.together is Together.ONE_PROMPT,
        shares=backend.traits.can_share,
        exact_rows=backend.exact_rows,
    )


def _place(seq: Sequence, rest: int, now: float) -> float:
    """Where a prompt is in the order in which a step computes them: the shortest remainder first, for more first tokens
    sooner; discounted by age, so that none starves."""
    return rest / (1.0 + max(0.0, now - seq.arrived))


def _pieces(prompts: list[Sequence], starts: dict[int, int], now: float) -> list[Piece]:
    """What is left of the prompts, in that order. `starts`: where newcomers begin, by id."""
    behind = {s.id: starts.get(s.id, s.num_computed) for s in prompts}
    prompts = sorted(prompts, key=lambda s: _place(s, s.num_tokens - behind[s.id], now))
    return [(s.num_tokens - behind[s.id], behind[s.id]) for s in prompts]


def _is_pressing(seq: Sequence) -> bool:
    return seq.urgency is Urgency.PRESSING


def _is_patient(seq: Sequence, now: float) -> bool:
    """Whether it is urgent and owes a prompt that gives way to all others."""
    return seq.urgency is not Urgency.NONE and seq.owed > 1 and now - seq.arrived < OVERDUE


def _shares(budget: int, prompts: list[Sequence], rest: dict[int, int]) -> dict[str, int]:
    """Prompt tokens of this step per owner: equal shares; what one does not need goes to the others."""
    wanted: dict[str, int] = {}
    for seq in prompts:
        wanted[seq.spec.owner] = wanted.get(seq.spec.owner, 0) + rest[seq.id]
    shares = {}
    for n, (owner, tokens) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        shares[owner] = min(tokens, budget // (len(wanted) - n))
        budget -= shares[owner]
    return shares


def _rest(seq: Sequence, start: int) -> int:
    """Number of tokens from `start` on that one batch can take: up to the next image or sound."""
    return (seq.num_tokens if seq.media is None else seq.media.text_end(start, seq.num_tokens)) - start
