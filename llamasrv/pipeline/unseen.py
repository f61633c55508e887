"""Pictures and sounds in the results of tools, for a model that cannot take them, or that cannot be decoded.

A tool returns what it likes: an agent that reads a picture's file gets the picture. Refusing it would end the session
for good, because it is part of the conversation from then on. So a sentence that says so stands in its
place. What a user sends is refused instead: there the client can read why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeGuard, TypeVar

from llamasrv.domain.request import ChatPrompt, MediaPart, Message, Part, Prompt, TextPart
from llamasrv.engine.base.interface import Projector
from llamasrv.pipeline.media import takes

AnyPrompt = TypeVar("AnyPrompt", bound=Prompt)

SENTENCES = {"image": "[a picture: this model does not see]", "audio": "[a sound: this model does not hear]"}
UNREADABLE = {"image": "[a picture that cannot be read]", "audio": "[a sound that cannot be read]"}


def of_tools(prompts: Sequence[Prompt]) -> set[int]:
    """The identities of the pictures and sounds that tools returned."""
    return {
        id(part)
        for prompt in prompts
        if isinstance(prompt, ChatPrompt)
        for message in prompt.messages
        if type(message.content) is tuple
        for part in message.content
        if _is_a_tools(part, message)
    }


def described(prompt: AnyPrompt, projector: Projector | None, unreadable: Collection[int] = ()) -> AnyPrompt:
    """The prompt with a sentence in place of what tools returned and the model cannot take, or whose identity is among
    `unreadable`."""

    def sentence(part: Part, message: Message) -> TextPart | None:
        if not _is_a_tools(part, message):
            return None
        if id(part) in unreadable:
            return TextPart(UNREADABLE[part.kind or "image"])
        return None if takes(part.kind, projector) else TextPart(SENTENCES[part.kind or "image"])

    if not isinstance(prompt, ChatPrompt) or not _any(prompt.messages, sentence):
        return prompt
    messages: list[Message] = []
    for message in prompt.messages:
        if type(message.content) is not tuple:
            messages.append(message)
            continue
        parts: list[Part] = []
        for part in message.content:
            words = sentence(part, message)
            if words is None:
                parts.append(part)
            elif message.role == "tool":
                parts.append(words)
            else:  # it was moved behind the results: its sentence goes back
                assert isinstance(part, MediaPart)
                at = max(i for i, other in enumerate(messages) if other.tool_call_id == part.result_of)
                messages[at] = _with(messages[at], words)
        if parts:
            messages.append(replace(message, content=tuple(parts)))
    return replace(prompt, messages=tuple(messages))


def _any(messages: tuple[Message, ...], sentence: Callable[[Part, Message], TextPart | None]) -> bool:
    return any(
        sentence(part, message) for message in messages if type(message.content) is tuple for part in message.content
    )


def _is_a_tools(part: Part, message: Message) -> TypeGuard[MediaPart]:
    return isinstance(part, MediaPart) and (message.role == "tool" or part.result_of is not None)


def _with(message: Message, part: TextPart) -> Message:
    content = message.content
    if type(content) is str:
        content = (TextPart(content),) if content else ()
    return replace(message, content=(*(content or ()), part))
