"""Chat templates: a conversation goes in, the prompt's text comes out.

`normalise` makes of the conversation what the template accepts (`traits`), `guard` keeps special tokens in what users
wrote apart, and a Renderer runs the template. What its model writes is learned by `probe`. Knows nothing of tokens,
protocols or engines.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from llamasrv.chat import normalise, probe
from llamasrv.chat.families import GENERIC
from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.guard import END, LOOKS_SPECIAL, MEDIA, STAND_INS, Guard, Segment, any_of
from llamasrv.chat.media import marked, media_of
from llamasrv.chat.notations import NOTATIONS
from llamasrv.chat.notations.base import Notation
from llamasrv.chat.renderer import Renderer
from llamasrv.chat.round_trip import cost_of_losses, round_trip, unsure
from llamasrv.chat.traits import Traits, examine, tools_elsewhere
from llamasrv.domain.request import ChatPrompt
from llamasrv.errors import InvalidRequest

RESERVED = frozenset(
    ("messages", "tools", "functions", "add_generation_prompt", "continue_final_message", "chat_template",
     "tokenize", "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum",
     "cycler", "joiner", "loop", "self", "super", "caller", "varargs", "kwargs", "true", "false", "none")
)  # fmt: skip
"""Names that a request may not set through template variables."""
_THINKING_SWITCHES = ("enable_thinking", "thinking")  # templates call the same switch by two names


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt.

    The segments make up the text; special tokens may be parsed in trusted segments only. A number among the segments
    stands for an image or a sound, as `media_of` counts them; the text does not contain it. `continues` is "content"
    or "reasoning" if the prompt ends inside the assistant's last message.
    """

    text: str
    segments: tuple[Segment, ...]
    continues: str | None = None


class ChatTemplate:
    """One template of one model. Compiled once; what it accepts is learned at the first rendering."""

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Iterable[str] | None = None,
        *,
        notations: Sequence[type[Notation]] = NOTATIONS,
    ) -> None:
        """`notations`: the ways of writing calls that it may show."""
        self.renderer = Renderer(source, bos_token, eos_token)
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._notations = notations
        if special_tokens is None:
            self._special = re.compile(LOOKS_SPECIAL)
        else:
            words = [word for word in (*special_tokens, bos_token, eos_token) if word]
            self._special = re.compile("|".join(([any_of(words)] if words else []) + [STAND_INS, END, MEDIA]))
        self._traits: Traits | None = None
        self._candidates: tuple[ChatFormat, ...] | None = None
        self._format: ChatFormat | None = None

    @property
    def source(self) -> str:
        return self.renderer.source

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the template reads."""
        return self.renderer.variables

    @property
    def traits(self) -> Traits:
        """What this template accepts and shows. The first access renders a few dozen trial conversations; it
        raises TemplateError where they cost too much."""
        if self._traits is None:
            self.renderer.learn_absent()
            self._traits = examine(self.renderer.on_trial())
        return self._traits

    @property
    def format(self) -> ChatFormat:
        """How this template's model writes reasoning and calls. Learned, and tried, at the first access."""
        if self._format is None:
            self._format = min(self.candidates, key=lambda format: cost_of_losses(format.unsure))
        return self._format

    @property
    def candidates(self) -> tuple[ChatFormat, ...]:
        """What was learned, in the order in which it was tried, up to the first that loses nothing."""
        if self._candidates is None:
            tried: list[ChatFormat] = []
            for format in probe.candidates(self._on_trial(GENERIC), self._notations):
                if "zq" in str(format):
                    continue  # a word of the trial is no mark
                tried.append(self._tried(format))
                if not tried[-1].unsure:
                    break
            self._candidates = tuple(tried) or (self._tried(GENERIC),)
        return self._candidates

    def _tried(self, format: ChatFormat) -> ChatFormat:
        """The format with what a round trip says of it."""
        format = probe.with_gap(self._on_trial(format), format)
        return replace(format, unsure=unsure(round_trip(self._on_trial(format))))

    def _on_trial(self, format: ChatFormat) -> ChatTemplate:
        """The same for short conversations and a format that is to be tried."""
        _ = self.traits
        trial = copy.copy(self)
        trial.renderer = self.renderer.on_trial()
        trial._format = format
        return trial

    def render(self, prompt: ChatPrompt) -> Rendered:
        """The prompt of a conversation. Raises InvalidRequest with the template's own message if it refuses."""
        variables = self._allowed(prompt.template_kwargs)
        if prompt.thinks_by_default and "enable_thinking" in self.variables and not _decides(prompt.template_kwargs):
            variables = {**variables, "enable_thinking": True}  # that name alone, as llama-server sets it
        marks: list[str] = []
        if media_of(prompt):
            prompt, marks = marked(prompt)
        traits = self.traits
        guard = Guard(self._special, self.renderer.looked_for, marks)
        conversation = normalise.prepare(prompt, traits, self.format.calls, guard)
        messages = guard.messages(conversation.messages)
        if conversation.continues is not None:
            conversation.held = guard.value(conversation.held)
            normalise.mark_ending(conversation, traits, END)
        tools = guard.value(conversation.tools) if conversation.tools else None
        if variables:
            variables = guard.value(variables)
        if traits.tools_variable != "tools":
            variables = {**variables, **tools_elsewhere(tools, traits)}
            tools = None
        text = self.renderer.render(messages, tools, conversation.add_generation_prompt, variables, guard.tokens)
        if conversation.continues is not None:
            text = self._cut_at_end(text, conversation, tools, variables, guard.tokens)
        elif conversation.add_generation_prompt and _switches_thinking_off(prompt.template_kwargs):
            text = self.format.closed(text)
        text, segments = guard.segments(text)
        return Rendered(text, segments, conversation.continues)

    def _cut_at_end(
        self,
        text: str,
        conversation: normalise.Conversation,
        tools: list[Any] | None,
        variables: Mapping[str, Any],
        guarded: Sequence[str],
    ) -> str:
        """The prompt up to where the last message continues."""
        thought, held = self.format.reasoning, conversation.held
        end = text.rfind(END)
        if end < 0:
            # The template does not show what is to be continued: begin a new turn, and write it there.
            if conversation.continues == "reasoning":
                variables = {**variables, **{name: True for name in _THINKING_SWITCHES if name in self.variables}}
            start = self.renderer.render(conversation.messages[:-1], tools, True, variables, guarded)
            if conversation.continues == "reasoning" and thought is not None:
                start = thought.reopened(start)
        elif conversation.continues == "reasoning" or not text[:end].endswith(held):
            return text[:end]
        else:
            start = text[: end - len(held)]
        if conversation.continues == "content" and thought is not None and thought.is_open(start):
            start = start.rstrip() + "\n" + thought.end.lstrip()
        return start + held

    def _allowed(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Only variables that the template reads are passed on; variables that would replace the conversation are
        refused."""
        if not variables:
            return {}
        for name in variables:
            if name in RESERVED or name.startswith("_"):
                raise InvalidRequest(f"'{name}' cannot be set as a template variable.", param="chat_template_kwargs")
        allowed = {name: value for name, value in variables.items() if name in self.variables}
        for name, twin in (_THINKING_SWITCHES, _THINKING_SWITCHES[::-1]):
            if name in variables and twin in self.variables and twin not in variables:
                allowed[twin] = variables[name]
        return allowed


def _decides(variables: Mapping[str, Any]) -> bool:
    return any(name in variables for name in _THINKING_SWITCHES)


def _switches_thinking_off(variables: Mapping[str, Any]) -> bool:
    return any(variables.get(name) is False for name in _THINKING_SWITCHES)


def _directory() -> Path:
    """The folder of the fallback templates: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "templates" / "chat"
    return inside if inside.is_dir() else package.parent / "templates" / "chat"


@lru_cache(maxsize=8)
def fallback_source(name: str = "chatml") -> str:
    """The source of one of our own templates: chatml (the default where a model has none) or plain."""
    return (_directory() / f"{name}.jinja").read_text(encoding="utf-8")
