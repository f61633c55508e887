"""Memory as the library measures, plans and takes it: on this machine, and on two RPC servers that stand for GPUs.

The servers' memory is set by --fit-target, which leaves the rest of it free.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from model import tiny_models
from model.test_rpc import Helper, with_rpc

from llamasrv.config import load
from llamasrv.engine.backend import breakdown as library
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.backend.measure import measure
from llamasrv.engine.base.interface import LoadFailed, NoMemory
from llamasrv.engine.base.use import HOST
from llamasrv.engine.engine import EngineOptions
from llamasrv.models import fit, gguf
from llamasrv.startup import load_plans
from llamasrv.startup import service as startup_service

SMALL = {"batch_size": 256, "ubatch_size": 128, "threads": 1, "threads_batch": 1, "parallel": 4}
MIB = 2**20
measurable = pytest.mark.skipif(not library.can_measure(), reason="this library does not tell what a model takes")
BENCH = os.environ.get("LLAMASRV_BENCH_MODEL", "")


def taken(backend):
    """Bytes by device that an open model takes."""
    uses = library.breakdown(backend.contexts[0])
    return {name: use.total for name, use in uses.items() if use.total}


def kinds():
    yield from ("llama", "moe", "hybrid", "mamba", "swa")
    if BENCH:
        yield BENCH


@measurable
@pytest.mark.parametrize("kind", [*kinds()])
def test_measured_memory_is_what_a_loaded_model_takes(kind, tmp_path):
    """Within 5 %: weights, cache and work space of the library; what the server keeps beside them is in both."""
    path = kind if os.sep in kind else str(tiny_models.KINDS[kind](tmp_path / "m.gguf"))
    options = EngineOptions(context_cells=2048, **SMALL)
    began = time.monotonic()
    measured = measure(path, options)
    assert time.monotonic() - began < 10
    backend = open_model(path, options, lambda share: True)
    try:
        ours = library.ours(backend.vocab.size, backend.max_outputs)
        assert sum(taken(backend).values()) == pytest.approx(measured.uses[HOST].total - ours, rel=0.05)
        assert measured.context == backend.context
    finally:
        backend.close()


@measurable
@pytest.mark.parametrize("kind", [*kinds()])
def test_loaded_memory_is_what_the_library_reports(kind, tmp_path, monkeypatch):
    """Estimates from the file were counted, up to a quarter off for models that are mostly work space."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = Path(kind) if os.sep in kind else tiny_models.KINDS[kind](tmp_path / "m.gguf")
    values = {f"engine_{name}": value for name, value in SMALL.items()}
    settings = load(
        {"model_path": path, "engine_ctx_size": 2048, "cache_checkpoints": 0, "store_url": "none", **values}, environ={}
    )
    registry = startup_service.build(settings).registry
    loader, (model,) = registry.loader, registry.models
    try:
        assert loader.wait(model, 60), model.failure
        measured = measure(str(path), model.load_plan.options)
        assert loader.budget.taken == model.memory == pytest.approx(measured.uses[HOST].total, rel=0.05)
    finally:
        assert loader.stop(30)


@measurable
def test_measuring_takes_no_memory(tmp_path):
    """Not even for a model whose context fits no machine."""
    path = tiny_models.llama(tmp_path / "m.gguf")
    options = EngineOptions(context_cells=2**24, **SMALL)
    code = f"""
from llamasrv.engine.backend.measure import measure
from llamasrv.engine.base.options import EngineOptions
use = measure({str(path)!r}, EngineOptions(context_cells={options.context_cells}, **{SMALL})).uses["host"]
print(use.context // 2**20, next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 2**10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    context, resident = map(int, done.stdout.split())
    assert context >= 4096 and resident < 1024


@pytest.mark.parametrize("reason", ["unable to allocate CPU buffer", "cudaMalloc failed: out of memory"])
def test_a_load_that_runs_out_of_memory_raises_no_memory(reason, monkeypatch, tmp_path):
    from llamasrv.engine.backend import placement

    log = placement.C.llama_log_callback()
    placement.C.llama_log_get(ctypes.byref(log), ctypes.byref(ctypes.c_void_p()))

    def fail(*arguments):
        log(4, f"ggml: {reason}".encode(), None)  # 4: an error

    monkeypatch.setattr(placement.C, "llama_model_load_from_file", fail)
    with pytest.raises(NoMemory, match=reason):
        open_model(str(tiny_models.llama(tmp_path / "m.gguf")), EngineOptions(**SMALL), lambda share: True)


def test_a_context_that_runs_out_of_memory_names_the_allocation(tmp_path):
    """In a process with limited memory: parses the library's own message."""
    path = tiny_models.llama(tmp_path / "m.gguf")
    code = f"""
import resource
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.base.interface import NoMemory
from llamasrv.engine.base.options import EngineOptions
most = int(open("/proc/self/statm").read().split()[0]) * 4096 + (400 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    open_model({str(path)!r}, EngineOptions(context_cells=2**22, **{SMALL}), lambda share: True)
except NoMemory as error:
    print(error.refused.place, error.refused.size, error.refused.free)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    place, size, free = done.stdout.split()
    assert place == HOST and int(size) > 400 << 20 and free == "None"


# Two devices


@pytest.fixture(scope="module")
def devices():
    """The addresses of two servers, and the bytes that each has."""
    if not library.can_measure():
        pytest.skip("this library does not tell what a model takes")
    helpers = [Helper(), Helper()]
    yield tuple(helper.endpoint for helper in helpers)
    for helper in helpers:
        helper.end()


def stated(path, endpoints, sizes, **options):
    """The plan for two devices of these sizes."""
    plain = EngineOptions(rpc=endpoints, context_cells=256, **SMALL)
    totals = [total for _, total in measure(path, plain).devices.values()]
    asked = {
        "rpc": endpoints,
        "fit_target": tuple(total - size for total, size in zip(totals, sizes)),
        **SMALL,
        **options,
    }
    return fit.fit(gguf.read_header(Path(path)), EngineOptions(**asked), 2048, lambda o: measure(path, o))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Experts of 4.7 MiB in each of 6 layers; all else is small."""
    return str(tiny_models.moe(tmp_path_factory.mktemp("models") / "moe.gguf", layers=6, experts=16, ff=384))


@with_rpc
def test_placement_options_are_obeyed(devices, large):
    """Seen in the library's own buffers."""
    for split in ((1.0, 0.0), (0.0, 1.0), (3.0, 4.0)):
        options = EngineOptions(rpc=devices, tensor_split=split, context_cells=256, **SMALL)
        backend = open_model(large, options, lambda share: True)
        try:
            uses = {name: use.weights for name, use in library.breakdown(backend.contexts[0]).items() if name != HOST}
            on = [weights > MIB for weights in uses.values()]
            assert sum(on) == sum(share > 0 for share in split)
        finally:
            backend.close()


@with_rpc
@pytest.mark.parametrize("sizes", [(60, 60), (30, 20), (14, 26), (24, 0)])
def test_the_plan_fits_and_matches_the_loaded_model(devices, large, sizes):
    found = stated(large, devices, [size * MIB for size in sizes])
    assert not found.excess and found.options.gpu_layers != 0
    backend = open_model(large, found.options, lambda share: True)
    try:
        uses = taken(backend)
        for name, size in found.devices.items():
            assert uses.get(name, 0) == pytest.approx(size, rel=0.05, abs=64 * 1024)
            assert uses.get(name, 0) <= found.capacity[name]
    finally:
        backend.close()


@with_rpc
@pytest.mark.parametrize(
    ("sizes", "asked", "expected"), [((400, 400), None, 32), ((400, 400), 5, 5), ((30, 20), None, 16)]
)
def test_devices_with_room_compute_more_sequences_at_once(devices, large, sizes, asked, expected):
    """As many as batches gain from, where all of the model and a large context fit; what is said is kept."""
    plain = EngineOptions(rpc=devices, context_cells=256, **SMALL)
    totals = [total for _, total in measure(large, plain).devices.values()]
    target = [f"{total - size * MIB}B" for total, size in zip(totals, sizes)]
    values = {f"engine_{name}": value for name, value in SMALL.items()} | {
        "engine_parallel": asked,
        "engine_fit_target": tuple(target),
        "engine_ctx_size": 32768,
    }
    settings = load({"model_path": large, "engine_rpc": devices, **values}, environ={})
    found = load_plans.measured(settings, gguf.read_header(Path(large)))
    assert found.options.places == expected and not found.excess


@with_rpc
def test_a_failed_allocation_names_its_device(large):
    """A server with limited memory; this machine has enough."""
    helper = Helper(most=1200 << 20)
    try:
        options = EngineOptions(rpc=(helper.endpoint,), context_cells=2**22, fit="off", **SMALL)
        with pytest.raises(NoMemory, match="cannot create a context") as failure:
            open_model(large, options, lambda share: True)
        refused = failure.value.refused
        assert refused.place.startswith("RPC") and refused.size > 1200 << 20 and refused.free > 0
    finally:
        helper.end()


@with_rpc
def test_experts_move_to_the_host_before_layers(devices, large):
    found = stated(large, devices, [16 * MIB, 16 * MIB])
    assert found.options.gpu_layers == 7 and found.options.override_tensor and not found.excess


@with_rpc
def test_a_model_larger_than_all_memory_is_refused_at_once(devices, large):
    began = time.monotonic()
    with pytest.raises(LoadFailed, match=r"it needs .* on RPC\d, where 1 MiB is usable") as refusal:
        stated(large, devices, [MIB, MIB], gpu_layers=7)
    assert "\n" not in str(refusal.value) and time.monotonic() - began < 10


@with_rpc
def test_the_model_on_the_device_that_lacks_room_is_unloaded(devices, large, tmp_path, monkeypatch):
    """Three models, two devices with room for one each: the least recently used of all stays where it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain = EngineOptions(rpc=devices, context_cells=256, **SMALL)
    measured = measure(large, plain)
    totals = [total for _, total in measured.devices.values()]
    room = sum(measured.uses[name].total for name in measured.devices) * 3 // 2
    tables = "".join(
        f'[models.{name}]\npath = "{large}"\ntensor_split = {split}\n'
        for name, split in (("a", "[1, 0]"), ("b", "[0, 1]"), ("c", "[1, 0]"))
    )
    target = ", ".join(f'"{total - room}B"' for total in totals)
    config = tmp_path / "llamasrv.toml"
    config.write_text(f"""[models]
check = false
[store]
url = "none"
[engine]
rpc = {list(devices)}
ctx_size = 256
parallel = 4
batch_size = 256
ubatch_size = 128
fit_target = [{target}]
{tables}""")
    service = startup_service.build(load(config=config, environ={}))
    registry = service.registry
    try:

        def bring(name):
            registry.loader.load(registry.find(name))
            assert registry.loader.wait(registry.find(name), 60), registry.find(name).failure
            return {one for one in "abc" if registry.find(one).state == "loaded"}

        assert bring("b") == {"b"} and bring("a") == {"a", "b"}
        registry.find("b").last_used -= 1000
        assert bring("c") == {"b", "c"}
        on = {name: {device for device, share in registry.find(name).devices.items() if share.size} for name in "bc"}
        assert len(on["b"]) == len(on["c"]) == 1 and on["b"] != on["c"]
    finally:
        assert registry.stop(30)
