"""The embedder's inputs with images: encoded on the encoder's thread, then computed one by one."""

from __future__ import annotations

from array import array

import pytest
from media_prompts import picture
from recording_backend import RecordingEmbeddings

from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.embedder import Embedder
from llamasrv.engine.media.encoder import Encoder
from llamasrv.errors import DeadlineExceeded, EngineFailure, InvalidRequest, Unavailable, Unsupported


class Driver:
    """An embedder and an encoder, turned by hand."""

    def __init__(self, **projector):
        self.now, self.projector = 0.0, FakeProjector(**projector)
        self.encoder = Encoder(self.projector, 1 << 20, post=pytest.fail, fail=pytest.fail, metrics=EngineMetrics())
        self.embedder = Embedder(clock=lambda: self.now)
        self.embedder.backend = self.backend = RecordingEmbeddings("mean")
        self.embedder.line.encode = self.encoder.encode

    def submit(self, *inputs, **settings):
        """Each input is a text, or a tuple of texts and images."""
        tokens, media = [], {}
        for i, parts in enumerate(inputs):
            made, spans = array("i"), []
            for part in (parts,) if isinstance(parts, str) else parts:
                if isinstance(part, str):
                    made.extend(part.encode())
                else:
                    spans += self.projector.measure(part).append_to(made)
            tokens.append(made)
            if spans:
                media[i] = spans
        return self.embedder.submit(tokens, media=media, **settings)

    def finish(self):
        while self.embedder.turn() or self.encoder.turn():
            pass


@pytest.fixture
def driver():
    one = Driver()
    yield one
    assert one.embedder.num_open == 0 and not one.embedder.line


def vectors(stream):
    found = {item.place: item for item in stream.take()}
    return [found[i].error or found[i].vector.tolist() for i in sorted(found)]


def test_equal_images_give_equal_vectors_and_are_encoded_once(driver):
    cat, dog = picture("cat"), picture("dog")
    stream = driver.submit(("what: ", cat), ("what: ", picture("cat")), "what: ", ("what: ", dog))
    driver.finish()
    first, second, text, other = vectors(stream)
    assert first == second and first != text and first != other
    assert len(driver.projector.encoded) == 2 == driver.embedder.metrics.media_encoded


def test_texts_do_not_wait_for_an_image(driver):
    slow = driver.submit((picture("cat"),))
    text = driver.submit("abc")
    driver.embedder.turn()
    assert text.open_choices == 0 and slow.open_choices == 1
    driver.finish()
    assert len(vectors(slow)) == 1


def test_few_images_are_encoded_ahead(driver):
    """A thousand inputs hold only the rows of the next few."""
    stream = driver.submit(*[(picture(f"{i}"),) for i in range(20)])
    driver.embedder.turn()
    while driver.encoder.turn():
        pass
    assert len(driver.projector.encoded) == 2
    driver.finish()
    assert len(vectors(stream)) == 20 == len(driver.projector.encoded)


def test_a_broken_image_fails_only_its_inputs(driver, monkeypatch):
    broken = picture("broken")
    encode = driver.projector.encode

    def fails(media, chunks, stop):
        if media is broken:
            raise EngineFailure("Encoding the image or audio failed.")
        return encode(media, chunks, stop)

    monkeypatch.setattr(driver.projector, "encode", fails)
    stream = driver.submit((broken,), ("x", broken), (picture("cat"),), "abc")
    driver.finish()
    first, second, third, fourth = vectors(stream)
    assert isinstance(first, EngineFailure) and isinstance(second, EngineFailure)
    assert isinstance(third, list) and isinstance(fourth, list)


def test_a_cancelled_input_leaves_its_image_to_others(driver):
    gone = driver.submit((picture("cat"),), (picture("dog"),))
    driver.embedder.turn()
    driver.embedder.cancel(gone)
    kept = driver.submit((picture("cat"),))
    driver.finish()
    assert vectors(gone) == [] and isinstance(vectors(kept)[0], list)


def test_deadlines_and_shutdown_end_inputs_waiting_for_the_encoder(driver):
    late = driver.submit((picture("cat"),), deadline=1.0)
    open_ = driver.submit((picture("dog"),))
    driver.embedder.turn()
    driver.now = 2.0
    driver.embedder.turn()
    assert isinstance(vectors(late)[0], DeadlineExceeded)
    driver.embedder.close()
    assert isinstance(vectors(open_)[0], Unavailable)


def test_an_image_that_does_not_fit_a_call_is_refused(driver):
    driver.projector.whole = True
    driver.backend.most_rows = 4
    with pytest.raises(InvalidRequest, match="12 tokens .* at most 4"):
        driver.submit((picture("cat"),))
    driver.backend.most_rows = 0
    with pytest.raises(Unsupported, match="text only"):
        driver.submit((picture("cat"),))
