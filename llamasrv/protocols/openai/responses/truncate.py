"""A conversation without its oldest turns, for those that no longer fit.

What the system says first stays, and so does the last turn; a call goes together with its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llamasrv.domain.request import ChatPrompt, Message

_SYSTEM = frozenset(("system", "developer"))


def shortened(prompt: ChatPrompt, fits: Callable[[ChatPrompt], bool]) -> ChatPrompt:
    """The prompt with as few turns left out as it takes to fit, or with all that may be. Asks a few times."""
    if fits(prompt):
        return prompt
    head, groups = _groups(prompt.messages)

    def without(count: int) -> ChatPrompt:
        return replace(prompt, messages=(*head, *(message for group in groups[count:] for message in group)))

    low, high = 0, max(0, len(groups) - 1)  # leaving `low` out is too little; `high` may or may not be enough
    while high - low > 1:
        middle = (low + high) // 2
        if fits(without(middle)):
            high = middle
        else:
            low = middle
    return without(high)


def _groups(messages: tuple[Message, ...]) -> tuple[list[Message], list[list[Message]]]:
    """What the system says first, and the rest in pieces that are left out whole."""
    start = 0
    while start < len(messages) and messages[start].role in _SYSTEM:
        start += 1
    groups: list[list[Message]] = []
    for message in messages[start:]:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return list(messages[:start]), groups
