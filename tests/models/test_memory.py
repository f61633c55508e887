"""The estimate of memory, and the context chosen from it."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from model import tiny_models, tiny_projectors

from llamasrv.engine.base.machine import available_cores, available_cpus
from llamasrv.engine.engine import EngineOptions
from llamasrv.errors import ConfigError
from llamasrv.models.gguf import Header, SkippedArray, read_header
from llamasrv.models.memory import MemoryShape, available_memory, choose, estimate, projector_bytes, rollback

GIB = 2**30


def model(size: int = GIB, arch: str = "qwen2", **values: object) -> Header:
    """A header as of a small Qwen: 24 layers, 2 KV heads of 64."""
    metadata = {
        "block_count": 24,
        "embedding_length": 896,
        "attention.head_count": 14,
        "attention.head_count_kv": 2,
        "feed_forward_length": 4864,
        "context_length": 32768,
    } | {key.replace("__", "."): value for key, value in values.items()}
    named = {f"{arch}.{key}": value for key, value in metadata.items()}
    named |= {"general.architecture": arch, "tokenizer.ggml.tokens": SkippedArray(8, 151_936)}
    return Header(Path("m.gguf"), 3, size, named, (), (Path("m.gguf"),))


def test_a_cell_holds_keys_and_values_of_all_layers():
    assert estimate(model(), 8192, MemoryShape()).cell == 24 * 2 * (64 + 64) * 2


def test_kv_is_cells_times_cell():
    need = estimate(model(), 8192, MemoryShape())
    assert need.kv == 96 * 2**20  # what llama.cpp itself reports for this model
    assert need.total == need.weights + need.kv + need.states + need.buffers


def test_layers_may_have_different_heads():
    heads = [0, 2] * 12
    assert estimate(model(attention__head_count_kv=heads), 256, MemoryShape()).cell == 24 * 1 * 128 * 2


def test_heads_may_be_of_another_size_than_the_embedding_says():
    need = estimate(model(attention__key_length=128, attention__value_length=32), 256, MemoryShape())
    assert need.cell == 24 * 2 * (128 + 32) * 2


def test_a_quantised_cache_is_smaller():
    full, small = (estimate(model(), 4096, MemoryShape(cache_type_k=t, cache_type_v=t)).kv for t in ("f16", "q8_0"))
    assert 0.5 < small / full < 0.55


def test_latent_attention_keeps_one_row_for_all_heads():
    need = estimate(model(attention__kv_lora_rank=512, rope__dimension_count=64), 256, MemoryShape())
    assert need.cell == 24 * (512 + 64) * 2


def test_recurrent_layers_cost_the_same_at_any_context():
    mamba = model(attention__head_count_kv=0, ssm__inner_size=1024, ssm__state_size=16, ssm__conv_kernel=4)
    short, long = estimate(mamba, 256, MemoryShape()), estimate(mamba, 65536, MemoryShape())
    assert short.states == long.states > 0
    assert short.cell == 0


def test_the_context_is_rounded_up_as_llama_cpp_does():
    assert estimate(model(), 300, MemoryShape()).cells == 512
    split = estimate(model(), 300, MemoryShape(parallel=4, split=True))
    assert (split.cells, split.context) == (1024, 256)


def test_one_sequence_gets_no_more_than_the_model_was_trained_on():
    assert estimate(model(), 65536, MemoryShape()).context == 32768


def test_the_chosen_context_is_several_times_the_trained_one():
    assert choose(model(context_length=2048), MemoryShape(), 64 * GIB).cells == 8192


def test_the_chosen_context_has_a_ceiling():
    assert choose(model(), MemoryShape(), 640 * GIB).cells == 32768
    assert choose(model(context_length=262_144), MemoryShape(), 640 * GIB).cells == 262_144


def test_the_chosen_context_leaves_half_of_the_free_memory():
    plenty, little = (choose(model(), MemoryShape(), n * GIB) for n in (8, 2))
    assert little.cells < plenty.cells
    assert little.kv + little.buffers <= (2 * GIB - little.weights) // 2


def test_a_projector_takes_its_file_and_work_space(tmp_path):
    header = read_header(tiny_projectors.projector(tmp_path / "mmproj.gguf", "gemma3"))
    assert header.size + (8 << 20) < projector_bytes(header) < header.size + (64 << 20)
    size = {"clip.vision.image_size": 896, "clip.vision.patch_size": 16, "clip.vision.embedding_length": 768}
    large = Header(Path("p.gguf"), 3, GIB, size | {"clip.vision.feed_forward_length": 3072}, (), (Path("p.gguf"),))
    assert 60 << 20 < projector_bytes(large) - GIB < 120 << 20


def test_split_streams_share_the_chosen_context():
    need = choose(model(), MemoryShape(split=True), 64 * GIB)
    assert need.cells == 32768 and need.context == 2048


def test_a_model_that_cannot_fit_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"m\.gguf: needs about 8\.\d GiB .* but only 4\.0 GiB is free"):
        choose(model(size=8 * GIB), MemoryShape(), 4 * GIB)


def test_a_header_without_figures_is_no_division_by_zero():
    bare = replace(model(), metadata={"general.architecture": "x", "x.attention.head_count": [0, "?"]})
    assert estimate(bare, 512, MemoryShape()).kv == 0
    assert choose(bare, MemoryShape(), 4 * GIB).cells == 16384


@pytest.mark.parametrize("kind", ["llama", "swa", "mamba", "hybrid"])
def test_the_estimate_is_what_llama_cpp_reports(kind, tmp_path, caplog, monkeypatch):
    """For each kind of memory: KV and states to the last 10 KiB that its log tells, buffers not below the real ones."""
    from llamasrv.engine.backend.context import open_model

    path = getattr(tiny_models, kind)(tmp_path / "m.gguf")
    monkeypatch.setattr(logging.getLogger("llamasrv"), "propagate", True)
    caplog.set_level(logging.DEBUG, "llamasrv.llama")
    options = EngineOptions(context_cells=2048, parallel=16, batch_size=512, ubatch_size=256)
    open_model(str(path), options, lambda share: True).close()
    told = {
        name: sum(float(mib) for mib in re.findall(rf"{name} buffer size = +([\d.]+) MiB", caplog.text)) * 2**20
        for name in ("KV", "RS", "compute")
    }
    need = estimate(read_header(path), 2048, MemoryShape(batch_size=512, ubatch_size=256))
    assert need.kv + need.states == pytest.approx(told["KV"] + told["RS"], abs=20 * 1024)
    assert told["compute"] * 0.5 <= need.buffers


# The machine, as its files tell it


@pytest.fixture
def machine(tmp_path):
    """A machine of 8 GiB free, in which a control group may be made."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 16777216 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/service/llamasrv\n")
    (tmp_path / "sys/fs/cgroup/service/llamasrv").mkdir(parents=True)
    return tmp_path


def test_free_memory_is_what_the_system_says(machine):
    assert available_memory(machine) == 8 * GIB


def test_free_memory_is_at_most_what_any_control_group_leaves(machine):
    groups = machine / "sys/fs/cgroup"
    (groups / "service/llamasrv/memory.max").write_text("max\n")
    (groups / "service/llamasrv/memory.current").write_text("0\n")
    (groups / "service/memory.max").write_text(f"{3 * GIB}\n")
    (groups / "service/memory.current").write_text(f"{GIB}\n")
    assert available_memory(machine) == 2 * GIB


def test_cached_files_of_a_group_give_way(machine):
    group = machine / "sys/fs/cgroup/service"
    (group / "memory.max").write_text(f"{3 * GIB}\n")
    (group / "memory.current").write_text(f"{3 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\nfile {2 * GIB}\nactive_file {GIB}\ninactive_file {GIB}\n")
    assert available_memory(machine) == 2 * GIB


def test_cores_are_counted_once_however_many_threads_they_have(machine, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = machine / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert available_cores(machine) == 2


def test_cores_are_at_most_the_quota(machine, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert available_cores(machine) == 8
    (machine / "sys/fs/cgroup/service/cpu.max").write_text("250000 100000\n")
    assert available_cores(machine) == available_cpus(machine) == 3


def test_this_machine_has_memory_and_a_core():
    assert available_memory() > 0
    assert available_cores() >= 1


def windowed(**more: object) -> Header:
    """A header as of a small Gemma 3: five layers of six have a window."""
    metadata = {
        "block_count": 24,
        "embedding_length": 896,
        "attention.head_count": 14,
        "attention.head_count_kv": 2,
        "feed_forward_length": 4864,
        "context_length": 32768,
        "attention.sliding_window": 32,
        **more,
    }
    named = {f"gemma3.{key}": value for key, value in metadata.items()}
    named |= {"general.architecture": "gemma3", "tokenizer.ggml.tokens": SkippedArray(8, 151_936)}
    return Header(Path("m.gguf"), 3, GIB, named, (), (Path("m.gguf"),))


def test_layers_with_a_window_keep_what_it_shows():
    full = estimate(windowed(), 8192, MemoryShape(parallel=8, swa_full=True))
    need = estimate(windowed(), 8192, MemoryShape(parallel=8))
    assert need.kv < 0.4 * full.kv and need.kv + need.windows_save == full.kv and full.windows_save == 0
    assert need.windows == 20 * 2 * 128 * 2 * 1024  # 13 lanes of 32, and a ubatch of 512


def test_a_window_as_long_as_the_context_saves_nothing():
    need = estimate(windowed(**{"attention.sliding_window": 4096}), 2048, MemoryShape())
    assert need.windows_save == 0 and need.kv == estimate(windowed(), 2048, MemoryShape(swa_full=True)).kv


def test_states_that_drafts_are_taken_back_with_count_where_the_library_has_them():
    states = {"ssm__state_size": 128, "ssm__inner_size": 4096, "full_attention_interval": 4}
    plain, three = (
        estimate(model(arch="qwen35", **states), 2048, MemoryShape(rollback=count)).states for count in (0, 3)
    )
    assert three == 4 * plain > 0
    assert estimate(model(arch="qwen3next", **states), 2048, MemoryShape(rollback=3)).states == plain
    # Left open, as many as are small: some 38 MB of 20 lanes each take more than there is for one more.
    assert rollback(model(**states), MemoryShape()) == 0
    assert rollback(model(**{**states, "ssm__inner_size": 64}), MemoryShape()) == 3


def test_checkpoints_count_where_a_memory_takes_them():
    shape = MemoryShape(checkpoint_bytes=GIB)
    assert estimate(model(), 2048, shape).checkpoints == 0
    assert estimate(windowed(), 2048, shape).checkpoints == GIB
    hybrid = estimate(model(ssm__state_size=128, ssm__inner_size=256, full_attention_interval=4), 2048, shape)
    assert hybrid.checkpoints == GIB and hybrid.cell == model_cell() // 4 and hybrid.states
    assert hybrid.total == hybrid.weights + hybrid.kv + hybrid.states + hybrid.buffers + GIB


def model_cell() -> int:
    return estimate(model(), 2048, MemoryShape()).cell
