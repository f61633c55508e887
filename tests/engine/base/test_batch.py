"""The rows of a step: what each part of a plan becomes, and which rows have logits. Rows of media are in
media/test_media_in_the_engine.py."""

import pytest
from engine_driver import sequence

from llamasrv.engine.base.batch import Batch


def seated(tokens, lane, *, computed=0, draft=(), **settings):
    seq = sequence(tokens, **settings)
    seq.lane, seq.num_computed, seq.draft = lane, computed, list(draft)
    return seq


def rows(batch):
    """(token, position, lane, whether it has logits) of each."""
    n = batch.num_rows
    columns = (batch.token[:n], batch.position[:n], batch.lane[:n], batch.wants_logits[:n] > 0)
    return list(zip(*(column.tolist() for column in columns)))


def filled(*parts, capacity=16):
    batch = Batch(capacity)
    batch.fill(parts)
    assert batch.num_outputs == sum(row[3] for row in rows(batch)) == sum(count for _, count in batch.outputs)
    return batch


def test_a_decode_is_its_last_token():
    one, two = seated([5, 6, 7], 0, computed=2), seated([8, 9], 3, computed=1)
    batch = filled((one, 1), (two, 1))
    assert rows(batch) == [(7, 2, 0, True), (9, 1, 3, True)] and batch.outputs == [(one, 1), (two, 1)]


def test_a_prompt_chunk_has_logits_only_at_the_prompts_end():
    seq = seated([5, 6, 7, 8], 1, computed=1)
    assert rows(filled((seq, 2))) == [(6, 1, 1, False), (7, 2, 1, False)]
    assert rows(filled((seq, 3)))[-1] == (8, 3, 1, True)


def test_decodes_and_a_prompt_chunk_share_a_batch():
    one, long = seated([5, 6], 0, computed=1), seated([1, 2, 3], 1)
    batch = filled((one, 1), (long, 2))
    assert rows(batch) == [(6, 1, 0, True), (1, 0, 1, False), (2, 1, 1, False)] and batch.outputs == [(one, 1)]


def test_a_draft_follows_its_token_and_all_of_it_has_logits():
    seq = seated([5, 6], 0, computed=1, draft=[7, 8])
    batch = filled((seq, 1))
    assert rows(batch) == [(6, 1, 0, True), (7, 2, 0, True), (8, 3, 0, True)] and batch.outputs == [(seq, 3)]


def test_every_row_of_a_scored_prompt_has_logits():
    seq = seated([5, 6, 7], 0, prompt_logprobs=1)
    assert [row[3] for row in rows(filled((seq, 2)))] == [True, True]


def test_a_larger_batch_before_leaves_nothing_behind():
    batch = Batch(16)
    batch.fill([(seated([5, 6, 7], 0), 3)])
    batch.fill([(seated([8, 9], 1, computed=1), 1)])
    assert rows(batch) == [(9, 1, 1, True)] and len(batch.outputs) == 1


def test_more_rows_than_capacity_raise():
    with pytest.raises(AssertionError, match="more rows than the batch holds"):
        filled((seated([5, 6], 0, computed=1, draft=[7, 8]), 1), capacity=2)


def test_a_row_with_logits_without_owner_raises():
    """Rows are handed out in order: an uncounted one would give all later rows to the wrong sequence."""
    batch = Batch(16)
    batch.fill([(seated([5, 6, 7], 0, computed=2), 1)])
    batch.wants_logits[:2], batch.num_rows = 1, 2
    with pytest.raises(AssertionError, match="no owner"):
        batch._count_outputs(1)


def test_rows_behind_the_last_one_have_no_logits():
    batch = Batch(16)
    batch.fill([(seated([5, 6], 0, computed=1), 1), (seated([7, 8, 9], 1), 3)], 2)
    assert rows(batch)[3:] == [(9, 2, 1, True), (9, 3, 1, False), (9, 4, 1, False)] and batch.num_outputs == 2
