"""What a start imports. Each of these libraries takes 10 to 200 ms of it, and memory in every process."""

import json
import os
import subprocess
import sys

import pytest

COMMAND_LINE = ("llamasrv.cli",)
MASTER = (*COMMAND_LINE, "llamasrv.commands.serve", "llamasrv.web.http.worker")
WORKER = (*MASTER, "llamasrv.startup.service", "llamasrv.web.app")

RARE = (
    "apispec", "av", "huggingface_hub", "miniaudio", "opentelemetry", "pypdf", "PIL", "prometheus_client", "psycopg",
    "redis", "rich",
)  # fmt: skip
"""Libraries that nothing needs before somebody asks for what they do."""


def imported(modules):
    """The top-level packages that a fresh interpreter has after importing these modules."""
    program = (
        f"import importlib, json, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "modules, late",
    [
        (
            COMMAND_LINE,
            (*RARE, "flask", "gevent", "gunicorn", "jinja2", "llama_cpp", "llguidance", "marshmallow", "numpy"),
        ),
        (MASTER, (*RARE, "flask", "jinja2", "llama_cpp", "llguidance", "marshmallow", "numpy")),
        (WORKER, (*RARE, "llama_cpp")),
    ],
    ids=["command line", "master", "worker"],
)
def test_nothing_is_imported_before_it_is_needed(modules, late):
    """The library of the models belongs to the engine's thread, and is imported there while the application is made.
    The master only checks: with what serves it took 20 MB more, which the worker made copies of by using them."""
    there = imported(modules)
    assert "llamasrv" in there and not there & set(late)


@pytest.mark.parametrize(
    "module, env, threads",
    [("llamasrv.startup.service", {}, "1"), ("llamasrv.engine", {"OPENBLAS_NUM_THREADS": "3"}, "3")],
)
def test_openblas_starts_only_the_threads_that_were_asked_for(module, env, threads):
    """Nothing multiplies matrices with it, and starting its threads took half of numpy's import: 50 ms of each start."""
    program = (
        f"import os, sys, {module}, numpy\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))"
    )
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", program], env=clean | env, capture_output=True, text=True, check=True)
    told, tasks = done.stdout.split()
    assert told == threads
    assert env or tasks == "1"
