"""An engine on RecordingBackend, driven by hand; each test ends with a check for leaks."""

from __future__ import annotations

from array import array

import pytest
from engine_by_hand import HandEngine
from recording_backend import RecordingBackend

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec
from llamasrv.engine.base.channels import Delta, Doorbell, End, PromptScored, Stream
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.engine import EngineOptions

GREEDY = SamplingParams(temperature=0)


class Driver:
    """An engine that is turned by hand, with a clock that only the test moves."""

    def __init__(self, backend, *, prefixes=None, **options):
        self.now = 0.0
        self.backend = backend
        self.engine = HandEngine(
            lambda progress: backend, EngineOptions(**options), clock=lambda: self.now, prefixes=prefixes
        )
        self.engine.open()
        self.core = self.engine.core
        self.sequences = self.engine.arrived
        self.encodes = True  # images and sounds, one input a turn

    def spec(self, prompt, **settings):
        tokens = self.backend.vocab.tokenize(prompt) if isinstance(prompt, str) else prompt
        return spec(tokens, **{"params": GREEDY, **settings})

    def submit(self, prompt, *, constraint=None, **settings):
        return self.engine.submit([self.spec(prompt, **settings)], [constraint])

    def turn(self, times=1):
        for _ in range(times):
            self.now += 0.01
            if self.encodes and self.core.encoder is not None:
                self.core.encoder.turn()
            self.engine.turn()

    def finish(self, most=20_000):
        for _ in range(most):
            if not self.engine.num_open:
                return
            self.turn()
        raise AssertionError("the engine does not come to an end")

    def answer(self, prompt, **settings):
        stream = self.submit(prompt, **settings)
        self.finish()
        return text_of(stream.take())


def spec(tokens, *, adapters=(), scope="", **settings):
    """A SequenceSpec of any tokens."""
    return SequenceSpec(array("i", tokens), cache_key=CacheKey(adapters, scope), **settings)


def sequence(tokens, **settings):
    """A Sequence as the engine makes it from a spec."""
    return Sequence(spec(tokens, **settings), Stream(Doorbell()))


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def text_of(items, index=0):
    return b"".join(i.data for i in items if isinstance(i, Delta) and i.choice == index).decode("utf-8", "replace")


def end_of(items, index=0):
    """The one End of a choice, which must be its last item."""
    mine = [i for i in items if i.choice == index]
    ends = [i for i in mine if isinstance(i, End)]
    assert len(ends) == 1 and mine[-1] is ends[0], mine[-3:]
    return ends[0]


def scores_of(items):
    return next(i.logprobs for i in items if isinstance(i, PromptScored))


@pytest.fixture
def drive():
    """`drive(num_cells=..., parallel=..., ...)`: backend settings and engine options by name."""
    drivers = []

    def make(backend=None, **settings):
        names = {
            "num_lanes",
            "num_cells",
            "context",
            "batch_size",
            "ubatch_size",
            "traits",
            "idle_cells",
            "projector",
            "max_rollback",
            "num_tokens",
        }
        fake = {name: settings.pop(name) for name in list(settings) if name in names}
        drivers.append(Driver(backend or RecordingBackend(**fake), **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        no_leaks(driver)


def no_leaks(driver):
    """No lane held, no cell lost, every chain closed, every sequence ended with an End."""
    engine, core, backend = driver.engine, driver.core, driver.backend
    engine.turn()
    assert not core.running and not core.waiting and engine.num_open == 0
    core.memory.check()
    core.memory.tree.check()
    assert not core.memory.lanes.held and core.memory.lanes.held_cells == 0
    assert core.admission.swapped_bytes == 0
    assert core.encoder is None or (not core.encoder.num_waiting and not core.encoder._pins)
    if isinstance(backend, RecordingBackend):
        assert core.memory.lanes.used_cells == backend.used_cells, "the books and the backend differ"
        assert all(chain.closed for chain in backend.chains)
    for seq in driver.sequences:
        assert (
            seq.state is SequenceState.ENDED and seq.lane is None and seq.saved is None and seq.stream.open_choices == 0
        )
