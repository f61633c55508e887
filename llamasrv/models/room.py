"""Which models take memory, and who has to make room for another.

Counts by estimates: `Model.memory` of all that are loaded or being loaded stays within the limit. Decides; whoever
calls it holds the lock that its owner has, and acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llamasrv.models.model import Model

ON_THEIR_WAY = ("waiting", "checking", "loading")


class Room:
    """`limit` and the estimates are bytes."""

    def __init__(self, limit: int | None, most: int | None, free_memory: Callable[[], int]) -> None:
        """`limit` None: what `free_memory` says. `most` models at once; None: as many as the memory holds."""
        self.limit = limit
        self.most = most
        self.free_memory = free_memory
        self._taken: dict[Model, int] = {}  # of what is loaded, being loaded or being unloaded

    def __iter__(self) -> Iterator[Model]:
        return iter(list(self._taken))

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def taken(self) -> int:
        return sum(self._taken.values())

    def take(self, model: Model, size: int) -> None:
        self._taken[model] = size

    def give(self, model: Model) -> None:
        self._taken.pop(model, None)

    def missing(self, need: int) -> int:
        """Bytes by which it is too much; at least one where as many are loaded as may be."""
        full = self.most is not None and len(self._taken) >= self.most
        return max(self._missing_bytes(need), 1 if full else 0)

    def _missing_bytes(self, need: int) -> int:
        if self.limit:
            return self.taken + need - self.limit
        coming = sum(size for model, size in self._taken.items() if model.phase in ON_THEIR_WAY)
        return need + coming - self.free_memory()

    def victim(self, missing: int, *, in_use: bool) -> Model | None:
        """Who has to make room: the least recently used, those that stay for ever last; with `in_use` also one that
        has work, which it may finish. None: it would be for nothing."""
        able = [m for m in self._taken if m.is_loaded and (in_use or not m.is_wanted)]
        able.sort(key=lambda m: (m.is_wanted, m.stay < 0, m.last_used))
        # As many as it takes, and of those only the ones that it takes.
        going: list[Model] = []
        for model in able:
            if self._sum(going) >= missing:
                break
            going.append(model)
        if self.limit and self._sum(going) < missing:
            return None
        for model in list(going):
            if len(going) > 1 and self._sum(going) - self._taken[model] >= missing:
                going.remove(model)
        return going[0] if going else None

    def _sum(self, models: list[Model]) -> int:
        return sum(self._taken[model] for model in models)
