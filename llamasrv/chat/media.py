"""Images and audio in a conversation, on their way through a template.

A template gets texts. Each image or sound becomes a mark in the text of its message; `guard` shows the template one
character in its place, and finds it again in what was rendered. So templates write no marks of their own around them:
the model's projector does.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from llamasrv.domain.request import ChatPrompt, MediaPart, Message, TextPart


def media_of(prompt: ChatPrompt) -> list[MediaPart]:
    """The media parts in order; a segment of the rendered prompt refers to one by number."""
    contents = [message.content for message in prompt.messages if type(message.content) is tuple]
    return [part for content in contents for part in content if isinstance(part, MediaPart)]


def marked(prompt: ChatPrompt) -> tuple[ChatPrompt, list[str]]:
    """The conversation as texts with markers, and the markers. Clients cannot forge them: they are random each time."""
    secret = secrets.token_hex(12)
    marks: list[str] = []
    messages = []
    for message in prompt.messages:
        if type(message.content) is tuple and any(isinstance(part, MediaPart) for part in message.content):
            message = replace(message, content=_joined(message, secret, marks))
        messages.append(message)
    return replace(prompt, messages=tuple(messages)), marks


def _joined(message: Message, secret: str, marks: list[str]) -> str:
    """Texts joined with a line break, and media markers without one."""
    assert type(message.content) is tuple
    out = ""
    after_text = False
    for part in message.content:
        if isinstance(part, TextPart):
            out += "\n" + part.text if after_text and part.text else part.text
            after_text = after_text or bool(part.text)
        else:
            marks.append(f"\U0003134b{secret}{len(marks):x}\U0003134b")
            out += marks[-1]
            after_text = False
    return out
