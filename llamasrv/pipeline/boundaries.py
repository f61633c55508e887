"""Message boundaries in a prompt, where other prompts may diverge. The engine, which knows no chat, gets the
positions."""

from __future__ import annotations

from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Message, Pin, Prompt
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.errors import InvalidRequest

TOGETHER = 8  # tokens: marks so close to each other end one message and begin the next


def message_marks(template: ChatTemplate, vocab: Vocabulary) -> frozenset[int]:
    """The control tokens that a template writes around messages, found by rendering a plain conversation."""
    turns = (Message("user", "Hello there"), Message("assistant", "Hello"), Message("user", "Thanks"))
    for messages in ((Message("system", "Be kind"), *turns), turns, turns[:1]):
        try:
            text = template.render(ChatPrompt(messages)).text
        except InvalidRequest:
            continue
        return frozenset(token for token in vocab.tokenize(text) if vocab.is_control(token) and token != vocab.bos)
    return frozenset()


def boundaries(tokens: list[int], marks: frozenset[int]) -> tuple[int, ...]:
    """Positions where a message ends and the next begins, ascending."""
    found: list[int] = []
    last = -TOGETHER
    for at, token in enumerate(tokens):
        if token in marks:
            if at - last > TOGETHER:
                found.append(at)
            last = at
    return tuple(found)


def pinned(
    pins: tuple[Pin, ...], prompt: Prompt, num_tokens: int, found: tuple[int, ...]
) -> tuple[tuple[int, float], ...]:
    """The prefix lengths to keep, each with its time. Messages are counted from the end of the boundaries in `found`:
    there, none are merged, as a system prompt and tools are. Boundaries between short messages are missing, so a pin
    may be shorter than asked; the first boundary is pinned if too few are left."""
    open_end = isinstance(prompt, ChatPrompt) and prompt.continue_final_message
    ends = (*found, num_tokens) if open_end or not found else found
    return tuple(
        (ends[max(0, len(ends) - 1 - pin.num_after)], pin.seconds) for pin in pins if found or pin.num_after < len(ends)
    )
