"""`llamasrv` with a fake model that plays a script: `python scripted_model.py serve --fake ...`.

Protocols, template, grammar, parser, engine and caches are the server's own; only what the model wants to write is
decided here, from the text of its timeline, in the notation of the template that it is served with. Tokens are bytes.

SCRIPT names a JSON file: {"template": FILE, "orders": [{"mark", "tool", "turns": [{"thought", "text", "calls"}]}]}. An
order is known by its mark, the first one in a prompt that offers its tool. `calls` are pairs of a name and arguments. A
turn's text must be nowhere else in the prompt: it tells how far the order is. Any other prompt gets a title.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamasrv import cli
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Message, Tool, ToolCall
from llamasrv.engine.backend import fake
from llamasrv.engine.base.interface import Progress

TITLE = b"A greeting"
CONTEXT = 600_000
END = fake.SPECIALS[2]
PIECES = [*(bytes([n]) for n in range(256)), *(mark.encode() for mark in fake.SPECIALS)]
THINK, THOUGHT = b"<think>\n", b"</think>"


@dataclass(frozen=True)
class Order:
    """What the model does about one order: `texts` tell its turns apart, `turns` are those turns as it writes them."""

    mark: bytes
    offered: re.Pattern[bytes]
    texts: tuple[bytes, ...]
    turns: tuple[bytes, ...]


class Script:
    """What the model writes next, by what the timeline says so far."""

    def __init__(self, path: Path) -> None:
        script = json.loads(path.read_text("utf-8"))
        template = ChatTemplate(Path(script["template"]).read_text("utf-8"), special_tokens=fake.SPECIALS)
        self._orders = [
            Order(
                order["mark"].encode(),
                re.compile(rf'("name": "|<name>){re.escape(order["tool"])}["<]'.encode()),
                tuple(turn["text"].encode() for turn in order["turns"]),
                tuple(_written(template, turn) for turn in order["turns"]),
            )
            for order in script["orders"]
        ]
        self._all = [TITLE, *(form for order in self._orders for turn in order.turns for form in _forms(turn))]
        self._longest = max(map(len, self._all))

    def rest(self, timeline: bytes) -> bytes:
        """What is still to be written behind this timeline, which may end with the first part of the answer."""
        for length in range(min(self._longest, len(timeline)), 0, -1):
            begun = timeline[-length:]
            if any(form.startswith(begun) for form in self._all):
                wanted = self._answer(timeline[:-length])
                if wanted.startswith(begun):
                    return wanted[length:]
        return self._answer(timeline)

    def _answer(self, prompt: bytes) -> bytes:
        given = [(prompt.find(order.mark), order) for order in self._orders if order.offered.search(prompt)]
        given = [one for one in given if one[0] >= 0]
        if not given:
            return TITLE
        _, order = min(given, key=lambda one: one[0])
        done = sum(text in prompt for text in order.texts)
        return _form_behind(prompt, order.turns[min(done, len(order.turns) - 1)])


def _written(template: ChatTemplate, turn: dict[str, Any]) -> bytes:
    """The turn as the template writes it."""
    calls = tuple(
        ToolCall(f"call_{n:06d}", name, json.dumps(arguments, ensure_ascii=False))
        for n, (name, arguments) in enumerate(turn.get("calls", ()))
    )
    tools = tuple(Tool(call.name, "", {"type": "object"}) for call in calls)
    user = Message("user", "Do it.")
    said = Message("assistant", turn["text"], reasoning=turn.get("thought"), tool_calls=calls)
    asked = template.render(ChatPrompt((user,), tools)).text
    whole = template.render(ChatPrompt((user, said), tools, add_generation_prompt=False)).text
    return whole[len(os.path.commonprefix((asked, whole))) :].partition(END)[0].encode()


def _forms(turn: bytes) -> list[bytes]:
    """A turn after a prompt that opens no thought, one that opens a thought, and one that closes it, too."""
    if not turn.startswith(THINK):
        return [turn, THOUGHT + b"\n\n" + turn, turn]
    return [turn, turn.removeprefix(THINK), turn.partition(THOUGHT)[2].lstrip()]


def _form_behind(prompt: bytes, turn: bytes) -> bytes:
    whole, opened, closed = _forms(turn)
    if prompt.endswith(THINK):
        return opened
    return closed if prompt.rstrip().endswith(THOUGHT) else whole


class ScriptedBackend(fake.FakeBackend):
    used_cells = 0  # there is always room, and counting is slow

    def __init__(self, script: Script, **settings: Any) -> None:
        self._script = script
        super().__init__(**settings)

    def _row(self, tokens: list[int]) -> Any:
        row = self._noise[len(tokens) % len(self._noise)].copy()
        left = self._script.rest(b"".join(map(PIECES.__getitem__, tokens)))
        row[left[0] if left else fake.IM_END] += 2 * fake._PEAK
        return row


def open_scripted(progress: Progress, *, num_lanes: int = 64, **unused: Any) -> ScriptedBackend:
    script = Script(Path(os.environ["SCRIPT"]))
    progress(1.0)
    return ScriptedBackend(script, num_lanes=num_lanes, num_cells=CONTEXT, context=CONTEXT, batch_size=2048)


if __name__ == "__main__":
    fake.open_fake_backend = open_scripted
    sys.exit(cli.main(sys.argv[1:]))
