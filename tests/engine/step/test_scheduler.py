"""The scheduler decides from plain values: no engine, no thread, no clock."""

import sys
from random import Random

import pytest
from engine_driver import sequence as make_sequence
from plans import planned

from llamasrv.domain.sequence_spec import Urgency
from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.kv.match import FOLLOW, Match
from llamasrv.engine.kv.newcomers import Newcomers
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.step.order import AGEING, WaitingSequences, _rank
from llamasrv.engine.step.plan import Pool
from llamasrv.engine.step.scheduler import MAY_WAIT, OVERDUE, Scheduler


def make(**options):
    return Scheduler(**{"parallel": 4, "batch_size": 512, "ubatch_size": 128, "target": 0.1} | options)


def costs(scheduler, *, step=0.01, row=0.001, decode=0.0):
    """The scheduler with a cost model of exactly these seconds."""
    scheduler.cost.unknowns, scheduler.cost.noise = [step, row, decode, 0.0, 0.0], 0.0
    scheduler.cost.rows.learn(1, step + decode)
    return scheduler


def sequence(length, *, computed=0, arrived=0.0, **settings):
    seq = make_sequence(range(length), **settings)
    seq.num_computed, seq.arrived = computed, arrived
    seq.admitted = arrived if computed else None
    return seq


def plan(scheduler, waiting=(), running=(), *, cells=10_000, lanes=8, outputs=64, now=1.0, lookup=None):
    return planned(scheduler, waiting, running, Pool(cells, lanes, outputs), now, lookup=lookup or (lambda seq: None))


def admitted(result):
    return [seq for seq, _ in result.admit]


def test_every_running_sequence_that_owes_one_token_is_computed():
    running = [sequence(10, computed=9) for _ in range(3)]
    result = plan(make(), running=running)
    assert result.parts == [(seq, 1) for seq in running] and result.num_decodes == 3


def test_a_prompt_takes_the_whole_batch_when_nothing_decodes():
    scheduler = costs(make(), row=0.0005)
    new = sequence(2000)
    assert plan(scheduler, [new]).parts == [(new, 512)]


def test_a_prompt_takes_what_the_latency_target_leaves_beside_decodes():
    scheduler = make()
    costs(scheduler)
    decoding, new = sequence(10, computed=9), sequence(2000)
    parts = plan(scheduler, [new], [decoding]).parts
    assert parts[0] == (decoding, 1)
    assert parts[1] == (new, 63)


def beside_a_long_prompt(waiting, cells):
    """The prompt tokens of a step beside a stream, where cells have a price."""
    scheduler = costs(make())
    scheduler.cost.unknowns[3] = 0.001  # for 1,024 cells that a row passes
    long, decoding = sequence(20_000, computed=10_000, max_tokens=1), sequence(10, computed=9, max_tokens=10_000)
    result = plan(scheduler, waiting, [decoding, long], cells=cells)
    return {seq.num_tokens: count for seq, count in result.parts[1:]}, result.admit


def test_a_newcomer_that_is_kept_out_does_not_count_in_the_size_of_a_step():
    """Its short prompt made 248 rows seem possible, and all went to one with 13,000 cells behind it: 0.8 s."""
    alone, _ = beside_a_long_prompt([], cells=10_100)
    kept_out, admitted_ = beside_a_long_prompt([sequence(500)], cells=10_100)
    assert not admitted_ and kept_out == alone and alone[20_000] < 20
    taken, admitted_ = beside_a_long_prompt([sequence(500)], cells=30_000)
    assert admitted_ and taken[500] > 40


def test_one_prompt_mode_has_one_prompt_per_step():
    """The library computes ARWKV-7 and QRWKV6 wrongly if a batch has several tokens of two sequences."""
    decoding, first, second = sequence(10, computed=9), sequence(20), sequence(30)
    scheduler = make(one_prompt=True)
    result = plan(scheduler, [first, second], [decoding])
    assert result.parts == [(decoding, 1), (first, 20)] and result.num_prompt == 20
    assert admitted(result) == [first, second]


def test_a_prompt_advances_in_every_step():
    """Even if decodes alone exceed the target."""
    scheduler = make(target=0.000001)
    parts = plan(scheduler, [sequence(2000)], [sequence(10, computed=9)]).parts
    assert parts[1][1] >= 16


def test_several_prompts_share_one_batch():
    scheduler = costs(make())
    a, b = sequence(100), sequence(200)
    assert plan(scheduler, [a, b]).parts == [(a, 100), (b, 200)]


def test_the_shortest_remainder_goes_first_unless_another_is_old():
    scheduler = costs(make(ubatch_size=128), row=0.004)
    long, short = sequence(400, arrived=0.0), sequence(100, arrived=0.0)
    long.num_computed = 1
    assert plan(scheduler, [], [long, short]).parts[0] == (short, 100)
    short.arrived = 20.0
    assert plan(scheduler, [], [long, short], now=21.0).parts[0][0] is long


def test_no_more_run_than_places():
    assert len(plan(make(parallel=2), [sequence(5) for _ in range(5)]).admit) == 2
    assert len(plan(make(), [sequence(5) for _ in range(5)], lanes=1).admit) == 1


def test_admission_is_by_free_cells():
    running = sequence(100, computed=99)
    assert admitted(plan(make(), [sequence(100)], [running], cells=110)) == []
    assert len(admitted(plan(make(), [sequence(100)], [running], cells=150))) == 1


def test_cells_owed_to_running_prompts_are_not_given_to_newcomers():
    running = sequence(500, computed=100)
    assert admitted(plan(make(), [sequence(100)], [running], cells=480)) == []


def test_a_small_sequence_does_not_overtake_a_large_one_waiting_for_cells():
    large, small = sequence(300, arrived=0.0), sequence(10, arrived=1.0)
    running = sequence(100, computed=99)
    assert admitted(plan(make(), [large, small], [running], cells=200)) == []


def test_a_sequence_alone_is_always_admitted():
    new = sequence(300)
    assert admitted(plan(make(), [new], cells=300)) == [new]


def test_priority_goes_first_then_age():
    old, new, urgent = sequence(5, arrived=0.0), sequence(5, arrived=0.5), sequence(5, arrived=0.9, priority=1)
    assert admitted(plan(make(parallel=2), [old, new, urgent])) == [urgent, old]


def test_waiting_long_outweighs_priority():
    old, urgent = sequence(5, arrived=0.0), sequence(5, arrived=2 * AGEING, priority=1)
    assert admitted(plan(make(parallel=1), [urgent, old], now=2 * AGEING + 1)) == [old]


def test_owners_share_fairly():
    scheduler = make(parallel=1)
    greedy, modest = sequence(5, owner="greedy", arrived=0.0), sequence(5, owner="modest", arrived=1.0)
    for seq in (greedy, modest):
        scheduler.arrive(seq)
    scheduler.account(plan(scheduler, [], [sequence(50, computed=10, owner="greedy")]), 0.01)
    assert admitted(plan(scheduler, [greedy, modest])) == [modest]


def decoding(number, owner):
    return [sequence(10, computed=9, owner=owner) for _ in range(number)]


def with_owners(scheduler, *owners):
    """A scheduler that knows them."""
    for owner in owners:
        scheduler.arrive(sequence(1, owner=owner))
    return scheduler


def test_an_owner_with_nothing_running_gets_an_extra_place():
    scheduler = with_owners(make(parallel=4), "flood", "calm")
    flood, calm = sequence(10, owner="flood"), sequence(10, owner="calm", arrived=0.5)
    more = sequence(10, owner="calm", arrived=0.5)
    assert admitted(plan(scheduler, [flood, calm, more], decoding(4, "flood"))) == [calm]
    # one each, and one more place for four that there are
    assert admitted(plan(scheduler, [flood, more], [*decoding(4, "flood"), *decoding(1, "calm")])) == []
    third = sequence(10, owner="third")
    assert admitted(plan(scheduler, [third], [*decoding(4, "flood"), *decoding(1, "calm")])) == []


def test_with_one_owner_there_are_no_extra_places():
    assert admitted(plan(make(parallel=4), [sequence(10)], decoding(4, ""))) == []


def test_extra_places_stay_within_the_batch():
    scheduler = with_owners(make(parallel=4, batch_size=4), "flood", "calm")
    assert admitted(plan(scheduler, [sequence(10, owner="calm")], decoding(4, "flood"))) == []
    scheduler = with_owners(make(parallel=4), "flood", "calm")
    assert admitted(plan(scheduler, [sequence(10, owner="calm")], decoding(4, "flood"), outputs=4)) == []


def test_owners_share_a_step_s_prompt_tokens():
    """However many prompts an owner has, and however short."""
    scheduler = with_owners(make(parallel=8, batch_size=100), "flood", "calm")
    flood, calm = [sequence(40, computed=1, owner="flood") for _ in range(5)], sequence(90, computed=1, owner="calm")
    parts = plan(scheduler, [], [*flood, calm]).parts
    assert sum(count for seq, count in parts if seq is calm) == 50
    assert [count for seq, count in parts if seq is not calm] == [39, 11]


def test_unneeded_prompt_tokens_go_to_other_owners():
    scheduler = with_owners(make(parallel=8, batch_size=100), "flood", "calm")
    flood, calm = sequence(500, computed=1, owner="flood"), sequence(21, computed=1, owner="calm")
    assert plan(scheduler, [], [flood, calm]).parts == [(calm, 20), (flood, 80)]


def test_a_newcomer_has_no_credit_from_before():
    scheduler = make()
    scheduler.served = {"a": 1000.0, "b": 2000.0}
    scheduler.arrive(sequence(5, owner="new"))
    assert scheduler.served["new"] == 1000.0
    scheduler.drop_owners()
    assert scheduler.served == {}


def test_an_absent_owner_accrues_no_credit_on_a_busy_engine():
    """Owners were dropped only on an idle engine: on a busy server an owner who had been away for days went before all
    others until it had caught up."""
    scheduler = make()
    busy, guest = sequence(10, owner="busy"), sequence(10, owner="guest")
    for seq in (busy, guest):
        scheduler.arrive(seq)
    for minute in range(3):
        scheduler.charge(busy, 1000)
        scheduler.note_owners(60.0 * minute, [], [busy, guest] if not minute else [busy])
    assert scheduler.served == {"busy": 3000.0}
    scheduler.arrive(guest)
    assert scheduler.served["guest"] == 3000.0


def test_a_pause_between_two_requests_gains_no_advantage():
    scheduler = make()
    scheduler.arrive(sequence(10, owner="a"))
    scheduler.charge(sequence(10, owner="a"), 500)
    scheduler.note_owners(0.0, [], [sequence(10, owner="a")])
    for at in (1.0, 59.0, 60.0):
        scheduler.note_owners(at, [], [sequence(10, owner="b")])
    assert scheduler.served == {"a": 500.0}


def test_a_reused_prefix_is_not_computed_again():
    new = sequence(100)
    result = plan(make(), [new], lookup=lambda seq: Match(3, 90))
    assert result.admit == [(new, Match(3, 90))] and result.parts == [(new, 10)]


def test_a_follower_waits_while_its_prefix_is_being_computed():
    leader, follower = sequence(500, computed=100), sequence(510)
    coming = Match(0, 100, coming=400, held=True)
    assert admitted(plan(make(), [follower], [leader], lookup=lambda seq: coming)) == []
    there = Match(0, 500, coming=FOLLOW - 1, held=True)
    assert admitted(plan(make(), [follower], [leader], lookup=lambda seq: there)) == [follower]


def test_of_two_newcomers_with_a_common_prefix_one_leads():
    leader, follower, other = sequence(300), sequence(310), make_sequence([7] * 50)
    scheduler = costs(make())
    assert admitted(plan(scheduler, [leader, follower, other])) == [leader, follower]
    scheduler.newcomers = lambda: Newcomers(True)
    assert admitted(plan(scheduler, [leader, follower, other])) == [leader, other]


def test_the_youngest_is_preempted_when_cells_run_out():
    old, young = sequence(100, computed=99, arrived=0.0), sequence(100, computed=99, arrived=5.0)
    result = plan(make(), [sequence(10)], [old, young], cells=1)
    assert result.preempt == [young]
    assert result.parts == [(old, 1)]
    assert result.admit == [], "who had to give way must not be let in again at once"


def test_prompts_without_cells_do_not_deadlock():
    a, b = sequence(100, computed=50, arrived=0.0), sequence(100, computed=50, arrived=5.0)
    result = plan(make(), [], [a, b], cells=0)
    assert result.preempt == [b] and result.parts == [(a, 50)]


def test_a_preempted_sequence_resumes_before_newcomers():
    back, new = sequence(50, arrived=9.0), sequence(50, arrived=0.0)
    back.saved, back.admitted = SavedState(back.tokens[:49], None), 9.5
    result = plan(make(parallel=1), [back, new], now=10.0)
    assert admitted(result) == [back] and result.parts == [(back, 1)]


def test_rows_with_logits_stay_within_the_limit():
    scoring = sequence(500, computed=0, prompt_logprobs=True)
    assert plan(make(), [scoring], outputs=64).parts == [(scoring, 64)]


def test_deterministic_computes_one_sequence_a_step_at_fixed_cuts():
    scheduler = make(deterministic=True)
    a, b = sequence(300, computed=100), sequence(10, computed=9)
    steps = [plan(scheduler, [], [a, b]).parts for _ in range(2)]
    assert sorted(steps, key=lambda parts: parts[0][1]) == [[(b, 1)], [(a, 28)]]


@pytest.mark.parametrize("num_waiting", [0, 5000])
def test_a_long_queue_is_not_searched_when_no_place_is_free(num_waiting):
    looked = []
    running = [sequence(10, computed=9) for _ in range(4)]
    plan(make(), [sequence(5) for _ in range(num_waiting)], running, lookup=looked.append)
    assert looked == []


def test_a_long_queue_of_one_owner_hides_no_other_owner():
    crowd = [sequence(5, owner="crowd", arrived=n / 1000) for n in range(1000)]
    modest, urgent = sequence(5, owner="modest", arrived=2.0), sequence(5, owner="crowd", priority=1, arrived=3.0)
    scheduler = with_owners(make(parallel=3), "crowd", "modest")
    scheduler.served["crowd"] = 1.0
    assert admitted(plan(scheduler, [*crowd, modest, urgent], now=4.0)) == [urgent, modest, crowd[0]]


def test_a_prompt_of_known_prefix_counts_by_what_it_still_owes():
    scheduler = costs(make(parallel=8))
    found = Match(5, 380, held=True, num_held=380)
    decoding, new = sequence(10, computed=9), sequence(400)
    assert plan(scheduler, [new], [decoding], lookup=lambda seq: found).parts == [(decoding, 1), (new, 20)]


def test_a_long_prompt_does_not_extend_the_step():
    """A long prompt among short ones stalled the streams."""
    scheduler = costs(make(parallel=8))
    decoding = sequence(10, computed=9)
    assert plan(scheduler, [sequence(400), sequence(400)], [decoding]).num_prompt == 63
    assert plan(scheduler, [sequence(400), sequence(50), sequence(50)], [decoding]).num_prompt == 63


def deferrable(length, **settings):
    return sequence(length, deferrable=True, **settings)


def with_deferrables(*sequences, **options):
    scheduler = make(**options)
    for seq in sequences:
        scheduler.arrive(seq)
    return scheduler


def test_deferrable_sequences_run_while_there_are_no_others():
    running, new = deferrable(10, computed=9), deferrable(20)
    result = plan(with_deferrables(running, new), [new], [running])
    assert result.parts == [(running, 1), (new, 20)] and result.preempt == []


def test_deferrable_sequences_have_no_step_beside_others():
    running, waiting, person = deferrable(10, computed=9), deferrable(20), sequence(30)
    result = plan(with_deferrables(running, waiting), [waiting, person], [running])
    assert result.parts == [(person, 30)] and result.preempt == []
    decoding = sequence(10, computed=9)
    assert plan(with_deferrables(running, waiting), [waiting], [running, decoding]).parts == [(decoding, 1)]


def test_the_oldest_deferrable_sequence_runs_beside_others_after_a_while():
    """Beside chats that never paused, a batch of 150 requests had no answer after four minutes."""
    first, second = deferrable(20, arrived=1.0), deferrable(20, arrived=2.0)
    decoding = sequence(10, computed=9, arrived=70.0)
    scheduler = with_deferrables(first, second)
    assert plan(scheduler, [first, second], [decoding], now=1.0 + OVERDUE - 0.1).parts == [(decoding, 1)]
    assert plan(scheduler, [first, second], [decoding], now=1.0 + OVERDUE).parts == [(decoding, 1), (first, 20)]
    first = deferrable(20, computed=19, arrived=1.0)
    result = plan(scheduler, [second], [first, decoding], now=1000.0)
    assert result.parts == [(first, 1), (decoding, 1)] and not result.admit
    resting = deferrable(10, computed=9, arrived=3.0)
    result = plan(scheduler, [], [first, resting, decoding], now=1000.0, cells=1)
    assert result.preempt == [resting]


def urgent(length, **settings):
    seq = deferrable(length, **settings)
    seq.urgency = Urgency.URGENT
    return seq


def test_an_urgent_sequence_decodes_beside_others():
    decoding, others, late = sequence(10, computed=9), deferrable(10, computed=9), urgent(10, computed=9, arrived=5.0)
    result = plan(with_deferrables(others, late), [sequence(20)], [others, late, decoding])
    assert [seq for seq, _ in result.parts[:2]] == [late, decoding] and result.num_prompt == 20


def test_the_prompt_of_an_urgent_sequence_goes_behind_all_others_and_keeps_steps_short():
    """The turn that crossed a conversation's limit waited for the prompt that was computed ahead of it."""
    decoding, late = sequence(10, computed=9), urgent(400, arrived=1.0)
    scheduler = costs(with_deferrables(late))
    assert 16 < plan(scheduler, [late], [decoding, deferrable(10, computed=9)]).num_prompt < 50
    prompt = sequence(50, computed=10)
    assert plan(scheduler, [late], [decoding, prompt]).parts == [(decoding, 1), (prompt, 40)]
    late.num_computed = 100
    assert plan(scheduler, [sequence(30)], [decoding, late]).num_prompt == 30
    overdue = plan(scheduler, [], [prompt, late], now=1.0 + OVERDUE)
    assert {seq for seq, _ in overdue.parts} == {prompt, late}


def test_an_urgent_sequence_runs_beside_several_where_these_hardly_feel_it():
    """While a summary was written, the gaps of three streams were 1.2 times as long."""
    streams = [sequence(10, computed=9) for _ in range(3)]
    alone = [(seq, 1) for seq in streams]
    late = urgent(400, arrived=1.0)
    scheduler = costs(with_deferrables(late))
    assert plan(scheduler, [late], streams).parts == alone
    assert plan(scheduler, [late], streams, now=1.0 + OVERDUE).num_prompt > 0
    late.urgency = Urgency.PRESSING
    assert plan(scheduler, [late], streams).num_prompt == 61  # whatever fits the batch
    late.urgency = Urgency.URGENT
    assert 16 <= plan(costs(scheduler, row=0.00002), [late], streams).num_prompt < 64
    late = urgent(10, computed=9)
    for seconds in (0.0104, 0.011):  # of a step with one row more
        scheduler = with_deferrables(late)
        scheduler.cost.rows.learn(3, 0.01)
        scheduler.cost.rows.learn(4, seconds)
        parts = plan(scheduler, [], [*streams, late]).parts
        assert parts == (alone if seconds == 0.011 else [*alone, (late, 1)])


def test_deferrable_sequences_give_up_lanes_and_cells():
    running, person = [deferrable(10, computed=9) for _ in range(2)], sequence(30)
    scheduler = with_deferrables(*running)
    scheduler.restore_cost.note_copy(1_000, 1_000_000, 0.001)
    both = running[::-1]
    assert plan(scheduler, [person], running, lanes=0).preempt == both
    assert plan(scheduler, [person], running, cells=20).preempt == both
    decoding = sequence(10, computed=9)
    assert plan(scheduler, [], [*running, decoding], cells=0).preempt == both[:1]  # enough for one decode


def test_deferrable_sequences_whose_copies_take_long_leave_over_several_steps():
    """All of them left in one step, for which every stream waited."""
    running, person = [deferrable(1_000, computed=999) for _ in range(6)], sequence(30)
    scheduler = with_deferrables(*running)
    for n in range(60):
        scheduler.cost.learn(64 * (n % 2), 4, 0.02 + 0.007 * 64 * (n % 2))
    assert plan(scheduler, [person], running, lanes=0).preempt == running[:-2:-1]  # no copy was timed yet
    for seconds, at_once in ((0.05, 1), (0.008, 3), (0.001, 6)):
        for _ in range(40):
            scheduler.restore_cost.note_copy(999, 1_000_000, seconds)
        result = plan(scheduler, [person], running, lanes=0)
        assert result.preempt == running[::-1][:at_once] and not result.admit


def test_a_saved_sequence_is_not_restored_beside_resting_ones_where_it_does_not_fit():
    """It was restored, found no cells for its next rows, and was saved again, thousands of times a second."""
    resting, person = deferrable(263, computed=262), sequence(154)
    resting.lane = 0
    person.saved = SavedState(person.tokens[:128], None)
    result = plan(with_deferrables(resting), [person], [resting], cells=138)
    assert result.preempt == [resting] and not result.admit
    assert admitted(plan(with_deferrables(resting), [person], [], cells=400)) == [person]


def test_steps_of_deferrable_sequences_are_short():
    """A newcomer waits for its end."""
    new = deferrable(2000)
    scheduler = with_deferrables(new)
    for _ in range(200):
        scheduler.cost.learn(128, 1, 0.01 + 128 * 0.001)
        scheduler.cost.learn(0, 1, 0.01)
    assert plan(scheduler, [new]).num_prompt <= 64
    assert plan(make(), [sequence(2000)]).num_prompt >= 128


def test_deferrable_sequences_are_held_while_a_request_is_arriving():
    running, waiting = deferrable(10, computed=9), deferrable(20)
    scheduler = with_deferrables(running, waiting)
    scheduler.holds_until = 1.0
    held = plan(scheduler, [waiting], [running], now=0.9)
    assert held.parts == held.preempt == held.admit == []
    person = sequence(30)
    assert plan(scheduler, [waiting, person], [running], now=0.9).parts == [(person, 30)]
    assert [seq for seq, _ in plan(scheduler, [waiting], [running], now=1.0).parts] == [running, waiting]


def test_steps_of_deferrable_sequences_are_shorter_after_a_recent_request():
    new = deferrable(2000)
    scheduler = with_deferrables(new)
    for _ in range(200):
        scheduler.cost.learn(128, 1, 0.0001 + 128 * 0.00004)
        scheduler.cost.learn(0, 1, 0.0001)
    scheduler.holds_until = 1.0
    assert 16 <= plan(scheduler, [new], now=2.0).num_prompt <= 96 < plan(scheduler, [new], now=60.0).num_prompt


@pytest.mark.parametrize("owners", [lambda i: i % 50, lambda i: i], ids=["50 owners", "an owner each"])
def test_planning_costs_neither_the_sequences_that_wait_nor_their_owners(owners):
    """Lines of Python that run, which no other load changes. With 5,000 owners a plan took 11 ms."""

    def lines_run(num_waiting):
        scheduler = make(parallel=8)
        queue = WaitingSequences(
            sequence(20, arrived=0.001 * i, owner=f"owner {owners(i)}", priority=i % 2) for i in range(num_waiting)
        )
        scheduler.served = {seq.spec.owner: 0.0 for seq in queue}
        running = [sequence(50, computed=49, owner="owner 0") for _ in range(7)]

        def step(now):
            situation = scheduler.look(queue, running, Pool(10_000, 8, 64), now, lambda seq: None)
            result = scheduler.plan(situation)
            assert len(result.admit) == 1
            queue.remove(result.admit[0][0])
            scheduler.charge(result.admit[0][0], 20)

        count = 0

        def trace(frame, event, arg):
            nonlocal count
            count += event == "line"
            return trace

        step(6.0)  # the newcomers are put in order once
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for n in range(4):
                step(6.1 + 0.1 * n)
        finally:
            sys.settrace(before)
        return count

    assert lines_run(2000) <= 1.1 * lines_run(200)


def test_sequences_that_wait_are_kept_in_order():
    waiting = WaitingSequences()
    first, second, third, late = (sequence(5, owner=owner, deferrable=owner == "z") for owner in ("a", "b", "a", "z"))
    for seq in (late, first, second, third):
        waiting.add(seq)
    assert [*waiting] == [first, second, third, late] and len(waiting) == 4
    assert waiting.first(9, 0.0, {"a": 5.0}, MAY_WAIT) == [second, first, third]
    assert waiting.first(9, 0.0, {}, MAY_WAIT, deferrable=True) == [late]
    third.admitted, third.saved = 1.0, SavedState(third.tokens[:4], None)  # seated, and preempted
    waiting.remove(third)
    waiting.add(third)
    assert [*waiting] == [third, first, second, late]
    assert waiting.first(2, 0.0, {"a": 5.0}, MAY_WAIT) == [third, second]
    first.state = SequenceState.AWAITING_DISK
    assert waiting.first(9, 0.0, {}, (SequenceState.WAITING,)) == [third, second]
    assert waiting.first(9, 0.0, {}, (SequenceState.WAITING,), besides={"b"}) == [third]
    assert waiting.oldest((SequenceState.WAITING,), deferrable=False) in (second, third)
    waiting.add(last := sequence(5, owner="z", arrived=9.0, deferrable=True))
    assert waiting.oldest(MAY_WAIT, deferrable=True) is late
    waiting.hurry(last, Urgency.URGENT)
    assert waiting.oldest(MAY_WAIT, deferrable=True) is last
    waiting.remove(last)
    assert waiting.oldest(MAY_WAIT, deferrable=True) is late
    for seq in (first, second, third, late):
        waiting.remove(seq)
    assert not waiting and waiting.first(9, 0.0, {}, MAY_WAIT) == []


def test_the_next_one_of_an_owner_rises_with_its_own_age():
    """Not only where the one before it would have."""
    first, second = (sequence(5, owner="served", arrived=arrived) for arrived in (0.0, 5.0))
    guests = [sequence(5, owner=owner, arrived=5.5) for owner in ("guest", "another")]
    waiting, served = WaitingSequences([first, second, *guests]), {"served": 100.0}
    assert waiting.first(1, AGEING + 1, served, MAY_WAIT) == [first]
    waiting.remove(first)
    assert waiting.first(9, AGEING + 2, served, MAY_WAIT) == [*guests, second]
    assert waiting.first(9, AGEING + 5.2, served, MAY_WAIT) == [second, *guests]


@pytest.mark.parametrize("beside", [0, 2])
def test_lines_that_come_and_go_leave_nothing_behind(beside):
    waiting = WaitingSequences(sequence(5, owner=f"there {n}", priority=-1) for n in range(beside))
    for n in range(1000):
        seq = sequence(5, owner=f"guest {n}", arrived=n / 100)
        waiting.add(seq)
        assert waiting.first(1, n / 100, {}, MAY_WAIT) == [seq]
        waiting.remove(seq)
    queue, _ = waiting._queues
    assert len(waiting) == len(queue._lines) == beside and len(queue._heap) < 80 and len(queue._due) < 80


@pytest.mark.parametrize("seed", range(8))
def test_the_order_is_the_one_that_sorting_all_gives(seed):
    """However priorities age, owners are served, and sequences come and go."""
    random = Random(seed)
    waiting, there, served, now = WaitingSequences(), [], {}, 0.0
    for _ in range(150):
        now += random.choice((0.0, 0.1, 3.0, 29.0))
        for _ in range(random.randrange(4)):
            seq = sequence(5, owner=random.choice("abcdefgh"), arrived=now, priority=random.randrange(3))
            if random.random() < 0.1:
                seq.admitted, seq.saved = now, SavedState(seq.tokens[:4], None)
            there.append(seq)
            waiting.add(seq)
            served.setdefault(seq.spec.owner, min(served.values(), default=0.0))
        for seq in random.sample(there, min(len(there), random.randrange(4))):
            there.remove(seq)
            waiting.remove(seq)
            served[seq.spec.owner] += random.randrange(100)
        wanted = sorted(there, key=lambda seq: _rank(seq, now, served))
        most = random.randrange(12)
        assert waiting.first(most, now, served, MAY_WAIT) == wanted[:most]
        here = set(random.sample("abcdefgh", 3))
        guests = {}
        for seq in wanted:
            if seq.spec.owner not in here:
                guests.setdefault(seq.spec.owner, seq)
        assert waiting.first(9, now, served, MAY_WAIT, besides=here) == [*guests.values()]


def test_the_cells_of_a_prefix_count_once_however_many_share_it():
    """Each newcomer that shared a resident prefix was charged all of its cells, so that fewer were admitted than fit."""
    newcomers = [sequence(1010) for _ in range(4)]
    for seq in newcomers:
        seq.tokens[-1] = seq.id
    scheduler = costs(make(parallel=4))
    found = Match(3, 1000)
    assert admitted(plan(scheduler, newcomers, cells=1300, lookup=lambda seq: found)) == newcomers
    alone = costs(make(parallel=4, shares=False))
    assert admitted(plan(alone, newcomers, cells=1300, lookup=lambda seq: found)) == newcomers[:1]
    running = sequence(1010, computed=1009)
    held = Match(3, 1000, num_held=1000)
    result = plan(scheduler, newcomers[:3], [running], cells=300, lookup=lambda seq: held)
    assert admitted(result) == newcomers[:3]
