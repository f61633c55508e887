"""Conversations of agents, turn by turn, as the bodies that their clients send."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from typing import Any

from vectors import SHARED

from llamasrv.domain.request import ChatPrompt
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.openai.responses import Responses

FILE = SHARED / "agents" / "replays.json"
SCRIPTS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["scripts"] if FILE.is_file() else []
_HISTORY = {"anthropic": "messages", "responses": "input", "chat": "messages"}


def bodies(script: dict[str, Any]) -> list[dict[str, Any]]:
    key = _HISTORY[script["dialect"]]
    made: list[dict[str, Any]] = []
    for number, turn in enumerate(script["turns"]):
        base = made[turn.get("from", number - 1)] if number else {**script["base"], key: []}
        body = copy.deepcopy(base)
        items = body[key][: turn.get("keep")]
        for at, item in turn.get("edit", ()):
            items[at] = item
        body[key] = items + turn["append"]
        body.update(turn.get("set", {}))
        for field in turn.get("unset", ()):
            body.pop(field, None)
        made.append(body)
    return made


def prompt_of(dialect: str, body: dict[str, Any]) -> ChatPrompt:
    endpoint = {"anthropic": MessagesEndpoint, "responses": Responses, "chat": ChatCompletions}[dialect](Limits())
    request = endpoint.parse(body)[0]
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    return replace(prompt, tools=()) if request.tool_choice.mode == "none" else prompt


@cache
def prompts(name: str) -> tuple[tuple[dict[str, Any], int, ChatPrompt], ...]:
    """Each turn of a script, the number of the turn that it starts from, and its prompt."""
    (script,) = (script for script in SCRIPTS if script["name"] == name)
    return tuple(
        (turn, turn.get("from", number - 1), prompt_of(script["dialect"], body))
        for number, (turn, body) in enumerate(zip(script["turns"], bodies(script)))
    )
