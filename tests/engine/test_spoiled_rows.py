"""NaN in logits: which sequences fail, for how long, and when the model is given up."""

import numpy as np
import pytest
from engine_driver import GREEDY, chat, end_of, text_of
from recording_backend import RecordingBackend

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.interface import Adapter
from llamasrv.errors import Unavailable

ADAPTED = ((0, 100.0),)
SEEDED = SamplingParams(seed=1)


class Poisoned(RecordingBackend):
    """A lane with adapters yields NaN; without flash attention (`spreads`) so does every other lane from then on, until
    the context is made anew. `always`: nothing does."""

    def __init__(self, *, spreads, always=False, **settings):
        self.spreads, self.always, self.is_poisoned = spreads, always, False
        super().__init__(adapters=(Adapter("a", "a.gguf"),), **settings)

    def reset(self):
        super().reset()
        self.is_poisoned = False

    def decode(self):
        super().decode()
        adapted = bool(self._used)
        self.is_poisoned |= adapted and self.spreads
        if adapted or self.is_poisoned or self.always:
            self._logits = np.full_like(self._logits, np.nan)


@pytest.mark.parametrize("words", [1, 60], ids=["at once", "before its first logits"])
@pytest.mark.parametrize("flash_attn", ["off", "auto"])
def test_a_nan_row_ends_no_other_sequence(drive, flash_attn, words):
    """A LoRA at scale 100 made NaN of its cells, and every later request failed until the model was loaded again: NaN
    times 0 is NaN. Of a prompt in several steps, the first made NaN of a neighbour's logits, which ended in its
    place."""
    driver = drive(Poisoned(spreads=True, batch_size=64), flash_attn=flash_attn)
    beside = [driver.submit(chat(f"neighbour {n} " * 5), params=params) for n, params in enumerate((GREEDY, SEEDED))]
    driver.turn(4)
    bad = driver.submit(chat("bad " * words), adapters=ADAPTED)
    driver.turn(2)
    newcomer = driver.submit(chat("new"))
    driver.finish()
    assert end_of(bad.take()).error is not None
    for n, stream in enumerate(beside):
        assert text_of(stream.take()).startswith(f"You said: neighbour {n} neighbour")
    assert text_of(newcomer.take()) == "You said: new"
    assert driver.answer(chat("later")) == "You said: later"
    assert driver.engine.status.state == "ready"


def test_if_nan_does_not_spread_the_context_stays(drive):
    driver = drive(Poisoned(spreads=False), flash_attn="auto")
    beside = driver.submit(chat("a neighbour " * 5))
    for _ in range(3):
        driver.turn(4)
        driver.submit(chat("bad"), adapters=ADAPTED)
    driver.finish()
    assert end_of(beside.take()).error is None
    assert driver.engine.metrics.restarts == 0 and driver.engine.metrics.spoiled_rows == 3


@pytest.mark.parametrize("flash_attn", ["off", "auto"])
def test_a_model_that_yields_only_nan_is_given_up(drive, flash_attn):
    """`/readyz` went on saying 200 while every request failed."""
    driver = drive(Poisoned(spreads=False, always=True), flash_attn=flash_attn)
    for _ in range(2):
        assert end_of(driver_take(driver)).error is not None
        assert driver.engine.status.state == "ready"
    assert end_of(driver_take(driver)).error is not None
    assert driver.engine.status.state == "failed" and "NaN" in driver.engine.status.reason
    with pytest.raises(Unavailable):
        driver.submit(chat("again"))


def test_nan_from_a_clients_adapters_does_not_give_the_model_up(drive):
    driver = drive(Poisoned(spreads=True), flash_attn="off")
    for _ in range(5):
        end_of(driver_take(driver, adapters=ADAPTED))
    assert driver.engine.status.state == "ready" and driver.answer(chat("hello")) == "You said: hello"


def driver_take(driver, **settings):
    stream = driver.submit(chat("hello"), **settings)
    driver.finish()
    return stream.take()
