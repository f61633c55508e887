"""Several images in one call of the library, on tiny projectors of the kinds that batch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from llamasrv.domain.media import MediaChunk, MediaInput
from llamasrv.engine.backend.chunk_batches import BATCHING_KINDS, MOST_SECONDS, ChunkBatches
from llamasrv.engine.base.interface import MediaWork
from llamasrv.engine.base.options import EngineOptions

BATCHING = pytest.mark.parametrize("kind", BATCHING_KINDS)


@pytest.fixture
def projector(model_path):
    """`projector(kind)`; `calls` of it: how many images each call with several had."""
    from llamasrv.engine.backend.library import C
    from llamasrv.engine.backend.projector import LlamaProjector

    made = []

    def make(kind):
        model = C.llama_model_load_from_file(model_path(f"text-{kind}").encode(), C.llama_model_default_params())
        one = LlamaProjector(model, EngineOptions(mmproj=Path(model_path(f"mmproj-{kind}"))))
        one._batches.most_seconds = 60.0  # a busy machine changes nothing
        made.append((model, one))
        return one

    yield make
    for model, one in made:
        one.close()
        C.llama_model_free(model)


@pytest.fixture
def calls(monkeypatch):
    """Number of images in each of the library's batches."""
    seen, encode = [], ChunkBatches.encode

    def counted(self, context, pointers, num_tokens):
        seen.append(len(pointers))
        return encode(self, context, pointers, num_tokens)

    monkeypatch.setattr(ChunkBatches, "encode", counted)
    return seen


def image(seed, width=60, height=40):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8).tobytes()
    return MediaInput("image", hashlib.sha256(pixels).digest(), pixels, width, height)


def work_of(projector, *images):
    return [MediaWork(one, [p for p in projector.measure(one).parts if isinstance(p, MediaChunk)]) for one in images]


def alone(projector, work):
    return [projector.encode(media, chunks, lambda: False) for media, chunks in work]


def assert_same(found, expected):
    assert [len(rows) for rows in found] == [len(rows) for rows in expected]
    for some, others in zip(found, expected):
        for one, other in zip(some, others):
            assert one.shape == other.shape and np.abs(one - other).max() < 1e-5


@BATCHING
def test_batched_rows_equal_rows_of_each_alone(projector, calls, kind):
    one = projector(kind)
    work = work_of(one, *(image(seed) for seed in range(8)))
    expected = alone(one, work)
    assert not calls and np.abs(expected[0][0] - expected[1][0]).max() > 0.1
    assert one.most_together == 8 and one.fit_together(work)
    assert_same(one.encode_together(work, lambda: False), expected)
    assert calls == [8]


def test_tiles_of_an_image_share_calls(projector, calls):
    """And of different images: they have one size, whatever the image."""
    one = projector("internvl")
    work = work_of(one, image(1, 300, 200), image(2, 200, 300))
    alone(one, work_of(one, image(3)))
    assert [len(chunks) for _, chunks in work] == [13, 13] and not one.fit_together(work)
    found = alone(one, work)
    assert calls == [8, 5, 8, 5]
    single = [[one.encode(media, [chunk], lambda: False)[0] for chunk in chunks] for media, chunks in work]
    assert_same(found, single)


def test_images_of_other_sizes_are_not_batched(projector, calls):
    """The library would batch 96 x 48 and 48 x 96 pixels, which have equal numbers of rows, and compute wrong rows."""
    one = projector("gemma4v")
    work = work_of(one, image(1, 96, 48), image(2, 48, 96))
    assert work[0].chunks[0].num_tokens == work[1].chunks[0].num_tokens
    expected = alone(one, work)
    assert one.most_together > 1 and not one.fit_together(work)
    assert_same(one.encode_together(work, lambda: False), expected)
    assert not calls


def test_long_encodes_are_not_batched():
    """A longer call would delay all waiting images, and gain nothing."""
    batches = ChunkBatches(None, "internvl", 4)
    chunk = MediaChunk(0, b"", 16, 16)
    work = [MediaWork(image(seed), [chunk]) for seed in range(8)]
    assert batches.most_together == 1 and not batches.fit(work[:2])  # nobody knows how long one takes
    for seconds, room in ((MOST_SECONDS, 1), (MOST_SECONDS / 3.5, 3), (0.001, 8)):
        batches.note(work[0].media, chunk, seconds)
        assert batches.most_together == room
        assert [batches.fit(work[:count]) for count in range(1, 9)] == [count <= room for count in range(1, 9)]


@pytest.mark.parametrize("kind", ["gemma3", "qwen2vl"])
def test_other_projectors_encode_one_at_a_time(projector, calls, kind):
    one = projector(kind)
    work = work_of(one, *(image(seed) for seed in range(3)))
    alone(one, work)
    assert one.most_together == 1 and not one.fit_together(work) and not calls


def test_after_a_failure_of_the_library_images_go_one_at_a_time(projector, calls, monkeypatch):
    from llamasrv.engine.backend.library import mtmd

    one = projector("internvl")
    work = work_of(one, *(image(seed) for seed in range(3)))
    expected = alone(one, work)
    monkeypatch.setattr(mtmd(), "mtmd_batch_add_chunk", lambda batch, chunk: 2)
    assert_same(one.encode_together(work, lambda: False), expected)
    assert_same(alone(one, work), expected)
    assert calls == [3] and one.most_together == 1 and not one.fit_together(work)


def test_a_stopped_call_returns_no_rows_and_harms_no_later_call(projector):
    one = projector("internvl")
    work = work_of(one, *(image(seed) for seed in range(4)))
    expected = alone(one, work)
    asked = []
    assert one.encode_together(work, lambda: bool(asked.append(1)) or len(asked) > 2) == [[]] * 4
    assert_same(one.encode_together(work, lambda: False), expected)
