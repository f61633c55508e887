"""Rough prompt sizes: long prompts are rendered and tokenised on a native thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llamasrv.domain.request import ChatPrompt, InfillPrompt, Message, MixedPrompt, Prompt, TextPart, TextPrompt
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.errors import ContextTooLong, InvalidRequest

EACH = 40  # characters that take as long to render and tokenise as a message, or a part of one, without any text
MOST_PARTS = 20_000  # of all messages together; looking through them takes some 10 ms
LONG_TEXT = 20_000  # characters, some 10 ms; beyond, rendering and tokenising go to a native thread
_CHARS_A_TOKEN = 6  # no real text has as many; beyond, a prompt is counted in slices until it is too long
_SLICE = 8192  # characters
LONG_FORM = 4_000  # characters of schemas whose grammar takes some 5 ms to build


def is_long(prompt: Prompt) -> bool:
    """Whether rendering and tokenising the prompt would block the hub for too long."""
    return _size(prompt) > LONG_TEXT


def are_long(texts: Iterable[str]) -> bool:
    """Whether tokenising all of them would block the hub for too long."""
    return _until_long(map(len, texts)) > LONG_TEXT


def is_long_form(form: Any) -> bool:
    """Whether building a grammar of the schemas in a value would block the hub for too long."""
    return _json_size(form) > LONG_FORM


def has_parts(prompts: Iterable[Prompt]) -> bool:
    """Whether any prompt holds more than text; media and documents need not be looked for otherwise."""
    return any(
        type(prompt) is MixedPrompt
        or (type(prompt) is ChatPrompt and any(type(message.content) is tuple for message in prompt.messages))
        for prompt in prompts
    )


def check_parts(prompts: Iterable[Prompt]) -> None:
    """Raises InvalidRequest if messages have more parts than are looked at on the hub."""
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            number = sum(len(message.content) for message in prompt.messages if type(message.content) is tuple)
            if number > MOST_PARTS:
                text = f"The messages have {number} content parts in all; at most {MOST_PARTS} are accepted."
                raise InvalidRequest(text, param="messages")


def refuse_endless(text: str, vocab: Vocabulary, context: int, *, short: int = LONG_TEXT) -> None:
    """Raises ContextTooLong for a text that is far too long for a context of that many tokens, without reading all of
    it: the count in the error is an estimate. A text of up to `short` characters is not looked at."""
    if len(text) <= context * _CHARS_A_TOKEN or len(text) <= short:
        return
    count = 0
    for start in range(0, len(text), _SLICE):
        count += len(vocab.tokenize(text[start : start + _SLICE], parse_special=False))
        if count > context * 1.1 + 64:  # cutting may cost a token a slice
            read = min(start + _SLICE, len(text))
            raise ContextTooLong(num_prompt=count * len(text) // read, context=context, param="prompt")


def _size(prompt: Prompt) -> int:
    """The approximate number of characters to render and tokenise."""
    if isinstance(prompt, ChatPrompt):
        size = _until_long(map(_message_size, prompt.messages))
        tools = [*prompt.tools, *(tool for message in prompt.messages for tool in message.added_tools)]
        if tools:
            size += _json_size([(t.name, t.description, t.parameters) for t in tools])
        return size + _json_size(prompt.template_kwargs) if prompt.template_kwargs else size
    if isinstance(prompt, TextPrompt):
        return len(prompt.text) + len(prompt.suffix or "")
    if isinstance(prompt, MixedPrompt):
        return _until_long(len(part) + EACH for part in prompt.parts if isinstance(part, str))
    if isinstance(prompt, InfillPrompt):
        return len(prompt.before) + len(prompt.after) + _until_long(len(text) + EACH for _, text in prompt.extra)
    return 0


def _until_long(sizes: Iterable[int]) -> int:
    """Their sum; stops counting once it is certainly long."""
    total = 0
    for size in sizes:
        total += size
        if total > LONG_TEXT:
            break
    return total


def _message_size(message: Message) -> int:
    content = message.content
    if isinstance(content, str):
        size = EACH + len(content)
    else:
        size = EACH + sum(EACH + len(part.text) if isinstance(part, TextPart) else EACH for part in content or ())
    if message.reasoning:
        size += len(message.reasoning)
    for call in message.tool_calls:
        size += EACH + len(call.name) + len(call.arguments)
    return size


def _json_size(value: Any) -> int:
    """Its approximate length as JSON; stops counting once it is certainly long."""
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
