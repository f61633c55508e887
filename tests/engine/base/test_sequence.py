"""States of a sequence and their transitions."""

import itertools

import pytest
from engine_driver import chat, end_of, sequence

from llamasrv.domain.events import FinishReason
from llamasrv.engine.base.sequence import TRANSITIONS, SequenceState
from llamasrv.engine.base.sequence import end_of as sequence_end
from llamasrv.engine.sampling.state import Ending


def in_state(state):
    seq = sequence([1, 2, 3])
    seq.state = state
    return seq


@pytest.mark.parametrize("before, after", list(itertools.product(SequenceState, SequenceState)))
def test_only_transitions_of_the_table_are_allowed(before, after):
    seq = in_state(before)
    if after in TRANSITIONS[before]:
        seq.enter(after)
        assert seq.state is after
    else:
        with pytest.raises(AssertionError, match=f"cannot become {after.value}"):
            seq.enter(after)
        assert seq.state is before


def test_every_state_can_be_reached_and_each_but_the_last_can_end():
    reached = set(itertools.chain.from_iterable(TRANSITIONS.values()))
    assert reached == set(SequenceState)
    assert {state for state, following in TRANSITIONS.items() if SequenceState.ENDED in following} == set(
        SequenceState
    ) - {SequenceState.ENDED}


def test_a_served_sequence_goes_through_waiting_prefill_decode_ended(drive):
    driver = drive(batch_size=32, ubatch_size=32)
    stream = driver.submit(chat("a prompt of several steps " * 3))
    (seq,) = driver.sequences
    states = [seq.state]
    while driver.engine.num_open:
        driver.turn()
        states.append(seq.state)
    assert [state for state, _ in itertools.groupby(states)] == [
        SequenceState.WAITING,
        SequenceState.PREFILL,
        SequenceState.DECODE,
        SequenceState.ENDED,
    ]
    assert end_of(stream.take()).reason is FinishReason.STOP


def test_a_preempted_sequence_waits_again(drive):
    driver = drive()
    driver.submit(chat("gives way"))
    (seq,) = driver.sequences
    driver.turn(4)
    driver.engine.preempt(seq)
    assert seq.state is SequenceState.WAITING and seq.lane is None and seq.saved is not None
    driver.turn()
    assert seq.state is SequenceState.DECODE and seq.lane is not None and seq.saved is None
    driver.finish()


def test_the_time_without_a_lane_after_a_preemption_is_a_pause_and_no_queue(drive):
    """It counted as time in the queue once more: the parts of a request were longer than the whole."""
    driver = drive()
    stream = driver.submit(chat("gives way"))
    (seq,) = driver.sequences
    driver.now += 1.0
    driver.turn(4)
    driver.engine.preempt(seq)
    driver.now += 5.0
    driver.turn(2)
    assert seq.lane is not None
    driver.finish()
    end = end_of(stream.take())
    assert (round(end.queue_seconds), round(end.paused_seconds)) == (1, 5)
    whole = end.queue_seconds + end.prefill_seconds + end.decode_seconds
    assert whole == pytest.approx(seq.ended - seq.arrived)


def test_a_sequence_that_ends_while_it_waits_again_was_paused_until_then():
    seq = sequence([1, 2, 3])
    seq.arrived, seq.queued, seq.admitted, seq.first_token, seq.preempted, seq.ended = 1.0, 2.0, 3.0, 4.0, 6.0, 9.0
    end = sequence_end(seq, Ending(FinishReason.CANCELLED))
    assert (end.queue_seconds, end.prefill_seconds, end.decode_seconds, end.paused_seconds) == (2.0, 1.0, 5.0, 3.0)
