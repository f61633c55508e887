"""What the operator says of devices, buffers and files reaches llama.cpp's own parameters, or is refused."""

from __future__ import annotations

import ctypes

import llama_cpp.llama_cpp as C
import pytest
from model.tiny_models import llama

from llamasrv.config import load
from llamasrv.engine.backend import placement, rpc
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.interface import LoadFailed
from llamasrv.engine.options import EngineOptions
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


@pytest.mark.parametrize(("options", "field"), [({"kv_offload": False}, "offload_kqv"), ({"op_offload": False}, "op_offload")])
def test_an_option_reaches_the_parameters_of_the_context(options, field):
    params = C.llama_context_default_params()
    placement.place_context(params, EngineOptions())
    assert getattr(params, field)
    placement.place_context(params, EngineOptions(**options))
    assert not getattr(params, field)


@pytest.mark.parametrize(
    ("field", "value", "there"),
    [
        ("rope_scaling", "yarn", C.LLAMA_ROPE_SCALING_TYPE_YARN), ("rope_freq_base", 5e5, 5e5), ("rope_freq_scale", 0.5, 0.5),
        ("yarn_orig_ctx", 4096, 4096), ("yarn_ext_factor", 0.0, 0.0), ("yarn_attn_factor", 2.0, 2.0),
        ("yarn_beta_slow", 1.5, 1.5), ("yarn_beta_fast", 32.0, 32.0),
    ],
)  # fmt: skip
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
    assert memory.estimate(header, 1024, memory.Shape(parallel=1, rope_freq_scale=0.25)).context == 512


@pytest.fixture
def two_devices(monkeypatch):
    monkeypatch.setattr(rpc, "named_devices", lambda: {"GPU0": 16, "GPU1": 32})
    monkeypatch.setattr(rpc, "local_devices", lambda: [16, 32])


def test_devices_are_those_that_were_named(two_devices):
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
        ({"devices": ("GPU7",)}, "there is no device 'GPU7'; there are GPU0, GPU1"),
        ({"tensor_split": (1.0, 1.0, 1.0)}, "--tensor-split names 3 devices; there are 2"),
        ({"main_gpu": 2}, "--main-gpu 2 does not exist; there are 2 devices"),
        ({"override_tensor": ("exps=GPU9",)}, "there is no buffer type 'GPU9'; there are CPU"),
        ({"override_tensor": ("(=CPU",)}, "--override-tensor"),
    ],
)
def test_what_contradicts_the_machine_is_refused(two_devices, options, line):
    with pytest.raises(LoadFailed) as refusal:
        placement.model_params(EngineOptions(**options), "m.gguf")
    assert line in str(refusal.value)


def test_tensors_go_where_they_are_told(tmp_path):
    options = EngineOptions(override_tensor=("blk.0.ffn_.*=CPU",), load_mode="none", repack=False, **SMALL)
    params, alive = placement.model_params(options, "m.gguf")
    assert alive[0][0].pattern == b"blk.0.ffn_.*" and alive[0][0].buffer_type and alive[0][1].pattern is None
    path = llama(tmp_path / "m.gguf")
    backend = open_model(str(path), options, lambda share: True)
    backend.close()


def test_the_command_line_says_all_of_it():
    flags = {
        "engine_load_mode": "mlock", "engine_repack": False, "engine_split_mode": "none", "engine_main_gpu": "1",
        "engine_device": "GPU0,GPU1", "engine_override_tensor": "a=CPU,b=CPU", "engine_kv_offload": False,
        "engine_op_offload": False, "engine_check_tensors": True, "engine_numa": "distribute",
        "engine_tensor_split": None,
    }  # fmt: skip
    engine = load(flags, environ={}).engine
    assert (engine.load_mode, engine.repack, engine.split_mode, engine.main_gpu) == ("mlock", False, "none", 1)
    assert (engine.devices, engine.override_tensor) == (("GPU0", "GPU1"), ("a=CPU", "b=CPU"))
    assert (engine.kv_offload, engine.op_offload, engine.check_tensors, engine.numa) == (False, False, True, "distribute")
    assert load({"engine_tensor_split": "3,1"}, environ={}).engine.tensor_split == (3.0, 1.0)
