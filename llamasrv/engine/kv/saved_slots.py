"""Slots: numbers under which clients save a finished sequence's state, and restore it later.

Keeps the timelines and passes states as bytes; their files are the HTTP side's. A restored state waits in host memory,
like any evicted prefix, for a prompt that begins with it.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv.manager import KVCacheManager
from llamasrv.engine.kv.match import SHORTEST
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import EVERYBODY
from llamasrv.errors import InvalidRequest, NotFound, Unavailable, Unsupported


class SavedSlots:
    """The last timeline of each slot. Belongs to the engine thread.

    There are as many slots as sequences may run at once. A client may also name higher numbers.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._users: Counter[int] = Counter()  # sequences per slot: clients may name one number for several
        self._free = OrderedDict.fromkeys(range(count))  # free for longest first
        self._timelines: dict[int, tuple[array[int], CacheKey]] = {}
        self._left_in: dict[int, int] = {}  # by lane: the slot whose timeline it holds

    def take(self, wanted: int | None, lane: int | None) -> int:
        """The slot for a sequence that is being seated: the one its client wants, else the one whose timeline (in
        `lane`) it continues, else the one free for longest."""
        number = self._left_in.get(-1 if lane is None else lane, -1) if wanted is None else wanted
        if wanted is None and number not in self._free:
            number = next(iter(self._free), 0)
        self._free.pop(number, None)
        self._users[number] += 1
        return number

    def release(self, number: int) -> None:
        self._users[number] -= 1
        if not self._users[number]:
            del self._users[number]
            if number < self._count:
                self._free[number] = None

    def left(self, number: int, lane: int, timeline: array[int], cache_key: CacheKey) -> None:
        self._timelines[number] = timeline, cache_key
        self._left_in[lane] = number

    def save(self, number: int, memory: KVCacheManager) -> SavedState:
        """The state of a slot, from its lane or host memory. Raises NotFound if it is gone, Unsupported for one with
        adapters, Unavailable while the slot is in use."""
        tokens, cache_key = self._timelines.get(number, (array("i"), EVERYBODY))
        if cache_key.adapters:
            raise Unsupported("A slot that used LoRA adapters cannot be saved.")
        self._refuse_busy(number)
        for lane in memory.lanes.resident:
            if (
                memory.lanes.lengths[lane] == len(tokens)
                and memory.timelines[lane].cache_key == cache_key
                and memory.timelines[lane].tokens == tokens
            ):
                return memory.checkpoints.accompany(SavedState(tokens, memory.backend.save(lane), cache_key))
        found = memory.host.exactly(tokens, cache_key)
        if found is None:
            if len(tokens):
                reason = f"its state is no longer kept; states shorter than {SHORTEST} tokens never are"
            else:
                reason = "there is nothing to save"
            raise NotFound(f"Slot {number} is empty: {reason}.")
        return memory.checkpoints.accompany(SavedState(tokens, found.data, cache_key))

    def restore(self, number: int, entry: SavedState, memory: KVCacheManager) -> None:
        if memory.backend.projector is None and min(entry.tokens) < 0:
            raise InvalidRequest(
                "Cannot restore media tokens without an mmproj: the slot contains images or audio. Start the server "
                "with --mmproj.",
                param="filename",
            )
        if entry.num_bytes > memory.host.room:
            raise InvalidRequest(
                "The state is larger than --cache-ram allows beside pinned prefixes.", param="filename"
            )
        for state in (entry, *entry.points):
            state.is_wanted = True
        memory.take_back(entry)
        self._timelines[number] = entry.tokens, entry.cache_key

    def erase(self, number: int, memory: KVCacheManager) -> int:
        """Drop the state of a slot; returns how many tokens it had."""
        self._refuse_busy(number)
        tokens, cache_key = self._timelines.pop(number, (array("i"), EVERYBODY))
        for lane in list(memory.lanes.resident):
            if memory.timelines[lane].tokens == tokens and memory.timelines[lane].cache_key == cache_key:
                memory.drop(lane)
        memory.host.drop(tokens, cache_key)
        return len(tokens)

    def _refuse_busy(self, number: int) -> None:
        if self._users[number]:
            raise Unavailable(f"Slot {number} is in use.")
