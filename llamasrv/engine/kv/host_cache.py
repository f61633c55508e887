"""The prefixes of a model in host memory, which outlive its engine.

An engine opens it and owns it until it ends. States made with another file, library or number format are dropped when
the next engine opens it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from llamasrv.engine.base.interface import Backend, CheckpointKind
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.kv.checkpoints import Checkpoints
from llamasrv.engine.kv.host_tier import HostTier
from llamasrv.engine.kv.tree import HolderKind, PrefixTree


class HostCache:
    """Prefixes and checkpoints, and the tree in which an engine's lanes and files are, too."""

    def __init__(self) -> None:
        self.tree = PrefixTree()
        self._make((0, 0, 0.0))
        self._made_for: object = None

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.host.used + self.checkpoints.used

    def open(
        self,
        backend: Backend,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
        seconds: Callable[[int], float] = float,
    ) -> HostCache:
        """Prepare it for an engine, whose prompts take `seconds`; drops everything that engine cannot use."""
        traits = backend.traits
        limits = (
            options.cache_bytes,
            options.checkpoint_bytes if traits.checkpoints is not CheckpointKind.NONE else 0,
            options.pin_share,
        )
        adapters = [adapter.digest for adapter in backend.adapters]
        made_for = options.digest, dict(backend.state_facts), adapters, traits, limits
        if made_for != self._made_for:
            self._made_for = made_for
            self._make(limits, can_cut=traits.can_cut_saved, whole=traits.checkpoints is CheckpointKind.WHOLE)
        self.host.pins.clock = clock
        self.host.ranking.seconds = self.checkpoints.ranking.seconds = seconds
        self.host.reserve(0)
        return self

    def take_over(self, other: HostCache) -> None:
        """Take over the states of another cache if it was made for the same model and settings; clears that one."""
        if other._made_for is not None and other._made_for == self._made_for and other is not self:
            states, points = other.host.states(), other.checkpoints.states()
            other.clear()
            for state in reversed(states):
                self.host.put(state)
            for point in reversed(points):
                self.checkpoints.put(point)
        other.clear()

    def clear(self) -> None:
        self._made_for = None
        self._make((0, 0, 0.0))

    def _make(self, limits: tuple[int, int, float], *, can_cut: bool = True, whole: bool = False) -> None:
        """Both empty. `limits`: bytes of states, of checkpoints, and the share of pins."""
        self.tree.drop_kinds(HolderKind.STATE, HolderKind.CHECKPOINT)
        self.host = HostTier(limits[0], self.tree, can_cut=can_cut, pin_share=limits[2])
        self.checkpoints = Checkpoints(limits[1], self.tree, whole=whole)
