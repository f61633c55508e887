"""Layers computed by another process, as they would be on another machine: where the library was built for it."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from clients.conftest import wait_until_ready
from clients.talk import post, wait_for
from faults.front import free_port, worker_of

from llamasrv import config
from llamasrv.domain.params import SamplingParams
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.startup import model_options

BUILT = model_options.library_has("ggml-rpc")
with_rpc = pytest.mark.skipif(not BUILT, reason="llama-cpp-python was built without RPC (CMAKE_ARGS=-DGGML_RPC=ON)")
LLAMASRV = [sys.executable, "-m", "llamasrv"]
GREEDY = SamplingParams(temperature=0)


class Helper:
    """`llamasrv rpc` on a free port, with at most this many bytes of address space."""

    def __init__(self, port=None, most=None):
        self.port = port or free_port()
        self.process = subprocess.Popen(
            [*LLAMASRV, "rpc", "--port", str(self.port), "--threads", "1"], stdout=subprocess.DEVNULL
        )
        if most is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_AS, (most, most))
        wait_for(lambda: self.process.poll() is not None or self._listens(), timeout=60)
        assert self.process.poll() is None

    def _listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    @property
    def resident(self):
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def end(self):
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def helper():
    helpers = []

    def start(port=None):
        helpers.append(Helper(port))
        return helpers[-1]

    yield start
    for one in helpers:
        one.end()


def readiness(server):
    try:
        with urllib.request.urlopen(server.url + "/readyz", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


# Without it


@pytest.mark.skipif(BUILT, reason="llama-cpp-python was built with RPC")
@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["check"], ["rpc"]])
def test_without_rpc_in_the_library_it_says_how_to_install_one(model_path, command):
    if command != ["rpc"]:
        command = [*command, "--model", model_path("llama"), "--rpc", "127.0.0.1:50052"]
    done = subprocess.run([*LLAMASRV, *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 78 and len(done.stderr.strip().splitlines()) == 1
    assert "CMAKE_ARGS=-DGGML_RPC=ON pip install" in done.stderr


@pytest.mark.parametrize(
    "text", ["here", "host:", "host:0", "host:70000", ":50052", "a:1,a:1", "http://a:1", "::1:50052"]
)
def test_an_invalid_machine_is_refused(text):
    with pytest.raises(ConfigError, match="--rpc"):
        config.load({"engine_rpc": text}, environ={})


def test_a_fake_model_needs_no_machine():
    with pytest.raises(ConfigError, match="engine.rpc: a fake model cannot run on other machines"):
        config.load({"model_fake": True, "engine_rpc": "a:1"}, environ={})


def test_memory_of_other_machines_does_not_count_here(model_path):
    from pathlib import Path

    header = gguf.read_header(Path(model_path("llama")))
    here = memory.estimate(header, 512, memory.MemoryShape())
    there = memory.estimate(header, 512, memory.MemoryShape(remote=True))
    some = memory.estimate(header, 512, memory.MemoryShape(remote=True, gpu_layers=1))
    assert there.weights == there.kv == 0 and there.buffers == here.buffers
    assert 0 < some.weights < here.weights and 0 < some.kv < here.kv


# With it


@with_rpc
def test_another_process_computes_the_same_answer(helper, real):
    prompt = list(range(5, 45))
    alone, far = real("llama"), real("llama", rpc=(helper().endpoint,))
    ask = {"params": GREEDY, "max_tokens": 16, "logprobs": 5}
    (mine,) = alone.run([alone.sequence(prompt, **ask)])
    results = far.run([far.sequence(prompt, **ask) for _ in range(3)])
    assert all(mine.distance_to(theirs) < 0.15 for theirs in results)
    assert far.run([far.sequence(prompt, **ask)])[0].end.num_reused > 30


@with_rpc
def test_layers_are_spread_over_several(helper, real):
    one, other = helper(), helper()
    engine = real("llama", rpc=(one.endpoint, other.endpoint))
    (result,) = engine.run([engine.sequence(list(range(5, 45)), params=GREEDY, max_tokens=8)])
    assert len(result.tokens) > 0


@with_rpc
def test_other_models_stay_on_this_machine(helper, real):
    """Devices belong to one model: the next one computes without them, even when they are gone."""
    away = helper()
    far = real("llama", rpc=(away.endpoint,))
    assert not real("llama").backend.idle_cells and far.backend.idle_cells  # which only devices are given


@with_rpc
def test_a_server_follows_its_machines(serve, helper, model_path):
    port = free_port()
    server = serve("--model", model_path("llama"), "--rpc", f"127.0.0.1:{port}", "-c", "512", "--parallel", "2")
    server.wait_for("cannot load .* now: Cannot reach the RPC server")
    status, told = readiness(server)
    assert status == 503 and f"Cannot reach the RPC server 127.0.0.1:{port}" in told
    first = helper(port)
    wait_until_ready(server)
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
    assert post(server, "/v1/completions", body)[0] == 200
    pid = worker_of(server)
    first.end()  # the library ends the process that it is missing in
    try:
        status = post(server, "/v1/completions", body)[0]
    except OSError:
        status = None
    assert status in (None, 500, 503)
    wait_for(lambda: worker_of(server) not in (None, pid), timeout=30)
    wait_for(lambda: "Cannot reach" in readiness(server)[1], timeout=30)
    helper(port)
    wait_until_ready(server)
    assert post(server, "/v1/completions", body)[0] == 200
