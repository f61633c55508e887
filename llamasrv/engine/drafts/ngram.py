"""Drafts from existing text: the sequence's own prompt and answer, or a client's prediction.

If the last tokens of a sequence occur in that text, what follows them there may follow here. The longest match wins,
the newest among equals. A copy that was interrupted continues next to where it stopped, even right after a replaced
token. Indexing costs O(1) per token, and sequences never see each other's text. Knows no engine.
"""

from __future__ import annotations

from array import array

import numpy as np

from llamasrv.engine.drafts.acceptance import Acceptance
from llamasrv.engine.drafts.draft import Draft

ORDER = 3  # tokens of an index key
MOST_CANDIDATES = 4  # max places examined, newest first
LENGTHS = (20, 10, 6, 4, 3, 2, 1, 0)  # of matches; the kind of a guess is the first of these that it reaches
PRIORS = (0.95, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # acceptance by kind
COPIED = 6  # matching tokens required before a token that differs, for a match of length 0
_INDEXED = LENGTHS.index(ORDER)
_AT_ONCE = 64  # tokens; fewer are indexed one by one
_BITS = 20  # per token in a key
_MASK = (1 << _BITS) - 1
_MASK_KEY = (1 << ORDER * _BITS) - 1
LEAST_CHANCE = 0.02


class NgramIndex:
    """Places in a text, by the ORDER tokens before them. The text may grow at its end."""

    __slots__ = ("text", "_newest", "_before")

    def __init__(self, text: array[int]) -> None:
        self.text = text
        self._clear()

    def _clear(self) -> None:
        self._newest: dict[int, int] = {}  # place by key
        self._before: array[int] = array("i", [-1] * ORDER)  # by place: the previous one with the same key

    def places(self, tail: array[int]) -> list[int]:
        """The places preceded by the last ORDER tokens of `tail`, newest first."""
        text, before = self.text, self._before
        if len(text) < len(before) - 1:
            self._clear()  # it was cut
            before = self._before
        if len(text) >= len(before):
            self._catch_up()
        if len(tail) < ORDER:
            return []
        key = 0
        for token in tail[-ORDER:]:
            key = key << _BITS | token & _MASK
        place = self._newest.get(key, -1)
        found: list[int] = []
        while place >= 0 and len(found) < MOST_CANDIDATES:
            if place < len(text):
                found.append(place)
            place = before[place]
        return found

    def _catch_up(self) -> None:
        text, newest, before = self.text, self._newest, self._before
        start = len(before)  # the first place that is not indexed yet
        if not newest and len(text) - start >= _AT_ONCE:
            self._build()
            return
        key = 0
        for token in text[start - ORDER : start - 1]:
            key = key << _BITS | token & _MASK
        for place, token in enumerate(text[start - 1 :], start):
            key = (key << _BITS | token & _MASK) & _MASK_KEY
            before.append(newest.get(key, -1))
            newest[key] = place

    def _build(self) -> None:
        """Index the whole text with numpy, ten times as fast."""
        tokens = np.array(self.text, np.int64) & _MASK
        size = len(tokens) - ORDER + 1
        keys = np.zeros(size, np.int64)
        for i in range(ORDER):
            keys = keys << _BITS | tokens[i : i + size]
        places = np.arange(ORDER, ORDER + size, dtype=np.int32)
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
        before = np.full(size, -1, np.int32)
        before[order[again + 1]] = places[order[again]]
        self._newest = dict(zip(keys.tolist(), places.tolist()))
        self._before.extend(before.tolist())


class Lookup:
    """A source for one sequence: proposes what followed elsewhere in a text."""

    __slots__ = ("source", "_index", "_at", "_when")

    def __init__(self, source: str, text: array[int], length: int) -> None:
        """`length`: the timeline's length at the text's beginning."""
        self.source = source
        self._index = NgramIndex(text)
        self._at, self._when = 0, length  # the last match: a place in the text, and the timeline's length then

    def propose(self, tokens: array[int], most: int, acceptance: Acceptance) -> Draft | None:
        """At most `most` tokens that may follow this timeline."""
        tail = tokens[-LENGTHS[0] :]
        text = self._index.text
        going_on = self._at + len(tokens) - self._when
        best, at = len(LENGTHS), -1
        if 0 < going_on < len(text):
            best, at = _kind(text, going_on, tail, best, len(LENGTHS)), going_on
        for place in self._index.places(tail):
            kind = _kind(text, place, tail, min(best, _INDEXED), _INDEXED)
            if kind < best:
                best, at = kind, place
        if best == len(LENGTHS):
            return None
        self._at, self._when = at, len(tokens)
        return self._draft(text[at : at + most], LENGTHS[best], acceptance)

    def _draft(self, tokens: array[int], length: int, acceptance: Acceptance) -> Draft | None:
        kinds, chances, chance = [], [], 1.0
        kind = LENGTHS.index(length)
        for i, token in enumerate(tokens):
            if kind and length + i >= LENGTHS[kind - 1]:
                kind -= 1
            chance *= acceptance.chance(self.source, kind, PRIORS[kind])
            if token < 0 or chance < LEAST_CHANCE:  # negative: a pseudo-token of media
                break
            kinds.append(kind)
            chances.append(chance)
        return Draft(self.source, list(tokens[: len(kinds)]), kinds, chances) if kinds else None


def _kind(text: array[int], place: int, tail: array[int], below: int, otherwise: int) -> int:
    """The kind of the longest match before a place, if better (lower) than `below`; else `otherwise`."""
    for kind in range(below):
        length = LENGTHS[kind]
        if not length:
            copied = text[place - 1 - COPIED : place - 1] if place > COPIED else None
            return kind if copied == tail[-1 - COPIED : -1] else otherwise
        if length <= place and length <= len(tail) and text[place - length : place] == tail[-length:]:
            return kind
    return otherwise
