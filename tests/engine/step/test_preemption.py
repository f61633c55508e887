"""Which sequence is preempted when cells run out, how it is restored, and which newcomers are admitted then."""

from __future__ import annotations

import pytest
from engine_driver import GREEDY, SamplingParams, end_of, sequence

from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.preemption import FEWEST_STEPS, MOST_STEPS, RestoreCost, growth, left, victim

STEP, PROMPT_TOKEN, ROW = 0.02, 0.007, 0.017  # seconds: a model of half a billion on two cores


def running(computed, *, reused=0, arrived=0.0, **settings):
    seq = sequence([7] * (computed + 1), **settings)
    seq.num_computed, seq.reused, seq.arrived = computed, reused, arrived
    seq.admitted = arrived
    return seq


def per_token(count):
    return 0.001 * count


def fitted():
    cost = CostModel()
    for n in range(60):
        cost.learn(64 * (n % 2), 4, STEP + PROMPT_TOKEN * 64 * (n % 2) + ROW * 4)
    return cost


# who gives way


def test_among_equals_the_youngest_is_preempted():
    old, middle, young = (running(100, arrived=at) for at in (0.0, 1.0, 2.0))
    assert victim([young, old, middle], per_token) is young


def test_low_priority_is_preempted_before_youth():
    """The youngest was preempted even if its cells were shared."""
    batch, person = running(100, arrived=1.0, priority=-1), running(100, arrived=2.0)
    assert victim([running(100), batch, person], per_token) is batch


def test_shared_cells_do_not_count_as_freed():
    """A long shared prompt frees few cells, and all of it has to be restored."""
    sharing, own = running(1000, reused=980, arrived=2.0), running(200, arrived=1.0)
    assert victim([running(10), sharing, own], per_token) is own


def test_a_sequence_about_to_end_is_not_preempted():
    ending, other = running(200, arrived=2.0, max_tokens=3), running(200, arrived=1.0, max_tokens=500)
    assert victim([running(10), ending, other], per_token) is other


def test_the_oldest_is_preempted_last():
    first, other = running(10, reused=0, arrived=0.0), running(1000, reused=1000, arrived=1.0)
    assert victim([first, other], per_token) is other
    assert victim([first], per_token) is first


# how it comes back


def test_a_copy_is_made_if_faster():
    cost = RestoreCost(fitted())
    assert cost.is_copy_cheaper(100, 1 << 20)
    cost.note_copy(100, 1 << 20, 0.001)
    assert cost.seconds(100) == pytest.approx(0.002, rel=0.3)
    cost.room = 1 << 19
    assert not cost.is_copy_cheaper(100, 1 << 20) and cost.seconds(100) == pytest.approx(100 * PROMPT_TOKEN, rel=0.3)


def test_slow_copies_are_no_longer_made():
    cost = RestoreCost(fitted())
    for _ in range(60):
        cost.note_copy(100, 1 << 20, 2.0)
    assert not cost.is_copy_cheaper(100, 1 << 20)


def test_one_slow_copy_does_not_count_much():
    cost = RestoreCost(fitted())
    cost.note_copy(100, 1 << 20, 30.0)
    assert cost.is_copy_cheaper(100, 1 << 20)


# who is let in


def test_admission_has_to_pay_off():
    """If preemption costs a copy, few steps; if it costs the prompt, many."""
    cost = RestoreCost(fitted())
    assert cost.steps_to_pay_off(4, 200) == FEWEST_STEPS
    cost.room = 0
    assert FEWEST_STEPS < cost.steps_to_pay_off(4, 10) < 64 < cost.steps_to_pay_off(4, 200) <= MOST_STEPS


@pytest.mark.parametrize(
    ("sequences", "steps", "expected"),
    [
        ([], 16, 0),
        ([(100, 50)], 16, 16),
        ([(100, 50), (100, 50)], 16, 32),
        ([(4, 50), (100, 50)], 16, 8),  # the first gives back 54 cells, more than the other takes until then
        ([(4, 1), (100, 50)], 16, 15),
        ([(0, 50), (10, 0)], 16, 0),  # 50 cells come back at once
    ],
)
def test_growth_is_the_peak_of_additional_cells(sequences, steps, expected):
    assert growth(sequences, steps) == expected


def test_left_is_the_number_of_tokens_that_may_follow():
    assert left(running(5, max_tokens=7)) == 7 and left(running(5)) == MOST_STEPS


# the engine


class Load:
    """Clients that each send their next request when the last one has ended, on a machine with the costs above."""

    def __init__(self, drive, cells, *, clients=8, each=2, prompt=60, answer=100, **options):
        self.driver = drive(
            num_cells=cells, num_lanes=16, context=400, batch_size=512, spec="off", cache_bytes=0, **options
        )
        backend, decode = self.driver.backend, self.driver.backend.decode

        def timed():
            decode()
            decodes = min(backend.batch.num_outputs, backend.batch.num_rows)
            self.driver.now += STEP + PROMPT_TOKEN * (backend.batch.num_rows - decodes) + ROW * decodes

        backend.decode = timed
        params = SamplingParams(temperature=0, ignore_eos=True)

        def send(number):
            return self.driver.submit([97 + number] * 20 + [98] * (prompt - 20), max_tokens=answer, params=params)

        streams, sent = {n: send(n) for n in range(clients)}, clients
        self.ends = []
        while streams:
            self.driver.turn()
            for number, stream in list(streams.items()):
                items = stream.take()
                if any(getattr(item, "reason", None) for item in items):
                    self.ends.append(end_of(items))
                    del streams[number]
                    if sent < clients * each:
                        streams[number], sent = send(number), sent + 1
        self.rate = sum(end.num_generated for end in self.ends) / self.driver.now

    @property
    def metrics(self):
        return self.driver.engine.metrics


def test_with_a_quarter_of_the_cells_missing_little_speed_is_lost(drive):
    """Eight streams of 160 cells in 1,024: nearly as fast as with cells for all, and no request ends early."""
    full = Load(drive, 1024, parallel=8)
    assert [end.num_generated for end in full.ends] == [100] * 16 and full.metrics.swaps
    assert full.rate >= 0.95 * Load(drive, 4096, parallel=8).rate


def test_without_copies_few_sequences_are_preempted(drive):
    """As fast as with only as many streams as fit. Newcomers were soon preempted and recomputed."""
    full = Load(drive, 1024, parallel=8, swap_bytes=0)
    assert [end.num_generated for end in full.ends] == [100] * 16 and full.metrics.preemptions <= 2
    assert full.rate >= 0.96 * Load(drive, 1024, parallel=6, swap_bytes=0).rate


def test_a_copy_that_does_not_pay_is_not_made(drive):
    driver = drive(num_cells=400)
    driver.submit([97] * 50, max_tokens=20, params=GREEDY)
    driver.turn(3)
    driver.core.scheduler.restore_cost.is_copy_cheaper = lambda count, size: False
    driver.engine.preempt(driver.sequences[0])
    driver.finish()
    assert driver.engine.metrics.preemptions == 1 and driver.engine.metrics.swaps == 0
