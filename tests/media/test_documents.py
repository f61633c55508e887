"""Documents are read page by page in the child, within bounds; what is hostile is refused."""

from __future__ import annotations

import io
import random
import time

import pytest
from media.documents import pdf
from PIL import Image
from pypdf import PdfReader, PdfWriter

from llamasrv.errors import InvalidMedia
from llamasrv.media.decoder import Decoder
from llamasrv.media.limits import MediaLimits


@pytest.fixture(scope="module")
def decoder():
    decoder = Decoder(MediaLimits(pages=20, document_chars=10_000, seconds=5.0))
    yield decoder
    decoder.close()


def jpeg():
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 0)).save(out, "JPEG")
    return out.getvalue()


def texts(decoder, data):
    return [text for text, _ in decoder.pages(data, with_pictures=False)]


def test_each_page_has_its_text(decoder):
    assert texts(decoder, pdf("First page", "Second\npage")) == ["First page", "Second\npage"]


def test_a_page_without_text_is_its_picture(decoder):
    data = pdf("A page with some text on it", "", picture=jpeg())
    [(text, none), (empty, picture)] = decoder.pages(data, with_pictures=True)
    assert (text, none, empty) == ("A page with some text on it", None, "")
    assert Image.open(io.BytesIO(picture)).size == (8, 8)
    assert decoder.pages(data, with_pictures=False)[1] == ("", None)


def test_an_encrypted_document_is_refused(decoder):
    writer, out = PdfWriter(PdfReader(io.BytesIO(pdf("x")))), io.BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(out)
    with pytest.raises(InvalidMedia, match="encrypted"):
        decoder.pages(out.getvalue(), with_pictures=False)


@pytest.mark.parametrize(
    "data, why",
    [
        (pdf(*["x"] * 21), "21 pages; at most 20"),
        (pdf("x" * 11_000), "more than 10000 characters"),
        (b"%PDF-1.7 and nothing else", "damaged"),
    ],
)
def test_too_much_and_too_little_are_refused(decoder, data, why):
    with pytest.raises(InvalidMedia, match=why):
        decoder.pages(data, with_pictures=False)


def test_pages_in_a_circle_end(decoder):
    """The tree of pages contains itself."""
    looping = pdf("x").replace(b"/Kids [5 0 R]", b"/Kids [2 0 R]")
    assert b"/Kids [2 0 R]" in looping
    began = time.monotonic()
    with pytest.raises(InvalidMedia):
        decoder.pages(looping, with_pictures=False)
    assert time.monotonic() - began < 10


def test_damaged_documents_are_read_or_refused(decoder):
    """Bytes changed at random, cut off, or doubled: nothing but InvalidMedia, and the next document is read."""
    rng, good = random.Random(1), pdf("Hello", "World", picture=jpeg())
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(8, len(data))] = rng.randrange(256)
        data = bytes(data[: rng.randrange(20, len(data))] if rng.random() < 0.3 else data)
        try:
            decoder.pages(data, with_pictures=True)
        except InvalidMedia:
            continue
    assert texts(decoder, pdf("Still here")) == ["Still here"]
