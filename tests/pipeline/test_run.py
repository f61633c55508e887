"""A request from its model's loading to its end, with a pipeline and a loader that the test controls."""

from __future__ import annotations

import threading

import pytest

from llamasrv.domain.events import Failed, Finished, FinishReason, Text, Usage
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.fake import FakeVocabulary
from llamasrv.errors import DeadlineExceeded, InvalidRequest, Unavailable
from llamasrv.pipeline.load_wait import LoadWait
from llamasrv.pipeline.run import Begun, Run, RunInfo

INFO = RunInfo("m", "fp", SamplingParams(), [[97, 98], [99]], 2, 0, FakeVocabulary())


class Said:
    """A generation that says this, a piece for each wake."""

    def __init__(self, *pieces):
        self.pieces = [[Text(0, piece)] for piece in pieces] + [[Finished(0, FinishReason.STOP), Usage()]]
        self.usage, self.cancelled, self.gathers = None, False, False

    @property
    def done(self):
        return not self.pieces

    def events(self, timeout):
        return self.pieces.pop(0)

    def cancel(self):
        self.cancelled = True
        self.pieces = [[Finished(0, FinishReason.CANCELLED), Usage()]]

    def gather(self):
        self.gathers = True


class Waiting:
    """A load that takes so many waits, or fails."""

    def __init__(self, waits=0, error=None):
        self.left, self.error = waits, error
        self.cancelled, self.inside = False, 0

    def __enter__(self):
        self.inside += 1

    def __exit__(self, *_):
        self.inside -= 1

    def wait(self, timeout):
        assert self.inside == 1
        if self.error is not None:
            raise self.error
        self.left -= 1
        return self.left < 0 and not self.cancelled

    def cancel(self):
        self.cancelled = True


def begun(generation, **more):
    return lambda: Begun(INFO, generation, **more)


def after(waiting, generation):
    return lambda: None if waiting.left >= 0 else Begun(INFO, generation)


def read(run):
    events = []
    while not run.done:
        events += run.events(0.01)
    return events


def no_wait():
    raise AssertionError("its model is loaded")


def test_a_run_on_a_loaded_model_begins_at_once():
    run = Run(begun(Said("a", "b")), no_wait)
    assert run.has_begun and run.info is INFO
    assert [e.text for e in read(run) if isinstance(e, Text)] == ["a", "b"]


def test_it_begins_when_its_model_is_loaded():
    waiting = Waiting(2)
    run = Run(after(waiting, Said("a")), lambda: waiting)
    assert (run.events(0), run.events(0), run.info, run.done) == ([], [], None, False)
    assert run.events(0) == [Text(0, "a")] and run.info is INFO and not waiting.inside


def test_it_waits_again_where_its_model_had_to_make_room():
    waiting, answers = Waiting(0), [None, None, Begun(INFO, Said("a"))]
    run = Run(lambda: answers.pop(0), lambda: waiting)
    assert run.events() == [Text(0, "a")] and waiting.left == -2


def test_a_load_that_fails_is_the_only_event():
    error = Unavailable("no good")
    waiting = Waiting(error=error)
    run = Run(lambda: None, lambda: waiting)
    assert run.events() == [Failed(0, error)] and run.done and not run.has_begun and not waiting.inside


@pytest.mark.parametrize("loaded", [True, False])
def test_what_is_wrong_is_told_in_the_callers_words(loaded):
    waiting, answers = Waiting(0), [] if loaded else [None]

    def begin():
        if answers:
            return answers.pop(0)
        raise InvalidRequest("too long", param="prompt")

    def explain(error):
        return error.but(param="messages")

    if loaded:
        with pytest.raises(InvalidRequest) as caught:
            Run(begin, lambda: waiting, explain=explain)
        assert caught.value.param == "messages"
    else:
        (failed,) = Run(begin, lambda: waiting, explain=explain).events()
        assert failed.error.param == "messages"


def test_our_own_mistake_ends_it_and_is_raised():
    waiting, answers = Waiting(0), [None]
    run = Run(lambda: answers.pop(), lambda: waiting)
    with pytest.raises(IndexError):
        run.events()
    assert run.done


def test_a_run_that_is_cancelled_while_it_waits_ends_without_an_event():
    waiting = Waiting(5)
    run = Run(lambda: None, lambda: waiting)
    run.cancel()
    assert waiting.cancelled and run.events() == [] and run.done and run.cancelled


def test_a_run_that_is_cancelled_while_it_begins_gives_its_generation_up():
    waiting, generation = Waiting(0), Said("a")

    def begin():
        if waiting.left >= 0:
            return None
        run.cancel()
        return Begun(INFO, generation)

    run = Run(begin, lambda: waiting)
    assert run.events()[0].reason is FinishReason.CANCELLED and generation.cancelled


def test_a_running_one_that_is_cancelled_still_ends():
    generation = Said("a")
    run = Run(begun(generation), no_wait)
    run.cancel()
    run.cancel()
    assert generation.cancelled and read(run)[0].reason is FinishReason.CANCELLED


def test_events_go_through_the_stages_in_order():
    def upper(events):
        return [Text(0, e.text.upper()) if isinstance(e, Text) else e for e in events]

    def twice(events):
        return [Text(0, e.text * 2) if isinstance(e, Text) else e for e in events]

    run = Run(begun(Said("a"), stages=[upper, twice]), no_wait)
    assert run.events() == [Text(0, "AA")]


@pytest.mark.parametrize("may_gather", [True, False])
def test_it_gathers_unless_something_acts_on_each_event(may_gather):
    generation, waiting = Said("a"), Waiting(0)
    answers = [None, Begun(INFO, generation, may_gather=may_gather)]
    run = Run(lambda: answers.pop(0), lambda: waiting)
    run.gather()
    run.events()
    assert generation.gathers is may_gather


def test_its_info_tells_of_prompts():
    assert INFO.num_prompt == 3 and [INFO.num_prompt_of(i) for i in range(4)] == [2, 2, 1, 1]
    assert INFO.prompt_text(1) == "ab" and INFO.prompt_text(2) == "c"
    assert INFO.whole_text("d") == [97, 98, 100]


# waiting for a load


class Loader:
    """One whose loads take until `wait` is told that they are done."""

    load_timeout = 60.0

    def __init__(self, is_loaded=False):
        self.is_loaded = is_loaded
        self.notice = threading.Event()
        self.notice.tell = self.notice.set

    def load(self, model):
        return None

    def wait(self, model, timeout, given_up):
        assert 0 < timeout <= 60
        return self.is_loaded


class Model:
    name = "m"

    def __init__(self):
        self.awaited = []


def test_a_model_counts_as_awaited_for_as_long_as_somebody_waits():
    model = Model()
    with LoadWait(Loader(True), model) as wait:
        assert wait.wait() and len(model.awaited) == 1
    assert not model.awaited


def test_a_load_has_the_loaders_limit_or_the_requests_own():
    loader = Loader()
    loader.load_timeout = 0.0
    with pytest.raises(Unavailable, match="still loading"):
        LoadWait(loader, Model()).wait()
    loader.load_timeout = 60.0
    with pytest.raises(DeadlineExceeded, match="timed out while its model was loading"):
        LoadWait(loader, Model(), timeout=1e-9).wait()


def test_whoever_waits_hears_that_it_was_cancelled():
    loader = Loader()
    wait = LoadWait(loader, Model())
    wait.cancel()
    assert loader.notice.is_set() and wait.wait() is False
