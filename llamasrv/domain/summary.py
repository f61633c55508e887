"""How a model is asked to summarise a conversation that has become long, and the turn that then stands for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llamasrv.domain.request import Message, TextPart, Tool

SUMMARISE = (
    "Summarise our conversation so far for somebody who has to go on with it and sees nothing else: the goals, the"
    " decisions, the facts and file names that matter, what is done and what is left to do. Write only the summary."
)

SUMMARY = "Summary of the conversation so far:\n\n"
"""What the turn begins with that stands for all turns before it."""

WORDS = "\n\nWhat the user wrote until then, word for word:\n\n"
LEFT_OUT = "[The user's earliest words are only in the summary.]"
MOST_WORDS = 0.4
"""Of a limit: what the user's own words may take of it in a summary, or the conversation would stay as long as it
was."""

_SYSTEM = frozenset(("system", "developer"))


def head_of(messages: Sequence[Message]) -> int:
    """How many messages at the beginning are the system's. They stay, whatever is summarised."""
    at = 0
    while at < len(messages) and messages[at].role in _SYSTEM:
        at += 1
    return at


def whole_cut(messages: Sequence[Message], at: int) -> int:
    """The last place at or before `at` where the conversation can be cut: no call stands before it whose result stands
    behind it."""
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
    """Where what the model is to answer begins: the last words of the user, or the calls whose results came last."""
    at = len(messages)
    if at > 0 and messages[-1].role == "assistant":  # begun by the client
        at -= 1
    while at > 0 and messages[at - 1].role in ("user", *_SYSTEM):
        at -= 1
    if at > 0 and messages[at - 1].role == "tool":
        while at > 0 and messages[at - 1].role == "tool":
            at -= 1
    return whole_cut(messages, at)


def length_of(message: Message) -> int:
    """Its characters."""
    content = message.content
    parts = [content] if isinstance(content, str) else [p.text for p in content or () if isinstance(p, TextPart)]
    calls = (call.arguments for call in message.tool_calls)
    return sum(map(len, (*parts, message.reasoning or "", *calls)))


def summarised(messages: Sequence[Message], at: int, text: str, most_words: int) -> tuple[Message, ...]:
    """The conversation with one turn in place of its first `at` messages behind the head. `text` is their summary;
    `most_words` bounds the user's own words, in characters."""
    head = min(head_of(messages), at)
    gone = messages[head:at]
    words = _latest([words for message in gone if (words := _words_of(message))], most_words)
    turn = Message("user", SUMMARY + text + (WORDS + "\n\n".join(words) if words else ""))
    return (*messages[:head], with_tools_of(turn, gone), *messages[at:])


def with_tools_of(turn: Message, gone: Iterable[Message]) -> Message:
    """The turn, with the tools that came and went in those that it stands for: what could be called still can."""
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
    """What the user wrote. Of an earlier summary that is what it repeats of their words."""
    if message.role != "user":
        return ""
    content = message.content
    parts = [content] if isinstance(content, str) else [p.text for p in content or () if isinstance(p, TextPart)]
    text = "\n".join(parts)
    return text.partition(WORDS)[2] if text.startswith(SUMMARY) else text


def _latest(words: list[str], most: int) -> list[str]:
    """The last of them that have room, each of them whole."""
    at, length = len(words), 0
    while at > 0 and length + len(words[at - 1]) <= most:
        at -= 1
        length += len(words[at])
    return words if at == 0 else [LEFT_OUT, *words[at:]]
