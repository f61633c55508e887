from array import array

import numpy as np
import pytest
from engine_driver import GREEDY, spec
from recording_backend import RecordingBackend

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.sampling.candidates import SMALL_VOCABULARY
from llamasrv.engine.sampling.state import SamplingState
from llamasrv.engine.step.outputs import Outputs

HEAVY = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture
def pool():
    pool = NativePool()
    yield pool
    pool.close()


LARGE = RecordingBackend(num_tokens=SMALL_VOCABULARY)


def outputs(pool, threads, backend=None):
    return Outputs(backend or RecordingBackend(), pool, threads, lambda seq: None)


def rows(params, backend=None):
    backend = backend or RecordingBackend()
    states = [
        SamplingState(spec(list(b"prompt"), params=p), array("i", list(b"prompt")), None, backend) for p in params
    ]
    logits = np.random.default_rng(5).standard_normal((len(states), backend.vocab.size)).astype(np.float32)
    return list(zip(states, logits))


def test_each_row_gets_its_own_token(pool):
    greedy = rows([GREEDY] * 5)
    best = [int(row.argmax()) for _, row in greedy]
    assert [choice.token for choice in outputs(pool, 2).choose(greedy)] == best


def test_a_row_without_candidates_does_not_affect_others(pool):
    greedy = rows([GREEDY] * 3)
    greedy[1][1][:] = np.nan
    choices = outputs(pool, 2).choose(greedy)
    assert choices[1] is None and choices[0] and choices[2]


def test_heavy_chains_run_in_parallel_and_choose_the_same(pool):
    params = [SamplingParams(seed=n, **HEAVY) for n in range(12)]
    alone = [outputs(pool, 1, LARGE).choose([row])[0] for row in rows(params, LARGE)]
    assert pool.num_threads == 0
    assert outputs(pool, 3, LARGE).choose(rows(params, LARGE)) == alone and pool.num_threads == 2


def test_one_heavy_chain_needs_no_thread(pool):
    outputs(pool, 3, LARGE).choose(rows([SamplingParams(seed=1, **HEAVY), GREEDY], LARGE))
    assert pool.num_threads == 0
