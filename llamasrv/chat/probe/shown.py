"""What a template writes for the turns of a trial, and what two of them share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from llamasrv.chat.notations import trial
from llamasrv.chat.traits import Traits
from llamasrv.domain.request import ChatPrompt, Message, Tool, ToolCall
from llamasrv.errors import InvalidRequest


class ProbedTemplate(Protocol):
    """What probing needs of a template."""

    @property
    def source(self) -> str: ...
    @property
    def eos_token(self) -> str: ...
    @property
    def variables(self) -> frozenset[str]: ...
    @property
    def traits(self) -> Traits: ...
    def render(self, prompt: ChatPrompt) -> Any: ...


_PARAMETERS = {
    "type": "object",
    "properties": {
        "zqfirst": {"type": "string", "description": "zq"},
        "zqsecond": {"type": "integer", "description": "zq"},
    },
    "required": ["zqfirst", "zqsecond"],
}
_TOOLS = tuple(Tool(name, "zq", _PARAMETERS) for name in trial.NAMES)
_USER = Message("user", "zquser")
_ANSWER = Message("assistant", "zqanswer")
WHOLE_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


@dataclass(frozen=True, slots=True)
class TrialTurns:
    """What the template writes for the trial turns; empty where it writes nothing."""

    prompt: str  # the model continues from here
    answer: str
    thought: str
    call: str
    calls: str

    @classmethod
    def of(cls, template: ProbedTemplate) -> TrialTurns:
        thought = Message("assistant", "zqanswer", reasoning="zqthought")
        return cls(
            prompt=show(template, prompt=True),
            answer=show(template, _ANSWER),
            thought=show(template, thought) if template.traits.reasoning else "",
            call=show(template, trial_turn(1)) if template.traits.calls else "",
            calls=show(template, trial_turn(2)) if template.traits.parallel_calls else "",
        )


def show(template: ProbedTemplate, *messages: Message, prompt: bool = False) -> str:
    asked = ChatPrompt((_USER, *messages), tools=_TOOLS, add_generation_prompt=prompt)
    try:
        return str(template.render(asked).text)
    except InvalidRequest:
        return ""


def trial_turn(count: int, content: str | None = None) -> Message:
    text = json.dumps(trial.ARGUMENTS)
    made = (ToolCall(trial.IDS[n], trial.NAMES[n], text) for n in range(count))
    return Message("assistant", content, tool_calls=tuple(made))


def before_word(shown: TrialTurns, word: str, turn: str) -> str:
    """What the model writes before a word of its turn, after what the prompt and the turn share."""
    begin = common_start(turn, shown.prompt)
    place = turn.find(word, begin)
    return turn[begin:place] if place >= 0 else ""


def shared_ending(tail: str, turn: str) -> str:
    """The ending that both share, from the beginning of a mark on."""
    for found in WHOLE_MARK.finditer(tail):
        if turn.endswith(tail[found.start() :]):
            return tail[found.start() :]
    return ""


def common_start(text: str, other: str) -> int:
    """Where two texts begin to differ, moved back to the beginning of a mark or word."""
    size = 0
    while size < min(len(text), len(other)) and text[size] == other[size]:
        size += 1
    in_word = all(_WORD.match(part, size) for part in (text, other))
    cut = (_CUT_WORD if in_word else _CUT_MARK).search(text[:size])
    return cut.start() if cut else size


_WORD = re.compile(r"\w")
_CUT_MARK = re.compile(r"(<[^<>]*|\[[A-Z_/]*)\Z")
_CUT_WORD = re.compile(r"(<[^<>]*|\[[A-Z_/]*|\w+)\Z")
