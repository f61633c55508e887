"""Chat templates: a conversation goes in, the prompt's text comes out.

A template runs in `sandbox`; `guard` keeps special tokens in what users wrote apart. What it accepts is found out by
`traits`; what its model writes, by `probe`. Knows nothing of tokens, protocols or engines.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes

from llamasrv.chat import normalise, probe
from llamasrv.chat.families import GENERIC
from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.guard import END, LOOKS_SPECIAL, MEDIA, STAND_INS, Guard, Segment, any_of
from llamasrv.chat.media import marked, media_of
from llamasrv.chat.round_trip import round_trip, unsure
from llamasrv.chat.sandbox import (
    LIST_METHODS,
    MAX_WORK,
    TRIAL_WORK,
    TooCostly,
    environment,
    joined,
    strftime_now,
)
from llamasrv.chat.traits import Traits, examine, tools_elsewhere
from llamasrv.domain.request import ChatPrompt
from llamasrv.errors import InvalidRequest

MAX_SOURCE = 1 << 20  # characters of a template
MAX_SECONDS = 5.0
MAX_REASON = 2000  # characters of a template's own error message
RESERVED = frozenset(
    ("messages", "tools", "functions", "add_generation_prompt", "continue_final_message", "chat_template",
     "tokenize", "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum",
     "cycler", "joiner", "loop", "self", "super", "caller", "varargs", "kwargs", "true", "false", "none")
)  # fmt: skip
"""Names that a request may not set through template variables."""
_THINKING_SWITCHES = ("enable_thinking", "thinking")  # templates call the same switch by two names
_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}
"""Today, by the names and in the forms that llama-server hands to templates. A day, so that prefixes stay the same."""


class TemplateError(Exception):
    """A template that cannot be compiled, or costs too much. The message names the line or the limit."""


class TemplateTooLarge(TemplateError):
    """There is no memory for it."""


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


def _words_looked_for(tree: nodes.Template) -> frozenset[str]:
    """Texts that a template searches contents for: operands of `in`, arguments of text methods."""
    found: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            found.update(const.value for const in compare.find_all(nodes.Const) if isinstance(const.value, str))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr):
            found.update(const.value for const in call.find_all(nodes.Const) if isinstance(const.value, str))
    return frozenset(found)


@lru_cache(maxsize=64)
def _compile(source: str) -> tuple[jinja2.Template, frozenset[str], frozenset[str]]:
    """The template, the variables that it reads, and the texts that it searches for."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"the chat template is longer than {MAX_SOURCE} characters")
    sandbox = environment()
    try:
        tree = sandbox.parse(source)
        return sandbox.from_string(source), frozenset(meta.find_undeclared_variables(tree)), _words_looked_for(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template has an error in line {error.lineno}: {error.message}") from None
    except MemoryError:
        raise TemplateTooLarge("the chat template takes too much memory to be compiled") from None
    except (RecursionError, ValueError, SyntaxError) as error:
        raise TemplateError(f"the chat template cannot be compiled: {error}") from None


class ChatTemplate:
    """One template of one model. Compiled once; what it accepts is learned at the first rendering."""

    def __init__(
        self, source: str, bos_token: str = "", eos_token: str = "", special_tokens: Iterable[str] | None = None
    ) -> None:
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._template, self.variables, looked_for = _compile(source)
        if special_tokens is None:
            self._special = re.compile(LOOKS_SPECIAL)
        else:
            words = [word for word in (*special_tokens, bos_token, eos_token) if word]
            self._special = re.compile("|".join(([any_of(words)] if words else []) + [STAND_INS, END, MEDIA]))
        self._looked_for = looked_for
        self._copies_input = any(f".{method}(" in source for method in LIST_METHODS)
        self._work = MAX_WORK  # of each rendering
        self._given = {"bos_token": bos_token, "eos_token": eos_token}
        self._dates = {name: form for name, form in _DATES.items() if name in self.variables}
        self._traits: Traits | None = None
        self._format: ChatFormat | None = None

    @property
    def traits(self) -> Traits:
        """What this template accepts and shows. The first access renders a few dozen trial conversations; it
        raises TemplateError where they cost too much."""
        if self._traits is None:
            self._traits = examine(self._on_trial())
        return self._traits

    @property
    def format(self) -> ChatFormat:
        """How this template's model writes reasoning and calls. Learned, and tried, at the first access."""
        if self._format is None:
            _ = self.traits
            trial = self._on_trial()
            trial._format = GENERIC  # while it is learned; others may render meanwhile
            trial._format = probe.describe(trial)
            trial._format = probe.with_gap(trial, trial._format)
            self._format = replace(trial._format, unsure=unsure(round_trip(trial)))
        return self._format

    def _on_trial(self) -> ChatTemplate:
        """The same for short conversations: one of them that costs much is refused with TemplateError."""
        trial = copy.copy(self)
        trial._work = TRIAL_WORK
        return trial

    def render(self, prompt: ChatPrompt) -> Rendered:
        """The prompt of a conversation. Raises InvalidRequest with the template's own message if it refuses."""
        variables = self._allowed(prompt.template_kwargs)
        if prompt.thinks_by_default and "enable_thinking" in self.variables and not _is_told(prompt.template_kwargs):
            variables = {**variables, "enable_thinking": True}  # that name alone, as llama-server sets it
        marks: list[str] = []
        if media_of(prompt):
            prompt, marks = marked(prompt)
        traits = self.traits
        conversation = normalise.prepare(prompt, traits, self.format.calls)
        guard = Guard(self._special, self._looked_for, marks)
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
        text = self.render_plain(messages, tools, conversation.add_generation_prompt, variables, guard.tokens)
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
        """The prompt up to where the last message goes on."""
        thought, held = self.format.reasoning, conversation.held
        end = text.rfind(END)
        if end < 0:
            # The template does not show what is to be continued: begin a new turn, and write it there.
            if conversation.continues == "reasoning":
                variables = {**variables, **{name: True for name in _THINKING_SWITCHES if name in self.variables}}
            start = self.render_plain(conversation.messages[:-1], tools, True, variables, guarded)
            if conversation.continues == "reasoning" and thought is not None:
                start = thought.reopened(start)
        elif conversation.continues == "reasoning" or not text[:end].endswith(held):
            return text[:end]
        else:
            start = text[: end - len(held)]
        if conversation.continues == "content" and thought is not None and thought.is_open(start):
            start = start.rstrip() + "\n" + thought.end.lstrip()
        return start + held

    def render_plain(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        guarded: Sequence[str] = (),
    ) -> str:
        """Exactly what the template makes of these messages; raises InvalidRequest if it fails."""
        if self._copies_input:
            messages, tools = _deep_copy(messages), _deep_copy(tools)
        given = {
            **self._given,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            **(variables or {}),
        }
        if tools:
            given["tools"] = tools
        for name, form in self._dates.items():
            given.setdefault(name, strftime_now(form))
        context: Any = self._template.new_context(given)  # a _Budget
        context.guarded = guarded
        context.left = self._work
        context.deadline = time.monotonic() + MAX_SECONDS
        try:
            return joined(self._template.root_render_func(context))
        except TooCostly as error:
            if self._work < MAX_WORK:
                raise TemplateError(f"{error}, although these are a few words") from None
            raise InvalidRequest(str(error), param="messages") from None
        except jinja2.TemplateError as error:
            reason = str(error)[:MAX_REASON] or "The chat template refused these messages."
            raise InvalidRequest(reason, param="messages") from None
        except MemoryError:
            raise
        except Exception as error:  # a template can fail in every way that Python can
            reason = f"The chat template cannot render these messages: {type(error).__name__}: {error}"
            raise InvalidRequest(reason[:MAX_REASON], param="messages") from None

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


def _is_told(variables: Mapping[str, Any]) -> bool:
    return any(name in variables for name in _THINKING_SWITCHES)


def _switches_thinking_off(variables: Mapping[str, Any]) -> bool:
    return any(variables.get(name) is False for name in _THINKING_SWITCHES)


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_deep_copy(item) for item in value]
    return value


def _directory() -> Path:
    """The folder of the fallback templates: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "templates" / "chat"
    return inside if inside.is_dir() else package.parent / "templates" / "chat"


@lru_cache(maxsize=8)
def fallback_source(name: str = "chatml") -> str:
    """The source of one of our own templates: chatml (the default where a model has none) or plain."""
    return (_directory() / f"{name}.jinja").read_text(encoding="utf-8")
