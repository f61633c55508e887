"""Keeps special tokens in user text as plain text.

A special token in a user's text goes through the template as one stand-in, a character of the rarest Chinese block;
afterwards the token is put back, as an untrusted segment. The template cannot see it, so nothing it does to texts can
turn it into markup. Private-use characters would not do: Python's notation escapes them. Images and sounds go through
in the same way: `media.py` has put a mark in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

from llamasrv.errors import InvalidRequest

FIRST_STAND_IN = 0x30000
STAND_INS = "[\U00030000-\U00031340]"
MAX_STAND_INS = 0x1340
END = "\U0003134a"  # put at the end of the message that is being continued
MEDIA = "\U0003134b[0-9a-f]{1,64}\U0003134b"
LOOKS_SPECIAL = rf"<[^\s<>]{{1,64}}>|\[/?[A-Z][A-Z_]+\]|\]<\][^\s]{{1,32}}\[>\[|{STAND_INS}|{END}|{MEDIA}"
"""What may be a special token if the special tokens are unknown."""

Segment = Union[tuple[str, bool], int]
"""A text, and whether special tokens in it may be parsed; or the number of an image or a sound."""


def any_of(words: Iterable[str]) -> str:
    """One expression for many words, as a tree: `re` tries alternatives one after another."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _tree_expression(tree)


def _tree_expression(tree: dict[str, Any]) -> str:
    prefix = ""
    while len(tree) == 1 and "" not in tree:
        ((char, tree),) = tree.items()
        prefix += re.escape(char)
    branches = [re.escape(char) + _tree_expression(below) for char, below in tree.items() if char]
    if not branches:
        return prefix
    return f"{prefix}(?:{'|'.join(branches)}){'?' if '' in tree else ''}"


_NONE = re.compile("(?!)")


class Guarded(str):
    """Our own text, in which clients' words are already replaced; it passes unchanged."""


class Guard:
    """Replaces special tokens in one conversation, and finds them again in the rendered text."""

    def __init__(
        self, pattern: re.Pattern[str] = _NONE, visible: frozenset[str] = frozenset(), media: Sequence[str] = ()
    ) -> None:
        """`pattern`: what special tokens look like; `visible`: those that the template looks for in what an assistant
        said; `media`: the markers of images and sounds in the conversation."""
        self._media = {mark: number for number, mark in enumerate(media)}
        self.tokens: list[str] = []
        self._search = pattern.search
        self._sub = pattern.sub
        self._visible = visible

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        search = self._search
        for message in messages:
            for key, value in message.items():
                if type(value) is str:
                    if search(value) is not None and key != "role":
                        said = key == "content" and message["role"] == "assistant"
                        message[key] = self.said(value) if said else self.value(value)
                elif value is not None:
                    message[key] = self.value(value)
        return messages

    def said(self, text: str) -> str:
        """An assistant's text with stand-ins. It may contain marks that the template looks for, like `</think>`."""
        return str(text) if isinstance(text, Guarded) else self._sub(self._hide_unseen, text)

    def joined(self, texts: Sequence[str], between: str) -> str:
        """An assistant's texts joined; marked as ours if any of them is."""
        if not any(isinstance(text, Guarded) for text in texts):
            return between.join(texts)
        return Guarded(between.join(self.said(text) for text in texts))

    def value(self, value: Any) -> Any:
        """Any value with stand-ins for the special tokens in its texts."""
        if type(value) is str:
            return value if self._search(value) is None else self._sub(self._hide, value)
        if isinstance(value, Guarded):
            return str(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def _hide(self, match: re.Match[str]) -> str:
        token = match.group()
        if token not in self.tokens:
            if len(self.tokens) >= MAX_STAND_INS:
                raise InvalidRequest("The messages contain too many different special tokens.", param="messages")
            self.tokens.append(token)
        return chr(FIRST_STAND_IN + self.tokens.index(token))

    def _hide_unseen(self, match: re.Match[str]) -> str:
        return match.group() if match.group() in self._visible else self._hide(match)

    def segments(self, text: str) -> tuple[str, tuple[Segment, ...]]:
        if not self.tokens:
            return text, ((text, True),)
        segments: list[Segment] = []
        for number, piece in enumerate(re.split(f"({STAND_INS})", text)):
            if number % 2:
                segments.append(self._shown(ord(piece) - FIRST_STAND_IN))
            elif piece:
                segments.append((piece, True))
        return "".join([part[0] for part in segments if isinstance(part, tuple)]), tuple(segments)

    def _shown(self, index: int) -> Segment:
        if index >= len(self.tokens):
            return ("\ufffd", False)
        token = self.tokens[index]
        return self._media[token] if token in self._media else (token, False)
