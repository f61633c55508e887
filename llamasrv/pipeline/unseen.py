"""Pictures and sounds in the results of tools, for a model that cannot take them.

A tool returns what it likes: an agent that reads a picture's file gets the picture. Refusing it would end the session
for good, because it is part of the conversation from then on. So a sentence stands in its place, which tells the model
the truth. What a user sends is refused instead: somebody is there to read why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard, TypeVar

from llamasrv.domain.request import ChatPrompt, MediaPart, Message, Part, Prompt, TextPart
from llamasrv.engine.interface import Projector
from llamasrv.pipeline.media import takes

AnyPrompt = TypeVar("AnyPrompt", bound=Prompt)

SENTENCES = {"image": "[a picture: this model does not see]", "audio": "[a sound: this model does not hear]"}


def described(prompt: AnyPrompt, projector: Projector | None) -> AnyPrompt:
    """The prompt with a sentence in place of what tools returned and the model cannot take."""
    if not isinstance(prompt, ChatPrompt) or not _any_unseen(prompt.messages, projector):
        return prompt
    messages: list[Message] = []
    for message in prompt.messages:
        if type(message.content) is not tuple:
            messages.append(message)
            continue
        parts: list[Part] = []
        for part in message.content:
            if not _is_unseen(part, message, projector):
                parts.append(part)
            elif message.role == "tool":
                parts.append(_sentence(part))
            else:  # it was moved behind the results: its sentence goes back
                at = max(i for i, other in enumerate(messages) if other.tool_call_id == part.result_of)
                messages[at] = _with(messages[at], _sentence(part))
        if parts:
            messages.append(replace(message, content=tuple(parts)))
    return replace(prompt, messages=tuple(messages))


def _any_unseen(messages: tuple[Message, ...], projector: Projector | None) -> bool:
    return any(
        _is_unseen(part, message, projector)
        for message in messages
        if type(message.content) is tuple
        for part in message.content
    )


def _is_unseen(part: Part, message: Message, projector: Projector | None) -> TypeGuard[MediaPart]:
    if not isinstance(part, MediaPart) or (message.role != "tool" and part.result_of is None):
        return False
    return not takes(part.kind, projector)


def _sentence(part: MediaPart) -> TextPart:
    return TextPart(SENTENCES[part.kind or "image"])


def _with(message: Message, part: TextPart) -> Message:
    content = message.content
    if type(content) is str:
        content = (TextPart(content),) if content else ()
    return replace(message, content=(*(content or ()), part))
