"""Prompts that one step begins, and those that wait for what they compute."""

from array import array

from engine_driver import sequence

from llamasrv.engine.kv.newcomers import Newcomers


def newcomers(*sequences, follows=True):
    begun = Newcomers(follows)
    for seq in sequences:
        begun.add(seq)
    return begun


def test_the_one_that_shares_most_is_found():
    a, b = sequence(range(100)), sequence([*range(60), *range(500, 540)])
    begun = newcomers(a, b)
    assert len(begun) == 2
    assert begun.ahead_of(sequence([*range(80), 7, 7])) == (a, 80)
    assert begun.ahead_of(sequence([*range(60), 500, 501, 7])) == (b, 62)
    assert begun.ahead_of(sequence([7, 8, 9])) is None


def test_the_last_token_is_always_computed():
    assert newcomers(sequence(range(100))).ahead_of(sequence(range(50)))[1] == 49


def test_only_prompts_of_the_same_cache_key_are_shared():
    assert newcomers(sequence(range(100), scope="alice")).ahead_of(sequence(range(100), scope="bob")) is None


def test_no_sequence_waits_where_prefixes_cannot_be_shared_or_are_not_wanted():
    assert newcomers(sequence(range(100)), follows=False).ahead_of(sequence(range(100))) is None
    assert newcomers(sequence(range(100), cache_prompt=False)).ahead_of(sequence(range(100))) is None
    assert newcomers(sequence(range(100))).ahead_of(sequence(range(100), prompt_logprobs=True)) is None


def test_a_hundred_prompts_that_begin_alike_are_compared_in_one_walk_each():
    begun, start = newcomers(), [*range(5000)]
    begun.add(sequence([*start, 1]))
    walked = []
    for number in range(100):
        seq = sequence([*start, 2, number])
        walked.append(len(begun._tree.walk(seq.tokens, seq.num_tokens, seq.spec.cache_key).nodes))
        assert begun.ahead_of(seq)[1] >= 5000
        begun.add(seq)
    assert max(walked) <= 3
    assert array("i", start) == begun.ahead_of(sequence([*start, 3]))[0].tokens[:5000]
