"""How many sequences run at once where nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest
from model import tiny_models

from llamasrv import config
from llamasrv.models import gguf, memory, places
from llamasrv.models.memory import MemoryShape
from llamasrv.startup import load_plans

MIB = 2**20


def header_of(kind, folder):
    return gguf.read_header(Path(tiny_models.KINDS[kind](folder / "m.gguf")))


def never():
    raise AssertionError("asked for nothing")


def test_a_dense_model_has_as_many_as_batches_gain_from(tmp_path):
    """Nobody is asked for memory: on a device that takes a second."""
    assert places.within(header_of("llama", tmp_path), MemoryShape(), never, 32) == 32


@pytest.mark.parametrize("kind", ["hybrid", "mamba", "swa"])
def test_states_and_windows_are_a_small_part_of_the_memory(kind, tmp_path):
    header = header_of(kind, tmp_path)
    assert places.within(header, MemoryShape(), lambda: 2**40) == 16
    before = 16
    for free in (4 * MIB, MIB, MIB // 4, MIB // 16, 0):
        count = places.within(header, MemoryShape(), lambda free=free: header.size + free)
        assert count <= before and (count == 1 or places.own_bytes(header, MemoryShape(parallel=count)) <= free // 4)
        before = count
    assert before == 1


@pytest.mark.parametrize(("cells", "expected"), [(65536, 16), (4096, 16), (2048, 8), (512, 2), (256, 1), (100, 1)])
def test_a_small_context_has_few(cells, expected):
    assert places.for_context(16, cells) == expected


def chosen(path, **given):
    settings = config.load({"model_path": path, "engine_gpu_layers": 0, **given}, environ={})
    return load_plans.make(settings, gguf.read_header(Path(path)), several=False).options.places


def test_memory_decides_only_what_is_left_open(tmp_path, monkeypatch):
    path = tiny_models.KINDS["llama"](tmp_path / "m.gguf")
    assert chosen(path) == 16
    assert chosen(path, engine_batch_size=8, engine_parallel=8) == 8
    least = memory.estimate(gguf.read_header(Path(path)), memory.LEAST_CELLS, MemoryShape()).total
    monkeypatch.setattr(memory, "available_memory", lambda: least + MIB // 8)
    assert chosen(path) == 2
    assert chosen(path, engine_ctx_size=512) == 16 and chosen(path, engine_parallel=12) == 12


def test_a_model_with_states_has_fewer_where_memory_is_short(tmp_path, monkeypatch):
    path = tiny_models.KINDS["hybrid"](tmp_path / "m.gguf")
    header = gguf.read_header(Path(path))
    monkeypatch.setattr(memory, "available_memory", lambda: header.size + 64 * 1024)
    settings = config.load({"model_path": path, "engine_ctx_size": 512}, environ={})
    assert load_plans.with_places(settings, header).engine.parallel < 16
