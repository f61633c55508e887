"""The limit on cached prefixes of unloaded models, in total. Called without locks."""

from __future__ import annotations

from llamasrv.models.model import Model


class PrefixLimit:
    """All unloaded models together keep at most what the latest of them may keep: evicts the prefixes of those unloaded
    longest ago."""

    def __init__(self) -> None:
        self._kept: list[Model] = []  # unloaded models with prefixes, latest last

    def unloaded(self, latest: Model) -> None:
        self._kept = [model for model in self._kept if model is not latest and model.current is None] + [latest]
        options = latest.load_plan.options if latest.load_plan is not None else None
        most = options.cache_bytes + options.checkpoint_bytes if options is not None else 0
        for model in self._kept[:-1]:
            if sum(kept.prefixes.used for kept in self._kept) > most and model.current is None and not model.phase:
                model.prefixes.clear()
