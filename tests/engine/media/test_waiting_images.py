"""Images of several requests wait for the encoder, which takes one after another."""

from __future__ import annotations

import pytest
from engine_driver import end_of, text_of
from media_prompts import picture, prompt, sound

from llamasrv.domain.events import FinishReason
from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.errors import InvalidRequest


@pytest.fixture
def see(drive):
    return lambda **settings: drive(projector=FakeProjector(), **settings)


def ask_all(driver, media):
    """One request per image; all of them wait for the encoder."""
    driver.encodes = False
    streams = [driver.engine.submit([prompt(driver.engine, one, f"{n}", max_tokens=60)]) for n, one in enumerate(media)]
    driver.turn()
    driver.encodes = True
    return streams


def texts(driver, streams):
    driver.finish()
    return [text_of(stream.take()) for stream in streams]


def answers(count, what="image"):
    return [f"You said: [{what}]{n}" for n in range(count)]


def keys(driver, media):
    return [driver.backend.projector.measure(one).parts[1].key for one in media]


def test_images_and_sounds_are_encoded_in_order(see):
    driver = see()
    media = [picture("a"), picture("b"), picture("large", 400, 400), sound("c", 3), sound("d", 3), picture("e")]
    found = texts(driver, ask_all(driver, media))
    assert found == [f"You said: [{one.kind}]{n}" for n, one in enumerate(media)]
    assert driver.backend.projector.encoded == keys(driver, media)


def test_a_cancelled_image_is_not_encoded(see):
    driver, media = see(), [picture(f"{n}") for n in range(5)]
    streams = ask_all(driver, media)
    driver.encodes = False
    driver.engine.cancel(streams[0])
    driver.engine.cancel(streams[2])
    driver.turn()
    driver.encodes = True
    driver.finish()
    ends = [end_of(stream.take()).reason for stream in streams]
    assert [end is FinishReason.CANCELLED for end in ends] == [True, False, True, False, False]
    left = keys(driver, media)
    assert driver.backend.projector.encoded == [left[1], left[3], left[4]]


def test_a_broken_image_fails_alone(see):
    driver, media = see(), [picture(f"{n}") for n in range(4)]
    projector = driver.backend.projector

    def encode(one, chunks, stop):
        if one is media[2]:
            raise InvalidRequest("This one cannot be used.")
        return FakeProjector.encode(projector, one, chunks, stop)

    projector.encode = encode
    streams = ask_all(driver, media)
    driver.finish()
    items = [stream.take() for stream in streams]
    assert end_of(items[2]).reason is FinishReason.FAILED and "This one" in str(end_of(items[2]).error)
    assert [text_of(items[n]) for n in (0, 1, 3)] == [f"You said: [image]{n}" for n in (0, 1, 3)]


def test_rows_of_waiting_images_stay_under_the_limit(see):
    driver = see(media_bytes=3 * 12 * 16, parallel=1)
    streams = [driver.engine.submit([prompt(driver.engine, picture(f"{n}"), f"{n}", max_tokens=60)]) for n in range(12)]
    most = 0
    while driver.engine.num_open:
        driver.turn()
        most = max(most, driver.core.encoder.used)
    assert most <= 3 * 12 * 16 and [text_of(stream.take()) for stream in streams] == answers(12)
