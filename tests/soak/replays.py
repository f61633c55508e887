"""Conversations of agents (shared/agents/replays.json) on real models, by the cached tokens that replies report.

    pytest -s tests/soak/replays.py

The demonstration model, five tiny hybrids, and two tiny models that see, one of them a hybrid, each on a server of its
own, with a template that writes no earlier turn anew: each turn finds at least 97 % of the prompt that it goes on from.
Turns that go on from the same one are sent at once. Scripts with images are for models that see. The demonstration model
plays a script up to its context.
"""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import architectures
import pytest
from chat.chat_samples import HERMES
from chat.replays import SCRIPTS, bodies
from clients.conftest import wait_until_ready
from conftest import ServerProcess
from model import tiny_projectors

HYBRIDS = ("lfm2", "qwen35", "nemotron_h", "granitehybrid", "falcon-h1")
SEEING = ("qwen2vl", "llava-hybrid")
CONTEXT, SHARE, SPARE = 32768, 0.97, 16  # SPARE: tokens that open an answer, of which the next prompt may have others
PATHS = {"anthropic": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}

pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(not SCRIPTS, reason="shared/agents is not here")]


@pytest.fixture(scope="module", params=["demo", *HYBRIDS, *SEEING])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    template = folder / "template.jinja"
    template.write_text(HERMES, "utf-8")
    path = request.param
    if path in SEEING:
        tiny_projectors.projector(folder / f"mmproj-{path}.gguf", path)
        path = str(tiny_projectors.text_model(folder / f"{path}.gguf", path, context=CONTEXT))
    elif path != "demo":
        path = str(architectures.make(path, folder / f"{path}.gguf", context=CONTEXT))
    flags = ["--ctx-size", CONTEXT, "--parallel", 10, "--chat-template-file", template, "--threads", 1]
    server = ServerProcess(["--port", "0", "--model", path, "--alias", "demo", *map(str, flags)])
    try:
        server.wait_for(" serves .* at http", timeout=120)
        server.sees = request.param == "demo" or request.param in SEEING
        yield wait_until_ready(server)
    finally:
        server.end()


def asked(server: ServerProcess, dialect: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, int]:
    """(tokens of the prompt, of which cached); (0, 0) of a prompt that is longer than the model's context."""
    limit = "max_output_tokens" if dialect == "responses" else "max_tokens"
    connection = http.client.HTTPConnection(*server.address, timeout=300)
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    text = json.dumps({**whole, "model": "demo", "stream": False, limit: 4})
    connection.request("POST", PATHS[dialect], text, {"Content-Type": "application/json", **headers})
    reply = connection.getresponse()
    told = json.loads(reply.read())
    connection.close()
    if reply.status == 400 and any(word in told["error"]["message"] for word in ("context", "too long")):
        return 0, 0
    assert reply.status == 200, told
    usage = told["usage"]
    if dialect == "anthropic":
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached
    if dialect == "responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def played(server: ServerProcess, script: dict[str, Any]) -> list[tuple[int, int]]:
    """What `asked` says of each turn."""
    turns, found = bodies(script), {}
    start = [turn.get("from", number - 1) for number, turn in enumerate(script["turns"])]
    with ThreadPoolExecutor(8) as pool:
        while len(found) < len(turns):
            ready = [n for n in range(len(turns)) if n not in found and (start[n] in found or not n)]
            made = pool.map(lambda n: asked(server, script["dialect"], turns[n], script.get("headers", {})), ready)
            found |= dict(zip(ready, made))
    return [found[n] for n in range(len(turns))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script["name"])
def test_each_turn_finds_the_prompt_of_the_turn_before(server, script):
    if script.get("needs") == "images" and not server.sees:
        pytest.skip("a model that does not see")
    found = played(server, script)
    shares, lost = [], []
    for number, turn in enumerate(script["turns"][1:], 1):
        if turn.get("expect", {}).get("share", 0) < SHARE:
            continue  # a reminder was cleared, or the history summarised
        before, (prompt, cached) = found[turn.get("from", number - 1)][0], found[number]
        if not before or not prompt:
            continue
        shares.append(cached / before)
        if cached < SHARE * before - SPARE:
            lost.append(f"turn {number}: {cached} of {before}, prompt {prompt}")
    print(f"\n{script['name']}: {len(shares)} turns, shares {min(shares):.3f} to {max(shares):.3f}, lost {lost}")
    assert not lost and len(shares) > 2
