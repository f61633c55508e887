"""Slots: numbers under which clients save a finished sequence's state to a named file, and restore it later.

The engine thread keeps the timelines and passes states as bytes; the HTTP side reads and writes the files. A restored
state waits in host memory, like any evicted prefix, for a prompt that begins with it.
"""

from __future__ import annotations

import os
import re
import shutil
from array import array
from collections import Counter, OrderedDict
from pathlib import Path

from llamasrv.atomic_file import replacing
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv import state_file
from llamasrv.engine.kv.host_tier import SavedState
from llamasrv.engine.kv.manager import KVCacheManager
from llamasrv.engine.kv.prefix_index import EVERYBODY, KEY_LENGTH
from llamasrv.errors import InvalidRequest, NotFound, Unavailable, Unsupported

SPARE = 256 * 2**20  # bytes of the disk that stay free
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")


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
                and memory.cache.cache_key(lane) == cache_key
                and memory.cache.tokens(lane) == tokens
            ):
                return memory.checkpoints.accompany(SavedState(tokens, memory.backend.save(lane), cache_key))
        found = memory.host.match(tokens, len(tokens), cache_key) if len(tokens) else None
        if found is None or found[1] < len(tokens) or found[0].length != len(tokens):
            if len(tokens):
                reason = f"what it computed is no longer kept; {KEY_LENGTH} tokens are the least that is"
            else:
                reason = "there is nothing to save"
            raise NotFound(f"Slot {number} is empty: {reason}.")
        return memory.checkpoints.accompany(SavedState(tokens, found[0].data, cache_key))

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
            if memory.cache.tokens(lane) == tokens and memory.cache.cache_key(lane) == cache_key:
                memory.drop(lane)
        memory.host.drop(tokens, cache_key)
        return len(tokens)

    def _refuse_busy(self, number: int) -> None:
        if self._users[number]:
            raise Unavailable(f"Slot {number} is in use.")


class SavedSlotFiles:
    """States in the files of one folder. `facts`: what they are valid for: the model, the library."""

    def __init__(self, folder: Path, facts: dict[str, object]) -> None:
        self._folder = folder
        self._facts = state_file.as_facts(facts)

    def path(self, name: str) -> Path:
        """The file of this name. Raises InvalidRequest for names that could leave the folder or hide the file."""
        if not _NAME.match(name):
            raise InvalidRequest(
                "Invalid 'filename': expected up to 128 letters, digits, dots, dashes and underscores, no leading dot.",
                param="filename",
            )
        return self._folder / name

    def write(self, name: str, entry: SavedState) -> int:
        """Write a state, atomically replacing an older file of that name; returns the file's size."""
        path = self.path(name)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        points = [(point.length, point.data) for point in entry.points if point.length < entry.length]
        if shutil.disk_usage(self._folder).free < entry.num_bytes + sum(data.nbytes for _, data in points) + SPARE:
            raise Unavailable("The disk has no room for saved slots.")
        with replacing(path) as file:
            return state_file.write(
                file, entry.tokens, entry.data, facts=self._facts, scope=entry.cache_key.scope, points=points
            )

    def read(self, name: str) -> tuple[SavedState, int]:
        """The state and the file's size. Raises NotFound, or InvalidRequest for an unusable file."""
        try:
            with open(os.open(self.path(name), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                head = state_file.read_head(file, self._facts)
                if head.adapters:
                    raise ValueError("it was computed with adapters")
                tokens = state_file.read_tokens(file, head)
                key = CacheKey(scope=head.scope)
                state = SavedState(tokens, state_file.read_state(file, head), key)
                points = state_file.read_points(file, head)
                state.points = tuple(SavedState(tokens[:length], data, key) for length, data in points)
                return state, file.tell()
        except FileNotFoundError:
            raise NotFound(f"No saved slot is named '{name}'.", param="filename") from None
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidRequest(f"The saved slot '{name}' cannot be used: {reason}.", param="filename") from None
