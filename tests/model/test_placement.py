"""Options for devices, buffers and files reach llama.cpp's parameters, or are refused."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace

import gguf as gguf_writer
import llama_cpp.llama_cpp as C
import numpy as np
import pytest
from model import tiny_models
from model.tiny_models import llama

from llamasrv.config import load
from llamasrv.engine.backend import embed, openmp, placement, rpc
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.backend.control_vector import directions
from llamasrv.engine.backend.threads import settle
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import Adapter, EngineOptions
from llamasrv.engine.base.placement_rules import refusal
from llamasrv.models import gguf, memory

SMALL = {"context_cells": 64, "batch_size": 64, "ubatch_size": 64, "threads": 1, "threads_batch": 1, "parallel": 1}


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({}, "load_mode", C.LLAMA_LOAD_MODE_AUTO),
        ({"load_mode": "mmap+mlock"}, "load_mode", C.LLAMA_LOAD_MODE_MMAP_MLOCK),
        ({"load_mode": "none"}, "load_mode", C.LLAMA_LOAD_MODE_NONE),
        ({"load_mode": "dio"}, "load_mode", C.LLAMA_LOAD_MODE_DIRECT_IO),
        ({"lazy_mode": "on"}, "lazy_mode", C.LLAMA_LAZY_MODE_ON),
        ({"repack": False}, "use_extra_bufts", False),
        ({"check_tensors": True}, "check_tensors", True),
        ({"split_mode": "row"}, "split_mode", C.LLAMA_SPLIT_MODE_ROW),
        ({"gpu_layers": 3}, "n_gpu_layers", 3),
        ({}, "n_gpu_layers", -1),
    ],
)
def test_an_option_reaches_the_parameters_of_the_model(options, field, value):
    params, _ = placement.model_params(EngineOptions(**options), "m.gguf")
    assert getattr(params, field) == value


def test_without_options_the_parameters_are_the_librarys_own():
    params, alive = placement.model_params(EngineOptions(), "m.gguf")
    own = C.llama_model_default_params()
    simple = [name for name, kind in own._fields_ if kind in (ctypes.c_int, ctypes.c_bool, ctypes.c_int32)]
    assert {name: getattr(params, name) for name in simple} == {name: getattr(own, name) for name in simple}
    assert not params.devices and not params.tensor_buft_overrides and alive == []


@pytest.mark.parametrize(
    ("options", "field"), [({"kv_offload": False}, "offload_kqv"), ({"op_offload": False}, "op_offload")]
)
def test_an_option_reaches_the_parameters_of_the_context(options, field):
    params = C.llama_context_default_params()
    placement.place_context(params, EngineOptions())
    assert getattr(params, field)
    placement.place_context(params, EngineOptions(**options))
    assert not getattr(params, field)


@pytest.mark.parametrize(
    ("field", "value", "there"),
    [
        ("rope_scaling", "yarn", C.LLAMA_ROPE_SCALING_TYPE_YARN),
        ("rope_freq_base", 5e5, 5e5),
        ("rope_freq_scale", 0.5, 0.5),
        ("yarn_orig_ctx", 4096, 4096),
        ("yarn_ext_factor", 0.0, 0.0),
        ("yarn_attn_factor", 2.0, 2.0),
        ("yarn_beta_slow", 1.5, 1.5),
        ("yarn_beta_fast", 32.0, 32.0),
    ],
)
def test_scaled_positions_reach_the_parameters_of_the_context(field, value, there):
    params, own = C.llama_context_default_params(), C.llama_context_default_params()
    placement.place_context(params, EngineOptions())
    name = {"rope_scaling": "rope_scaling_type"}.get(field, field)
    assert getattr(params, name) == getattr(own, name)
    placement.place_context(params, EngineOptions(**{field: value}))
    assert getattr(params, name) == there


def test_scaled_positions_make_room_for_longer_prompts(tmp_path):
    path = llama(tmp_path / "m.gguf", context=128)
    options = {**SMALL, "context_cells": 1024}
    contexts = []
    for scale in (None, 0.25):
        backend = open_model(str(path), EngineOptions(rope_freq_scale=scale, **options), lambda share: True)
        contexts.append(backend.context)
        backend.close()
    assert contexts == [128, 512]
    header = gguf.read_header(path)
    assert memory.estimate(header, 1024, memory.MemoryShape(parallel=1, rope_freq_scale=0.25)).context == 512


@pytest.fixture
def two_devices(monkeypatch):
    monkeypatch.setattr(rpc, "named_devices", lambda: {"GPU0": 16, "GPU1": 32})
    monkeypatch.setattr(rpc, "local_devices", lambda: [16, 32])


def test_only_named_devices_are_used(two_devices):
    params, _ = placement.model_params(EngineOptions(devices=("GPU1",)), "m.gguf")
    devices = ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))
    assert [devices[0], devices[1]] == [32, None]
    params, _ = placement.model_params(EngineOptions(devices=("none",)), "m.gguf")
    assert ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))[0] is None


def test_shares_of_devices(two_devices):
    params, _ = placement.model_params(EngineOptions(tensor_split=(3.0, 1.0), main_gpu=1), "m.gguf")
    assert [params.tensor_split[0], params.tensor_split[1], params.tensor_split[2]] == [3.0, 1.0, 0.0]
    assert params.main_gpu == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"devices": ("GPU7",)}, "unknown device 'GPU7'; the devices are GPU0, GPU1"),
        ({"tensor_split": (1.0, 1.0, 1.0)}, "--tensor-split names 3 devices; there are 2"),
        ({"main_gpu": 2}, "--main-gpu 2 does not exist; there are 2 devices"),
        ({"override_tensor": ("exps=GPU9",)}, "unknown buffer type 'GPU9'; the types are CPU"),
        ({"override_tensor": ("(=CPU",)}, "--override-tensor"),
    ],
)
def test_options_that_contradict_the_machine_are_refused(two_devices, options, line):
    with pytest.raises(LoadFailed) as refusal:
        placement.model_params(EngineOptions(**options), "m.gguf")
    assert line in str(refusal.value)


def test_a_device_on_a_machine_without_any_is_refused_in_words():
    """The refusal ended in "the devices are none"."""
    assert refusal(EngineOptions(devices=("GPU7",)), (), 0, ()) == "unknown device 'GPU7'; no GPU is found"


def test_tensor_overrides_are_obeyed(tmp_path):
    options = EngineOptions(override_tensor=("blk.0.ffn_.*=CPU",), load_mode="none", repack=False, **SMALL)
    params, alive = placement.model_params(options, "m.gguf")
    assert alive[0][0].pattern == b"blk.0.ffn_.*" and alive[0][0].buffer_type and alive[0][1].pattern is None
    path = llama(tmp_path / "m.gguf")
    backend = open_model(str(path), options, lambda share: True)
    backend.close()


# Metadata


@pytest.mark.parametrize(
    ("text", "tag", "field", "value"),
    [
        ("llama.context_length=int:64", 0, "val_i64", 64),
        ("llama.rope.freq_base=float:5e5", 1, "val_f64", 5e5),
        ("tokenizer.ggml.add_bos_token=bool:true", 2, "val_bool", True),
        ("general.name=str:a:b=c", 3, "val_str", b"a:b=c"),
    ],
)
def test_a_value_of_the_metadata_is_replaced(text, tag, field, value):
    params, _ = placement.model_params(EngineOptions(override_kv=(text,)), "m.gguf")
    one = params.kv_overrides[0]
    assert (one.key.decode(), one.tag, getattr(one.value, field)) == (text.partition("=")[0], tag, value)
    assert params.kv_overrides[1].key == b""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a", "must be KEY=TYPE:VALUE"),
        ("a=3", "must be KEY=TYPE:VALUE"),
        ("=int:3", "must be KEY=TYPE:VALUE"),
        ("a" * 128 + "=int:3", "must be KEY=TYPE:VALUE"),
        ("a=int:x", "'x' is not a value of type 'int'"),
        ("a=int:" + "9" * 30, "is not a value of type 'int'"),
        ("a=bool:yes", "'yes' is not a value of type 'bool'"),
        ("a=date:1", "the types are int, float, bool and str"),
        ("a=str:" + "x" * 128, "is not a value of type 'str'"),
    ],
)
def test_an_invalid_metadata_override_is_refused(text, line):
    with pytest.raises(LoadFailed) as refusal:
        placement.model_params(EngineOptions(override_kv=(text,)), "m.gguf")
    assert line in str(refusal.value)


def test_the_model_is_loaded_with_the_replaced_metadata(tmp_path):
    path = llama(tmp_path / "m.gguf", context=2048)
    options = EngineOptions(override_kv=("llama.context_length=int:32",), **SMALL)
    backend = open_model(str(path), options, lambda share: True)
    assert backend.info.context_train == backend.context == 32
    backend.close()


# Control vectors


def control_vector(path, *, layers=(1,), width=tiny_models.EMBD, value=1.0):
    writer = gguf_writer.GGUFWriter(str(path), "controlvector")
    for layer in layers:
        writer.add_tensor(f"direction.{layer}", np.full(width, value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Adapter(path.stem, str(path))


def logits_of(path, **options):
    backend = open_model(str(path), EngineOptions(**SMALL, **options), lambda share: True)
    try:
        backend.clear(0)
        batch = backend.batch
        batch.token[:3], batch.position[:3], batch.lane[:3], batch.wants_logits[:3] = (5, 6, 7), range(3), 0, (0, 0, 1)
        batch.num_rows, batch.num_outputs = 3, 1
        backend.decode()
        return backend.logits(1)[0].copy()
    finally:
        backend.close()


def test_a_control_vector_steers_only_the_named_layers(tmp_path):
    path = llama(tmp_path / "m.gguf", layers=3)
    vector = control_vector(tmp_path / "v.gguf", layers=(1, 2))
    plain, steered = logits_of(path), logits_of(path, control_vectors=(vector,))
    half = logits_of(path, control_vectors=(vector,), control_vector_layers=(2, 2))
    none = logits_of(path, control_vectors=(replace(vector, scale=0.0),))
    assert np.abs(plain - none).max() < 1e-4
    assert np.abs(plain - steered).max() > 0.01 and np.abs(plain - half).max() > 0.01
    assert np.abs(steered - half).max() > 0.01


def test_control_vectors_add_up(tmp_path):
    first, second = control_vector(tmp_path / "a.gguf"), control_vector(tmp_path / "b.gguf", layers=(2,), value=3.0)
    total = directions((replace(first, scale=2.0), replace(second, scale=-1.0)), tiny_models.EMBD, 3)
    assert total[:, 0].tolist() == [2.0, -3.0, 0.0]


@pytest.mark.parametrize(
    ("vector", "options", "line"),
    [
        ({"width": 8}, {}, "its directions have 8 values, but"),
        ({"layers": (9,)}, {}, "it steers layer 9, but the model has only 2"),
        ({}, {"control_vector_layers": (1, 7)}, "the model has 2 layers"),
    ],
)
def test_a_control_vector_of_another_model_is_refused(tmp_path, vector, options, line):
    path, wrong = llama(tmp_path / "m.gguf"), control_vector(tmp_path / "v.gguf", **vector)
    with pytest.raises(LoadFailed, match=line):
        open_model(str(path), EngineOptions(control_vectors=(wrong,), **options, **SMALL), lambda share: True)


# Threads


@pytest.fixture
def system(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: calls.append(set(cpus)))
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda pid, policy, param: calls.append((policy, param.sched_priority))
    )
    return calls


def test_threads_get_their_affinity_and_priority(system):
    settle(EngineOptions(cpu_range=(0, 2), prio=2), "m.gguf")
    settle(EngineOptions(prio=-1), "m.gguf")
    settle(EngineOptions(), "m.gguf")
    assert system == [{0, 2}, (os.SCHED_FIFO, 80), (os.SCHED_BATCH, 0)]


def test_missing_cpus_are_named(system):
    with pytest.raises(LoadFailed, match="CPU 7 is not available to this process; available: 0, 1, 2"):
        settle(EngineOptions(cpu_range=(1, 7)), "m.gguf")


def test_a_refused_priority_is_an_error(system, monkeypatch):
    def refuse(*arguments):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(LoadFailed, match="--prio 1 is not permitted: it needs CAP_SYS_NICE"):
        settle(EngineOptions(prio=1), "m.gguf")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin threads")
def test_compute_threads_run_on_the_named_cpus(tmp_path):
    """The library's threads inherit the affinity of the thread that loads the model: they are started in this child."""
    path, cpu = llama(tmp_path / "m.gguf"), min(os.sched_getaffinity(0))
    code = f"""
import os, threading
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.base.options import EngineOptions
options = EngineOptions(cpu_range=({cpu},), context_cells=64, batch_size=64, ubatch_size=64, threads=2, parallel=1)
def load():  # looks by itself: the threads that it started end with it
    open_model({str(path)!r}, options, lambda share: True)
    print(sum(os.sched_getaffinity(int(task)) == {{{cpu}}} for task in os.listdir("/proc/self/task")))
loading = threading.Thread(target=load)
loading.start(); loading.join()
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert int(done.stdout) >= 2, done.stderr  # its own and the library's


@pytest.mark.parametrize(("level", "spin"), [(None, None), (0, "0"), (50, openmp.SPIN), (100, "400000")])
def test_how_long_a_thread_spins(level, spin, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    openmp.poll(level)
    assert os.environ.get("GOMP_SPINCOUNT") == spin


def test_embeddings_are_placed_like_the_model(tmp_path, monkeypatch):
    """Embedding contexts ignored the operator's options for positions and devices."""
    seen = []
    monkeypatch.setattr(embed, "place_context", lambda params, options: seen.append(options.rope_freq_base))
    options = EngineOptions(rope_freq_base=5e5, embeddings=True, **SMALL)
    open_model(str(llama(tmp_path / "m.gguf")), options, lambda share: True).close()
    assert seen == [5e5]


def test_all_of_it_has_command_line_flags():
    flags = {
        "engine_load_mode": "mlock",
        "engine_repack": False,
        "engine_split_mode": "none",
        "engine_main_gpu": "1",
        "engine_device": "GPU0,GPU1",
        "engine_override_tensor": "a=CPU,b=CPU",
        "engine_kv_offload": False,
        "engine_op_offload": False,
        "engine_check_tensors": True,
        "engine_numa": "distribute",
        "engine_tensor_split": None,
    }
    engine = load(flags, environ={}).engine
    assert (engine.load_mode, engine.repack, engine.split_mode, engine.main_gpu) == ("mlock", False, "none", 1)
    assert (engine.devices, engine.override_tensor) == (("GPU0", "GPU1"), ("a=CPU", "b=CPU"))
    assert (engine.kv_offload, engine.op_offload, engine.check_tensors, engine.numa) == (
        False,
        False,
        True,
        "distribute",
    )
    assert load({"engine_tensor_split": "3,1"}, environ={}).engine.tensor_split == (3.0, 1.0)
