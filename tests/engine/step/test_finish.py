"""What changes in the parts of a step after its plan."""

from engine_driver import sequence

from llamasrv.engine.step.finish import finish
from llamasrv.engine.step.plan import Plan


def step_of(parts, *, admit=(), num_decodes=0, failed=(), batch_size=64, draft=lambda step: None):
    num_prompt = sum(count for _, count in parts[num_decodes:])
    plan = Plan(
        admit=tuple((seq, None) for seq in admit), parts=tuple(parts), num_decodes=num_decodes, num_prompt=num_prompt
    )
    return finish(plan, list(failed), batch_size=batch_size, draft=draft)


def test_nothing_changes_without_a_reason():
    a, b = sequence(range(10)), sequence(range(20))
    a.num_computed = 9
    step = step_of([(a, 1), (b, 15)], num_decodes=1)
    assert step.parts == [(a, 1), (b, 15)] and (step.num_decodes, step.num_prompt) == (1, 15)


def test_a_sequence_that_could_not_be_seated_has_no_part():
    good, bad = sequence(range(10)), sequence(range(10))
    assert step_of([(good, 10), (bad, 10)], admit=[good, bad], failed=[bad]).parts == [(good, 10)]


def test_forced_tokens_join_the_prompt_if_the_batch_has_room():
    class Forced:
        num_undelivered = 5

    for batch_size, count in ((64, 15), (12, 12)):
        seq = sequence(range(15))  # ten of a prompt, and five that must follow
        seq.sampling = Forced()
        step = step_of([(seq, 10)], admit=[seq], batch_size=batch_size)
        assert step.parts == [(seq, count)] and step.num_prompt == count


def test_forced_tokens_of_prompts_admitted_before_do_not_overfill_the_batch():
    """Each part got what was left for one: a batch of 32 rows had 33, and all requests of the engine failed."""

    class Forced:
        num_undelivered = 30

    before, admitted = sequence(range(31)), sequence(range(60))
    before.sampling = admitted.sampling = Forced()
    step = step_of([(before, 1), (admitted, 30)], admit=[admitted], batch_size=32)
    assert step.parts == [(before, 2), (admitted, 30)] and step.num_prompt == 32


def test_a_part_ends_at_the_next_checkpoint():
    seq = sequence(range(100))
    seq.num_computed, seq.checkpoints = 20, [20, 50, 90]
    assert step_of([(seq, 80)]).parts == [(seq, 30)]


def test_drafts_come_last_and_see_the_finished_parts():
    seen = []
    seq = sequence(range(100))
    seq.checkpoints = [40]
    step_of([(seq, 80)], draft=lambda step: seen.append((list(step.parts), step.num_prompt)))
    assert seen == [([(seq, 40)], 40)]
