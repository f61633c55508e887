"""Rough prompt sizes: long prompts are rendered and tokenised on a native thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamasrv.domain.request import ChatPrompt, InfillPrompt, Message, MixedPrompt, Prompt, TextPart, TextPrompt

LONG_TEXT = 20_000  # characters, some 10 ms; beyond, rendering and tokenising go to a native thread


def is_long(prompt: Prompt, form: Any = None) -> bool:
    """Whether rendering and tokenising the prompt, or building a grammar of `form`, would block the hub for too
    long."""
    return _size(prompt) > LONG_TEXT or _json_size(form) > LONG_TEXT


def _size(prompt: Prompt) -> int:
    """About how many characters have to be rendered and tokenised."""
    if isinstance(prompt, ChatPrompt):
        size = sum(map(_message_size, prompt.messages))
        if prompt.tools:
            size += _json_size([(t.name, t.description, t.parameters) for t in prompt.tools])
        return size + _json_size(prompt.template_kwargs) if prompt.template_kwargs else size
    if isinstance(prompt, TextPrompt):
        return len(prompt.text) + len(prompt.suffix or "")
    if isinstance(prompt, MixedPrompt):
        return sum(len(part) for part in prompt.parts if isinstance(part, str))
    if isinstance(prompt, InfillPrompt):
        return len(prompt.before) + len(prompt.after) + sum(len(text) for _, text in prompt.extra)
    return 0


def _message_size(message: Message) -> int:
    content = message.content
    if isinstance(content, str):
        size = len(content)
    else:
        size = sum(len(part.text) for part in content or () if isinstance(part, TextPart))
    if message.reasoning:
        size += len(message.reasoning)
    for call in message.tool_calls:
        size += len(call.name) + len(call.arguments)
    return size


def _json_size(value: Any) -> int:
    """About how long it is as JSON; stops counting where it is long in any case."""
    size, rest = 0, [value]
    while rest and size <= LONG_TEXT:
        value = rest.pop()
        if isinstance(value, str):
            size += len(value) + 3
        elif isinstance(value, Mapping):
            rest += value
            rest += value.values()
        elif isinstance(value, (list, tuple)):
            rest += value
        else:
            size += 4
    return size
