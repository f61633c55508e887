"""Constraints on a real model with random weights: every finished answer is valid."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import partial

import pytest
from engine_by_hand import HandEngine
from random_schemas import schema
from serving import pipeline_on

from llamasrv.domain.events import Finished, FinishReason, Text, ToolCallArguments, ToolCallStart
from llamasrv.domain.request import ChatPrompt, Content, GenerateRequest, Message, Tool, ToolChoice
from llamasrv.engine.engine import EngineOptions

jsonschema = pytest.importorskip("jsonschema")

WILD = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
USER = (Message("user", "Hello"),)
AT_ONCE = 50
SCHEMAS = int(os.environ.get("RANDOM_SCHEMAS", "150"))  # 500 in `tox -e soak`


@pytest.fixture(scope="module")
def pipeline(model_path):
    from llamasrv.engine.backend.context import open_model

    options = EngineOptions(context_cells=65_536, parallel=AT_ONCE, threads=1)
    engine = HandEngine(partial(open_model, model_path("llama"), options), options)
    engine.open()
    yield pipeline_on(engine)
    engine.host.close()


def run(pipeline, requests):
    """All events of each request, side by side."""
    engine = pipeline.registry.default.engine
    running = [pipeline.submit(request) for request in requests]
    events = [[] for _ in running]
    for _ in range(20_000):
        engine.turn()
        for generation, said in zip(running, events):
            if not generation.done:
                said += generation.events(0)
        if all(generation.done for generation in running):
            return events
    raise AssertionError("no end")


def ended(events):
    finish = next(event for event in events if isinstance(event, Finished))
    assert finish.reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS), finish
    return finish.reason


def calls(events):
    made = []
    for event in events:
        if isinstance(event, ToolCallStart):
            made.append([event.name, ""])
        elif isinstance(event, ToolCallArguments):
            made[event.call][1] += event.fragment
    return made


def test_answers_match_random_schemas(pipeline):
    rng = random.Random(20)
    schemas = [schema(rng) for _ in range(SCHEMAS)]
    finished = 0
    for start in range(0, len(schemas), AT_ONCE):
        group = schemas[start : start + AT_ONCE]
        asked = [
            GenerateRequest(
                (ChatPrompt(USER),),
                content=Content("json", wanted),
                max_tokens=600,
                sampling={**WILD, "seed": start + n},
            )
            for n, wanted in enumerate(group)
        ]
        for wanted, events in zip(group, run(pipeline, asked)):
            if ended(events) is FinishReason.STOP:
                finished += 1
                text = "".join(event.text for event in events if isinstance(event, Text))
                checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
                jsonschema.Draft202012Validator(wanted, format_checker=checker).validate(json.loads(text))
    assert finished >= 0.98 * SCHEMAS


TOOLS = tuple(Tool(f"tool_{n}", "", schema(random.Random(n), 1)) for n in range(40))
TOOLS = tuple(tool for tool in TOOLS if tool.parameters["type"] == "object")[:5]
BY_NAME = {tool.name: tool for tool in TOOLS}


@pytest.mark.parametrize("names", [(), ("tool_1",)])
def test_a_required_call_is_made_and_valid(pipeline, names):
    names = names and (TOOLS[1].name,)
    choice = ToolChoice("required", names, parallel=not names)
    asked = [
        GenerateRequest(
            (ChatPrompt(USER, tools=TOOLS),), tool_choice=choice, max_tokens=600, sampling={**WILD, "seed": n}
        )
        for n in range(AT_ONCE)
    ]
    finished = 0
    for events in run(pipeline, asked):
        reason, made = ended(events), calls(events)
        assert not "".join(event.text for event in events if isinstance(event, Text)).strip()
        if reason is FinishReason.LENGTH:
            continue
        finished += 1
        assert reason is FinishReason.TOOL_CALLS and made
        assert not names or [name for name, _ in made] == list(names)
        for name, arguments in made:
            jsonschema.Draft202012Validator(BY_NAME[name].parameters).validate(json.loads(arguments))
    assert finished >= 0.9 * AT_ONCE


UNLOADED_MEANWHILE = """
import json, sys, time
from functools import partial
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.engine import Engine, EngineOptions
from llamasrv.engine.sampling import grammar_compiler
from llamasrv.errors import InvalidRequest

grammar_compiler.fault_of = lambda text: None
options = EngineOptions(context_cells=256, parallel=1, threads=1)
engine = Engine(partial(open_model, sys.argv[1], options), options)
engine.start()
while engine.status.state != "ready":
    time.sleep(0.02)
vocab = engine.vocab
engine.grammars.is_available()
engine.grammars.limits = engine.grammars.limits._replace(compile_seconds=0.01, busy_seconds=60.0, wait_seconds=60.0)
try:
    engine.grammars.compile("start: " + json.dumps("word " * 200_000))
except InvalidRequest as error:
    print(error.message)
assert engine.stop(60)
engine.release()
while vocab.hold():
    vocab.release()
    time.sleep(0.02)
print("freed")
"""


def test_a_model_is_freed_when_the_last_compilation_has_ended(model_path):
    """A refused request whose schema was still compiling while its model was unloaded: the worker ended with
    SIGSEGV."""
    done = subprocess.run(
        [sys.executable, "-c", UNLOADED_MEANWHILE, str(model_path("llama"))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert "took too long" in done.stdout and done.stdout.endswith("freed\n")
