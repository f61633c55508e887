"""Asks a model to summarise a long conversation, and builds the turn that replaces it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llamasrv.domain.request import Message, TextPart, Tool

SUMMARISE = (
    "Summarise our conversation so far for someone who has to go on with it and sees nothing else: the goals, the"
    " decisions, the facts and file names that matter, what is done and what is left to do. Write only the summary."
)

SUMMARY = "Summary of the conversation so far:\n\n"
"""Start of the turn that replaces all turns before it."""

WORDS = "\n\nWhat the user wrote until then, word for word:\n\n"
LEFT_OUT = "[The user's earliest words are only in the summary.]"
MOST_WORDS = 0.4
"""Max share of the limit for the user's own words in a summary; more would leave the conversation as long as it
was."""

_SYSTEM = frozenset(("system", "developer"))


def head_of(messages: Sequence[Message]) -> int:
    """Number of system messages at the beginning. They are never summarised."""
    at = 0
    while at < len(messages) and messages[at].role in _SYSTEM:
        at += 1
    return at


def whole_cut(messages: Sequence[Message], at: int) -> int:
    """The last position at or before `at` where the conversation can be cut without separating a call from its
    result."""
    behind = {message.tool_call_id for message in messages[at:] if message.role == "tool"}
    behind.difference_update(call.id for message in messages[at:] for call in message.tool_calls)
    while behind and at > 0:
        at -= 1
        message = messages[at]
        if message.role == "tool":
            behind.add(message.tool_call_id)
        behind.difference_update(call.id for call in message.tool_calls)
    return at


def last_request(messages: Sequence[Message]) -> int:
    """Position of what the model has to answer: the user's last message, or the calls with the last results."""
    at = len(messages)
    if at > 0 and messages[-1].role == "assistant":  # started by the client
        at -= 1
    while at > 0 and messages[at - 1].role in ("user", *_SYSTEM):
        at -= 1
    if at > 0 and messages[at - 1].role == "tool":
        while at > 0 and messages[at - 1].role == "tool":
            at -= 1
    return whole_cut(messages, at)


def length_of(message: Message) -> int:
    """In characters."""
    content = message.content
    parts = [content] if isinstance(content, str) else [p.text for p in content or () if isinstance(p, TextPart)]
    calls = (call.arguments for call in message.tool_calls)
    return sum(map(len, (*parts, message.reasoning or "", *calls)))


def summarised(messages: Sequence[Message], at: int, text: str, most_words: int) -> tuple[Message, ...]:
    """The conversation with one turn in place of its first `at` messages after the head. `text`: their summary;
    `most_words`: max characters of the user's own words."""
    head = min(head_of(messages), at)
    gone = messages[head:at]
    words = _latest([words for message in gone if (words := _words_of(message))], most_words)
    turn = Message("user", SUMMARY + text + (WORDS + "\n\n".join(words) if words else ""))
    return (*messages[:head], with_tools_of(turn, gone), *messages[at:])


def with_tools_of(turn: Message, gone: Iterable[Message]) -> Message:
    """The turn, with the tools that were added and removed in those it replaces: the callable tools stay the same."""
    added: dict[str, Tool] = {}
    removed: dict[str, None] = {}
    for message in gone:
        for tool in message.added_tools:
            added[tool.name] = tool
            removed.pop(tool.name, None)
        for name in message.removed_tools:
            removed[name] = None
            added.pop(name, None)
    return replace(turn, added_tools=tuple(added.values()), removed_tools=tuple(removed))


def _words_of(message: Message) -> str:
    """What the user wrote; of an earlier summary, the words of the user that it quotes."""
    if message.role != "user":
        return ""
    content = message.content
    parts = [content] if isinstance(content, str) else [p.text for p in content or () if isinstance(p, TextPart)]
    text = "\n".join(parts)
    return text.partition(WORDS)[2] if text.startswith(SUMMARY) else text


def _latest(words: list[str], most: int) -> list[str]:
    """The last ones that fit, each of them whole."""
    at, length = len(words), 0
    while at > 0 and length + len(words[at - 1]) <= most:
        at -= 1
        length += len(words[at])
    return words if at == 0 else [LEFT_OUT, *words[at:]]
