"""Runs one template: messages and tools as it takes them go in, text comes out.

A template comes with a model's file and is not trusted: it runs in `sandbox`, within limits on work and time. Knows
nothing of what a template accepts (`traits`) or what its model writes (`probe`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes

from llamasrv.chat.sandbox import (
    LIST_METHODS,
    MAX_WORK,
    TRIAL_WORK,
    TooCostly,
    environment,
    joined,
    strftime_now,
    strftime_on_trial,
)
from llamasrv.errors import InvalidRequest

MAX_SOURCE = 1 << 20  # characters of a template
MAX_SECONDS = 5.0
MAX_REASON = 2000  # max characters of a template's own error message
_ABSENT = {"tools": None, "documents": None}
"""What a conversation without them has, as in transformers."""
_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}
"""Today, by the names and in the forms that llama-server hands to templates. A day, so that prefixes stay the same."""


class TemplateError(Exception):
    """A template that cannot be compiled, or costs too much. The message names the line or the limit."""


class TemplateTooLarge(TemplateError):
    """There is no memory for it."""


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
        template = sandbox.from_string(source)
        template.globals = dict(template.globals)  # each rendering copies them, which takes longer from a ChainMap
        return template, frozenset(meta.find_undeclared_variables(tree)), _words_looked_for(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template has an error in line {error.lineno}: {error.message}") from None
    except MemoryError:
        raise TemplateTooLarge("the chat template takes too much memory to be compiled") from None
    except (RecursionError, ValueError, SyntaxError) as error:
        raise TemplateError(f"the chat template cannot be compiled: {error}") from None


class Renderer:
    """One template, compiled. Raises TemplateError where the source cannot be used."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._template, self.variables, self.looked_for = _compile(source)
        self._copies_input = any(f".{method}(" in source for method in LIST_METHODS)
        self._absent: Mapping[str, Any] = _ABSENT
        self._work = MAX_WORK  # budget of each rendering
        self._given: dict[str, Any] = {"bos_token": bos_token, "eos_token": eos_token}
        self._dates = {name: form for name, form in _DATES.items() if name in self.variables}

    def learn_absent(self) -> None:
        """Leave what a conversation lacks undefined if the template renders one only then: some loop over `tools`
        without a question."""

        def renders(absent: Mapping[str, Any], content: Any) -> bool:
            trial = self.on_trial()
            trial._absent = absent
            try:
                return bool(trial.render([{"role": "user", "content": content}]))
            except InvalidRequest:
                return False

        contents: tuple[Any, ...] = ("Hi", [{"type": "text", "text": "Hi"}])
        if any(renders({}, content) and not renders(_ABSENT, content) for content in contents):
            self._absent = {}

    def on_trial(self) -> Renderer:
        """The same for short conversations: one of them that costs much is refused with TemplateError."""
        trial = copy.copy(self)
        trial._work = TRIAL_WORK
        trial._given = {**self._given, "strftime_now": strftime_on_trial}
        return trial

    def render(
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
            **self._absent,
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


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_deep_copy(item) for item in value]
    return value
