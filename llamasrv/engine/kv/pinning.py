"""Pins what requests ask for: saves a sequence's state at each pin's position. Belongs to the engine thread."""

from __future__ import annotations

from bisect import insort

from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.host_tier import HostTier
from llamasrv.engine.kv.match import SHORTEST
from llamasrv.engine.kv.state import SavedState, num_bytes


class Pinning:
    """One per context."""

    def __init__(self, host: HostTier, backend: Backend, metrics: EngineMetrics) -> None:
        self._host = host
        self._backend = backend
        self._metrics = metrics

    def begin(self, seq: Sequence, lane: int, start: int) -> None:
        """A sequence starts with `start` tokens in its lane: pin those among them now, or prolong existing pins, and
        schedule stops for later ones."""
        pins = self._host.pins
        if not pins.limit or self._backend.traits.split or not seq.spec.cache_prompt:
            return
        for at, seconds in self._places(seq):
            there = self._host.exactly(seq.tokens[:at], seq.spec.cache_key)
            if there is not None and pins.keeps(there):
                pins.prolong(there, seconds)
            elif at > start:
                if at not in seq.checkpoints:
                    insort(seq.checkpoints, at)
            else:
                self._pin(seq, lane, start, seconds)  # the shortest state available that contains it

    def take(self, seq: Sequence, lane: int) -> None:
        """After a step: pin the state if the sequence has reached a pin's position."""
        at = seq.num_computed
        for place, seconds in self._places(seq):
            if place == at and self._pin(seq, lane, at, seconds):
                counted = seq.reused + sum(count for _, count in seq.pinned)
                seq.pinned.append((seconds, max(0, at - counted)))

    def _places(self, seq: Sequence) -> list[tuple[int, float]]:
        """(length, seconds) of each pin, ascending. If saved states can be cut, a pin covers shorter ones that expire
        no later."""
        found = []
        for at, seconds in seq.spec.pins:
            at = min(at, seq.num_prompt) if seq.media is None else seq.media.cut(min(at, seq.num_prompt))
            if at >= SHORTEST:
                found.append((at, seconds))
        if self._backend.traits.can_cut_saved:
            found = [one for one in found if not any(o != one and o[0] >= one[0] and o[1] >= one[1] for o in found)]
        return sorted(set(found))

    def _pin(self, seq: Sequence, lane: int, length: int, seconds: float) -> bool:
        tokens, key = seq.tokens[:length], seq.spec.cache_key
        is_pinned = self._host.pin(
            tokens,
            key,
            seq.spec.owner,
            seconds,
            size=num_bytes(self._backend.saved_size(lane), length),
            make=lambda: SavedState(tokens, self._backend.save(lane), key),
        )
        self._metrics.pins += is_pinned
        return is_pinned
