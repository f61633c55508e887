"""Documents are read page by page in the child, within limits; hostile ones are refused."""

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


def test_each_page_becomes_its_text(decoder):
    assert texts(decoder, pdf("First page", "Second\npage")) == ["First page", "Second\npage"]


def test_a_page_without_text_becomes_its_picture(decoder):
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
        (pdf("x" * 11_000), "more than the 10000 characters"),
        (b"%PDF-1.7 and nothing else", "damaged"),
    ],
)
def test_empty_and_oversized_documents_are_refused(decoder, data, why):
    with pytest.raises(InvalidMedia, match=why):
        decoder.pages(data, with_pictures=False)


def test_a_circular_page_tree_ends(decoder):
    """The page tree contains itself."""
    looping = pdf("x").replace(b"/Kids [5 0 R]", b"/Kids [2 0 R]")
    assert b"/Kids [2 0 R]" in looping
    began = time.monotonic()
    with pytest.raises(InvalidMedia):
        decoder.pages(looping, with_pictures=False)
    assert time.monotonic() - began < 10


def test_damaged_documents_are_read_or_refused(decoder):
    """Bytes altered at random, truncated, or doubled raise only InvalidMedia, and the next document is read."""
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


def left(**more):
    return MediaLimits(pages=700, seconds=10.0, **more)


def test_a_picture_shared_by_pages_is_sent_once(decoder):
    """A JPEG of 1.5 MiB on 150 pages came as 227 MiB, before any limit applied."""
    picture = jpeg() + bytes(100_000)
    sizes = []
    pages = decoder.pages(pdf(*[""] * 15, picture=picture), with_pictures=True, check=sizes.append)
    assert len(pages) == 15 and len({id(shown) for _, shown in pages}) == 1
    assert sizes == [len(pages[0][1])]


def test_the_child_refuses_pictures_beyond_the_limit(decoder):
    data = pdf(*[""] * 15, picture=jpeg())
    assert len(decoder.pages(data, with_pictures=True, left=left(count=15))) == 15
    for bounds, words in (
        ({"count": 14}, "than the 14 images"),
        ({"picture_bytes": 100}, "than the 100 bytes"),
        ({"count": 0}, "than the 0"),
    ):
        with pytest.raises(InvalidMedia, match=words):
            decoder.pages(data, with_pictures=True, left=left(**bounds))
    with pytest.raises(InvalidMedia, match="than the 9 characters"):
        decoder.pages(pdf("more than nine characters"), with_pictures=True, left=left(document_chars=9))
    assert len(decoder.pages(data, with_pictures=False, left=left(count=0))) == 15


def test_pictures_that_exceed_memory_are_not_fetched(decoder):
    class Full(Exception):
        pass

    def check(size):
        raise Full

    with pytest.raises(Full):
        decoder.pages(pdf("", picture=jpeg()), with_pictures=True, check=check)
    assert texts(decoder, pdf("The next one")) == ["The next one"]
