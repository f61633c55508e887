"""The embedder, turned by hand: groups, turns, deadlines, failures."""

from __future__ import annotations

import numpy as np
import pytest
from recording_backend import RecordingEmbeddings

from llamasrv.engine.base.arrays import pooled
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.embedder import Embedder, finished
from llamasrv.engine.media.embedding_line import Embedded
from llamasrv.errors import ContextTooLong, DeadlineExceeded, EngineFailure, InvalidRequest, QueueFull, Unavailable


class Driver:
    def __init__(self, *, pooling="mean", queue_limit=1000, **backend):
        self.now = 0.0
        self.backend = RecordingEmbeddings(pooling, **backend)
        self.embedder = Embedder(queue_limit=queue_limit, clock=lambda: self.now)
        self.embedder.backend = self.backend

    def submit(self, *lengths, **settings):
        return self.embedder.submit([[7] * n for n in lengths], **settings)

    def finish(self):
        for _ in range(1000):
            if not self.embedder.turn():
                return
        raise AssertionError("the embedder does not come to an end")


@pytest.fixture
def driver(request):
    made = []

    def make(**options):
        made.append(Driver(**options))
        return made[-1]

    yield make
    for one in made:
        assert one.embedder.num_open == 0


def order(stream):
    return [item.place for item in stream.take()]


def test_every_input_is_answered_once_in_any_order(driver):
    d = driver(group_tokens=64, context=64)
    stream = d.submit(*range(1, 40))
    d.finish()
    items = stream.take()
    assert sorted(item.place for item in items) == list(range(39))
    assert all(item.error is None and item.vector.shape == (32,) for item in items)


def test_a_group_is_filled_with_the_longest_inputs_that_fit(driver):
    d = driver(group_tokens=100, context=60)
    d.submit(10, 60, 30, 20, 5)
    d.finish()
    assert d.backend.groups == [[60, 30, 10], [20, 5]]


def test_requests_take_turns(driver):
    """A single input does not wait for a thousand of another request."""
    d = driver(group_tokens=100, context=50)
    d.submit(*[50] * 20)
    d.embedder.turn()
    late = d.submit(10)
    d.embedder.turn()
    assert order(late) == [0]
    assert d.backend.groups[1] == [50, 10]
    d.finish()


def test_a_short_input_is_not_answered_with_as_many_long_ones_as_the_group_holds(driver, monkeypatch):
    """Beside a hundred documents a question of ten tokens waited for a group of 500."""
    d = driver(group_tokens=500, context=100)
    embed = d.backend.embed

    def takes_time(inputs):
        d.now += 0.002 * sum(map(len, inputs))
        return embed(inputs)

    monkeypatch.setattr(d.backend, "embed", takes_time)
    documents = d.submit(*[50] * 30)
    d.embedder.turn()
    assert d.backend.groups == [[50] * 10], "alone it fills its groups"
    question = d.submit(10)
    began = d.now
    d.embedder.turn()
    assert order(question) == [0] and d.now - began <= 0.2
    d.submit(100), d.submit(100)
    d.finish()
    assert len(order(documents)) == 30 and max(map(len, d.backend.groups)) == 10


def test_inputs_of_several_requests_share_a_group(driver):
    d = driver(group_tokens=100, context=50, group_inputs=3)
    streams = [d.submit(5) for _ in range(4)]
    d.finish()
    assert d.backend.groups == [[5, 5, 5], [5]]
    assert [order(stream) for stream in streams] == [[0]] * 4


def test_an_input_that_is_too_long_is_refused_at_once(driver):
    d = driver(context=8)
    with pytest.raises(ContextTooLong) as error:
        d.submit(3, 9)
    assert error.value.context == 8 and error.value.num_prompt == 9


def test_an_empty_input_is_refused_at_once(driver):
    with pytest.raises(InvalidRequest):
        driver().submit(3, 0)


def test_the_queue_has_an_end(driver):
    d = driver(queue_limit=3)
    d.submit(1, 1)
    with pytest.raises(QueueFull):
        d.submit(1, 1)
    d.submit(1)
    d.finish()


def test_a_cancelled_input_is_not_computed(driver):
    d = driver(group_tokens=10, context=10)
    stream, other = d.submit(10, 10, 10), d.submit(10)
    d.embedder.turn()
    d.embedder.cancel(stream)
    d.embedder.cancel(stream)
    d.finish()
    assert len(d.backend.groups) == 2 and order(other) == [0] and len(stream.take()) == 1


def test_a_deadline_ends_the_remaining_inputs(driver):
    d = driver(group_tokens=10, context=10)
    stream = d.submit(10, 10, deadline=5.0)
    d.embedder.turn()
    d.now = 5.0
    d.finish()
    first, second = stream.take()
    assert first.error is None and isinstance(second.error, DeadlineExceeded)


def test_a_failed_group_fails_its_own_inputs(driver):
    d = driver(group_tokens=10, context=10)
    d.backend.fail_next.append(DecodeFailed("no"))
    stream = d.submit(10, 9)
    d.finish()
    by_index = {item.place: item for item in stream.take()}
    assert isinstance(by_index[0].error, EngineFailure) and by_index[1].error is None
    assert [] not in d.backend.groups


def test_a_fatal_failure_recreates_the_context(driver):
    d = driver()
    d.backend.fail_next.append(DecodeFailed("no", fatal=True))
    d.submit(3)
    d.finish()
    assert d.backend.groups[-1] == []


def test_nan_or_inf_in_a_vector_is_an_error(driver, monkeypatch):
    d = driver()
    monkeypatch.setattr(d.backend, "embed", lambda inputs: [np.full(32, np.nan, np.float32) for _ in inputs])
    stream = d.submit(3)
    d.finish()
    assert isinstance(stream.take()[0].error, EngineFailure)


def test_closing_fails_open_inputs_and_refuses_new_ones(driver):
    d = driver()
    stream = d.submit(3, 4)
    d.embedder.close()
    assert [type(item.error) for item in stream.take()] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable):
        d.submit(3)


def test_the_thread_computes_and_stops():
    d = Driver()
    d.embedder.start()
    stream = d.submit(3, 4)
    found = []
    while len(found) < 2:
        assert stream.wait(10)
        found += stream.take()
    assert all(isinstance(item, Embedded) and item.error is None for item in found)
    d.embedder.close()
    assert d.embedder.metrics.inputs == 2 and d.embedder.metrics.tokens == 7


def test_a_bug_fails_waiting_inputs_and_the_thread_continues(monkeypatch):
    d = Driver()
    right = d.backend.embed
    monkeypatch.setattr(d.backend, "embed", lambda inputs: [] / 0)
    d.embedder.start()
    stream = d.submit(3)
    assert stream.wait(10)
    assert isinstance(stream.take()[0].error, EngineFailure)
    monkeypatch.setattr(d.backend, "embed", right)
    stream = d.submit(3)
    assert stream.wait(10) and stream.take()[0].error is None
    d.embedder.close()


# What becomes of the numbers


def test_vectors_are_normalised_by_llama_cpps_number():
    v = np.array([3, -4, 0], np.float32)
    assert finished(v, dimensions=None, normalise=-1).tolist() == [3, -4, 0]
    assert finished(v, dimensions=None, normalise=2).tolist() == pytest.approx([0.6, -0.8, 0])
    assert finished(v, dimensions=None, normalise=1).tolist() == pytest.approx([3 / 7, -4 / 7, 0])
    assert finished(v, dimensions=None, normalise=0).tolist() == pytest.approx([24570, -32760, 0])
    assert finished(v, dimensions=None, normalise=3).tolist() == pytest.approx(
        [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3), 0]
    )


def test_a_zero_vector_stays_zero():
    assert finished(np.zeros(3, np.float32), dimensions=None, normalise=2).tolist() == [0, 0, 0]


def test_a_vector_is_truncated_before_it_is_normalised():
    v = np.array([3, -4, 12], np.float32)
    assert finished(v, dimensions=2, normalise=2).tolist() == pytest.approx([0.6, -0.8])


def test_rows_are_normalised_one_by_one():
    rows = np.array([[3, 4], [0, 2]], np.float32)
    assert finished(rows, dimensions=None, normalise=2).tolist() == [pytest.approx([0.6, 0.8]), [0, 1]]


@pytest.mark.parametrize("pooling, expected", [("mean", [2, 3]), ("cls", [1, 2]), ("last", [3, 4])])
def test_rows_are_pooled_to_one_vector(pooling, expected):
    assert pooled(np.array([[1, 2], [3, 4]], np.float32), pooling).tolist() == expected


def test_without_pooling_rows_stay_rows():
    assert pooled(np.array([[1, 2], [3, 4]], np.float32), "none").tolist() == [[1, 2], [3, 4]]
