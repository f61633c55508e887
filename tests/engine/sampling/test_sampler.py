from array import array

import numpy as np
import pytest
from recording_backend import RecordingBackend

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.sampling.sampler import CandidateFinder, Sampler, log_probability


def random_row(n, seed):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("n", [300, 4096, 32000, 151_937])
@pytest.mark.parametrize("keep", [1, 40, 1000])
def test_the_candidates_contain_the_k_largest(n, keep):
    for seed in range(5):
        row = random_row(n, seed)
        ids = CandidateFinder(n)(row, keep)
        largest = np.argsort(row)[-min(keep, n) :]
        assert set(largest) <= set(ids)
        assert len(set(ids)) == len(ids)


def test_the_candidates_are_few():
    assert len(CandidateFinder(32000)(random_row(32000, 1), 40)) < 200


def test_ties_and_a_flat_row_lose_nothing():
    assert len(CandidateFinder(8192)(np.zeros(8192, np.float32), 40)) == 8192


def test_masked_tokens_are_no_candidates():
    row = np.full(32000, -np.inf, np.float32)
    row[[5, 31999]] = 1.0, 2.0
    assert CandidateFinder(32000)(row, 40).tolist() == [5, 31999]
    assert CandidateFinder(32000)(row, None).tolist() == [5, 31999]


def test_a_row_of_nan_has_no_candidates():
    for n in (300, 32000):
        assert len(CandidateFinder(n)(np.full(n, np.nan, np.float32), 40)) == 0


def sampler(backend=None, prompt=b"hello", **params):
    """A Sampler, and the timeline that it looks at."""
    tokens = array("i", list(prompt))
    return Sampler(SamplingParams(**params), tokens, len(tokens), backend or RecordingBackend()), tokens


def test_greedy_needs_no_chain():
    s, tokens = sampler(temperature=0)
    row = random_row(263, 1)
    assert s.chain is None and s.choose(row, CandidateFinder(263)) == int(row.argmax())


def test_greedy_with_penalties_goes_through_the_chain():
    s, _ = sampler(temperature=0, repeat_penalty=1.2)
    assert s.greedy and s.keep == 1 and s.chain.accepted == list(b"hello")


@pytest.mark.parametrize("last_n, seen", [(2, b"lo"), (-1, b"hello"), (64, b"hello")])
def test_penalties_see_the_prompts_tail(last_n, seen):
    assert sampler(presence_penalty=1.0, repeat_last_n=last_n)[0].chain.accepted == list(seen)


def test_what_penalties_can_move_is_a_candidate():
    """A negative penalty can lift a token from anywhere to the top."""
    s, tokens = sampler(presence_penalty=-5.0, top_k=1, prompt=[7])
    offered = []
    s.chain.choose = lambda ids, logits: offered.extend(ids.tolist()) or int(ids[0])
    row = random_row(32000, 3)
    row[7] = -20.0
    s.choose(row, CandidateFinder(32000))
    assert 7 in offered


def test_samplers_before_top_k_that_need_everything_get_everything():
    assert sampler(samplers=("top_p", "top_k"), top_p=0.9)[0].keep is None
    assert sampler(top_n_sigma=1.0)[0].keep is None
    assert sampler(mirostat=2)[0].keep is None
    assert sampler(top_k=0)[0].keep is None
    assert sampler(samplers=("temperature", "top_k"))[0].keep == 40
    assert sampler(samplers=("temperature", "top_k"), dynatemp_range=0.5)[0].keep is None


def test_bias_moves_and_bans():
    s, tokens = sampler(temperature=0, logit_bias=((5, 100.0), (6, -float("inf"))))
    assert s.choose(random_row(263, 1), CandidateFinder(263)) == 5


def test_ends_are_banned_until_min_tokens():
    backend = RecordingBackend()
    s, tokens = sampler(backend, temperature=0, min_tokens=2)
    end = backend.vocab.eos
    row = random_row(263, 1)
    row[end] = 50.0
    assert s.choose(row.copy(), CandidateFinder(263)) != end
    tokens.extend([1, 2])
    assert s.choose(row.copy(), CandidateFinder(263)) == end


def test_everything_banned_is_nothing_to_choose_from():
    s, tokens = sampler(temperature=0, logit_bias=tuple((t, -float("inf")) for t in range(263)))
    assert s.choose(random_row(263, 1), CandidateFinder(263)) is None
    s, tokens = sampler(logit_bias=tuple((t, -float("inf")) for t in range(263)))
    assert s.choose(random_row(263, 1), CandidateFinder(263)) is None


def test_log_probabilities_are_a_log_softmax():
    row = random_row(1000, 4)
    expected = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    pieces = [b"x"] * 1000
    entry = log_probability(row, 17, 3, pieces)
    assert entry.logprob == pytest.approx(expected[17], abs=1e-5)
    assert [t.token for t in entry.top] == np.argsort(-row)[:3].tolist()
    assert [t.logprob for t in entry.top] == pytest.approx(sorted(expected)[::-1][:3], abs=1e-5)


def test_an_impossible_token_has_the_sentinel_and_not_infinity():
    row = np.array([0.0, -np.inf], np.float32)
    assert log_probability(row, 1, 0, [b"a", b"b"]).logprob == -9999.0
