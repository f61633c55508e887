"""A request from its model's loading to its end, with a pipeline and a loader that the test controls."""

from __future__ import annotations

import threading

import pytest

from llamasrv.domain.events import Failed, FinishReason, Text
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.backend.fake import FakeVocabulary
from llamasrv.engine.base.channels import Delta, End
from llamasrv.errors import DeadlineExceeded, InvalidRequest, Unavailable
from llamasrv.pipeline.detokenizer import Detokenizer
from llamasrv.pipeline.load_wait import LoadWait
from llamasrv.pipeline.run import Run, RunInfo, RunState, Submission

INFO = RunInfo("m", "fp", SamplingParams(), [[97, 98], [99]], 2, 0, FakeVocabulary())


def end(reason=FinishReason.STOP):
    return [End(0, reason, None, None, 3, 0, 2, 0.0, 0.0, 0.0)]


class Said:
    """An engine and its stream: the stream says this, a piece for each wake."""

    def __init__(self, *pieces):
        self.items = [*([Delta(0, 0, piece.encode())] for piece in pieces), end()]
        self.waits = []
        self.cancelled = self.gathers = False

    def wait(self, timeout):
        self.waits.append(timeout)
        return bool(self.items)

    def take(self):
        return self.items.pop(0)

    def cancel(self, stream):
        assert stream is self
        self.cancelled = True
        self.items = [end(FinishReason.CANCELLED)]

    def gather(self):
        self.gathers = True

    def submitted(self, **more):
        return Submission(INFO, self, self, [Detokenizer()], **more)


class Start:
    """A starter that does what it is given; `wait` None: there is nothing to wait for."""

    def __init__(self, start, wait=None):
        self.start, self._wait = start, wait

    def wait(self):
        assert self._wait is not None, "its model is loaded"
        return self._wait


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


def at_once(said, **more):
    return Start(lambda: said.submitted(**more))


def after(waiting, said):
    return Start(lambda: None if waiting.left >= 0 else said.submitted(), waiting)


def answering(waiting, *answers):
    """What it gives one time after the other."""
    answers = list(answers)
    return Start(lambda: answers.pop(0), waiting)


def read(run):
    events = []
    while not run.done:
        events += run.events(0.01)
    return events


def test_a_run_on_a_loaded_model_begins_at_once():
    run = Run(at_once(Said("a", "b")))
    assert run.state is RunState.RUNNING and run.info is INFO
    assert [e.text for e in read(run) if isinstance(e, Text)] == ["a", "b"] and run.state is RunState.DONE


def test_it_begins_when_its_model_is_loaded():
    waiting, heard = Waiting(2), []
    run = Run(after(waiting, Said("a")), on_start=heard.append)
    assert (run.events(0), run.events(0), run.info, run.state, heard) == ([], [], None, RunState.LOADING, [])
    assert run.events(0) == [Text(0, "a")] and run.info is INFO and not waiting.inside
    assert heard == [INFO] and run.state is RunState.RUNNING


def test_it_waits_again_where_its_model_had_to_make_room():
    waiting = Waiting(0)
    run = Run(answering(waiting, None, None, Said("a").submitted()))
    assert run.events() == [Text(0, "a")] and waiting.left == -2


def test_a_load_that_fails_is_the_only_event():
    error = Unavailable("no good")
    waiting = Waiting(error=error)
    run = Run(Start(lambda: None, waiting))
    assert run.events() == [Failed(0, error)] and run.done and not run.has_begun and not waiting.inside


@pytest.mark.parametrize("loaded", [True, False])
def test_what_is_wrong_is_reported_in_the_callers_words(loaded):
    answers = [] if loaded else [None]

    def start():
        if answers:
            return answers.pop(0)
        raise InvalidRequest("too long", param="prompt")

    def explain(error):
        return error.but(param="messages")

    if loaded:
        with pytest.raises(InvalidRequest) as caught:
            Run(Start(start), explain=explain)
        assert caught.value.param == "messages"
    else:
        (failed,) = Run(Start(start, Waiting(0)), explain=explain).events()
        assert failed.error.param == "messages"


def test_our_own_mistake_ends_it_and_is_raised():
    run = Run(answering(Waiting(0), None))
    with pytest.raises(IndexError):
        run.events()
    assert run.done


def test_a_run_that_is_cancelled_while_it_waits_ends_without_an_event():
    waiting = Waiting(5)
    run = Run(Start(lambda: None, waiting))
    run.cancel()
    assert waiting.cancelled and run.events() == [] and run.done and run.cancelled


def test_a_run_that_is_cancelled_while_it_begins_stops_what_was_submitted():
    waiting, said = Waiting(0), Said("a")

    def start():
        if waiting.left >= 0:
            return None
        run.cancel()
        return said.submitted()

    run = Run(Start(start, waiting))
    assert run.events()[0].reason is FinishReason.CANCELLED and said.cancelled


def test_a_running_one_that_is_cancelled_still_ends():
    said = Said("a")
    run = Run(at_once(said))
    run.cancel()
    run.cancel()
    assert said.cancelled and read(run)[0].reason is FinishReason.CANCELLED


def test_what_the_engine_ends_by_itself_has_failed():
    """Not the client: the server is stopping."""
    said = Said()
    said.cancel(said)
    failed, _ = read(Run(at_once(said)))
    assert isinstance(failed.error, Unavailable)


def test_events_go_through_the_stages_in_order():
    def upper(events):
        return [Text(0, e.text.upper()) if isinstance(e, Text) else e for e in events]

    def twice(events):
        return [Text(0, e.text * 2) if isinstance(e, Text) else e for e in events]

    run = Run(at_once(Said("a"), stages=[upper, twice]))
    assert run.events() == [Text(0, "AA")]


@pytest.mark.parametrize("limit", [None, 60.0])
def test_it_gathers_unless_something_acts_on_each_event(limit):
    said = Said("a")
    run = Run(answering(Waiting(0), None, said.submitted(time_limit=limit)))
    run.gather()
    run.events()
    assert said.gathers is (limit is None)


def test_tokens_without_text_do_not_end_the_wait():
    """A wait that saw half a character goes on for the rest of its time."""
    said = Said()
    said.items = [[Delta(0, 0, data)] for data in (b"", b"\xc3", b"\xa9", b"\xc3")]
    run = Run(at_once(said))
    assert [e.text for e in run.events(60)] == ["é"]
    assert said.waits[0] == 60 and said.waits == sorted(said.waits, reverse=True) and said.waits[-1] > 0
    assert run.events(60) == []


def test_tokens_without_text_do_not_prolong_the_wait():
    said = Said(*[""] * 10)
    assert Run(at_once(said)).events(0) == []
    assert len(said.waits) == 1


def test_its_info_describes_its_prompts():
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


def test_a_model_counts_as_awaited_for_as_long_as_a_request_waits():
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
