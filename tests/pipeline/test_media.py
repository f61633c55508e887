"""Images and sounds of a request: counted without being encoded, refused before anything runs."""

from __future__ import annotations

import pytest
from pipelines import user
from samples import png, wav
from serving import check_no_leaks, open_engine, pipeline_on

from llamasrv.domain.request import ChatPrompt, GenerateRequest, MediaPart, Message, MixedPrompt, TextPart
from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.errors import InvalidMedia, InvalidRequest, QueueFull, Unsupported
from llamasrv.media.limits import MediaLimits
from llamasrv.pipeline.media import MediaOptions, MediaReader

IMAGE = MediaPart("image", png(64, 32), param="messages[0].content[1]")
SOUND = MediaPart("audio", wav(2.0), param="messages[0].content[1]")
ROWS = {"image": 2, "audio": 4}  # of the fake projector; around them it writes "[image" and "]"


def asking(*parts):
    return GenerateRequest(prompts=(ChatPrompt((Message("user", parts),)),))


@pytest.fixture
def seeing():
    engine = open_engine(context=512, projector=FakeProjector())
    pipeline = pipeline_on(engine)
    yield pipeline
    pipeline.media.close()
    engine.turn()
    check_no_leaks(engine)


@pytest.mark.parametrize("part", [IMAGE, SOUND])
def test_it_counts_an_image_and_a_sound_without_encoding(seeing, part):
    bare = seeing.count(GenerateRequest(prompts=user("What is this?")))
    with_it = seeing.count(asking(TextPart("What is this?"), part))
    assert with_it - bare == len(f"[{part.kind}]") + ROWS[part.kind]
    assert seeing.open("fake").projector.encoded == []


def test_raw_prompts_may_hold_them(seeing):
    assert seeing.count(GenerateRequest(prompts=(MixedPrompt(("ab", IMAGE, 99)),))) == 2 + 9 + 1


@pytest.mark.parametrize("part", [IMAGE, SOUND])
def test_a_model_without_a_projector_refuses_them_by_name(part):
    pipeline = pipeline_on(open_engine())
    with pytest.raises(Unsupported, match="This model has no (vision|audio) projector; it cannot take") as caught:
        pipeline.submit(asking(TextPart("x"), part))
    assert caught.value.param == "messages[0].content[1]"


def test_a_model_that_only_hears_refuses_images():
    pipeline = pipeline_on(open_engine(projector=FakeProjector(vision=False)))
    with pytest.raises(Unsupported, match="vision"):
        pipeline.count(asking(IMAGE))


def test_what_cannot_be_decoded_is_refused_by_name(seeing):
    with pytest.raises(InvalidMedia) as caught:
        seeing.submit(asking(MediaPart("image", b"no image", param="messages[0].content[0]")))
    assert caught.value.param == "messages[0].content[0]"


def test_urls_are_not_fetched(seeing):
    for url in ("https://example.com/x.png", "file:///etc/passwd", "ftp://x/y"):
        with pytest.raises(InvalidMedia):
            seeing.count(asking(MediaPart("image", url=url)))


def test_their_number_and_their_size_are_bounded():
    reader = MediaReader(MediaOptions(limits=MediaLimits(count=2, decoded_bytes=3 * 64 * 32 * 2 - 1)))
    projector = FakeProjector()
    try:
        with pytest.raises(InvalidRequest, match="3 images and audio clips"):
            reader.read(asking(IMAGE, IMAGE, IMAGE).prompts, projector)
        with pytest.raises(InvalidMedia, match="more than"):
            reader.read(asking(IMAGE, IMAGE).prompts, projector)
        reader.read(asking(IMAGE).prompts, projector)
    finally:
        reader.close()


def test_what_was_decoded_lately_is_kept_within_bounds():
    size = 64 * 32 * 3
    reader = MediaReader(MediaOptions(limits=MediaLimits(kept_bytes=4 * size)))
    projector = FakeProjector()

    def read(number):
        part = MediaPart("image", png(64, 32, (number, 0, 0)))
        return reader.read(asking(part).prompts, projector).of(part).media

    try:
        first = read(1)
        assert read(1) is first
        kept = {number: read(number) for number in range(2, 6)}
        again = read(1)
        assert again is not first and again.key == first.key and again.data == first.data
        assert [number for number in (5, 4, 3, 2) if read(number) is kept[number]] == [5, 4, 3]
    finally:
        reader.close()


def test_all_requests_together_have_so_much_memory():
    """Each request was bounded, but not how many of them: some hundred with large images took all the memory. What is
    only kept for later makes room."""
    size = 64 * 32 * 3
    reader = MediaReader(MediaOptions(limits=MediaLimits(held_bytes=3 * size)))
    projector = FakeProjector()

    def read(number, **options):
        return reader.read(asking(MediaPart("image", png(64, 32, (number, 0, 0)))).prompts, projector, **options)

    try:
        for number in range(10):
            read(number)  # nobody holds these any more
        held = [read(number) for number in (20, 21, 22)]
        with pytest.raises(QueueFull, match="all requests together") as refused:
            read(23)
        assert refused.value.status == 429 and reader.held.total == 3 * size
        read(24, to_count=True)
        held.pop()
        held.append(read(23))
        assert reader.held.total == 3 * size
    finally:
        reader.close()
