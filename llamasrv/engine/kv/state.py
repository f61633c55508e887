"""A state of KV: a prefix with the back end's bytes, in memory and in files.

    MAGIC, head's length, head's check    the two as 32-bit little-endian numbers
    head                                  JSON: see `Head`
    tokens                                32-bit each
    state                                 the backend's own bytes
    points                                states of prefixes of these tokens, one after another

Saved slots and the disk tier share the format. Everything read is validated; errors are ValueErrors that complete the
sentence "the file cannot be used: ...". Knows no folders, no lanes and no library.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BufferedIOBase
from typing import BinaryIO

import numpy as np

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import LaneState
from llamasrv.engine.kv.tree import EVERYBODY, Holder, HolderKind

MAGIC = b"llamasrv state\n"
FORMAT = 4
MOST_HEAD = 65_536  # bytes
MOST_TOKENS = 1 << 30


ENTRY_BYTES = 1500  # overhead of a state beside its bytes and tokens, the tree's included; measured
TOKEN_BYTES = 8  # per token: the tree has a copy of those that no other state shares


def num_bytes(size: int, length: int) -> int:
    """Memory of a state of `length` tokens whose copy has `size` bytes."""
    return size + TOKEN_BYTES * length + ENTRY_BYTES


class SavedState(Holder):
    """`data` are the back end's own bytes. `origin`: the tier that it came from. `points`: checkpoints before its end,
    on the way from or to a file. `is_wanted`: restored by name: use it even if computing it again would be cheaper."""

    __slots__ = ("data", "origin", "points", "is_wanted")

    def __init__(
        self,
        tokens: array[int],
        data: LaneState,
        cache_key: CacheKey = EVERYBODY,
        *,
        origin: str = "host",
        kind: HolderKind = HolderKind.STATE,
    ) -> None:
        super().__init__(kind, tokens, cache_key)
        self.data = data
        self.origin = origin
        self.is_wanted = False
        self.points: Sequence[SavedState] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of host memory, including overhead, which matters for many small states."""
        return num_bytes(self.data.nbytes, self.length)


def checkpoint(tokens: array[int], data: LaneState, cache_key: CacheKey) -> SavedState:
    """The state after exactly these tokens, of memory that cannot be cut there."""
    return SavedState(tokens, data, cache_key, origin="checkpoint", kind=HolderKind.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Head:
    """`facts`: what the state is valid for: the model, the library, the number formats."""

    facts: dict[str, object]
    scope: str
    adapters: list[tuple[str, float]]  # digest and scale of each adapter it was computed with
    num_tokens: int
    num_bytes: int  # size of the state
    kind: str  # its numpy dtype
    tokens_check: int
    state_check: int
    points: list[tuple[int, int, int, str]]  # tokens, bytes, check and kind of each
    format: int = FORMAT


def as_facts(facts: Mapping[str, object]) -> dict[str, object]:
    """The facts as JSON returns them, so that they compare equal with those of a file."""
    result: dict[str, object] = json.loads(json.dumps(facts))
    return result


def write(
    file: BinaryIO, state: SavedState, *, facts: dict[str, object], adapters: Sequence[tuple[str, float]] = ()
) -> int:
    """Write a state and its checkpoints; returns the number of bytes. `adapters`: digest and scale of each adapter that
    it was computed with."""
    numbers = state.tokens.tobytes()
    parts = [np.ascontiguousarray(one.data) for one in (state, *state.points)]
    checks = [zlib.crc32(part.data.cast("B")) for part in parts]
    head = json.dumps(
        asdict(
            Head(
                facts=facts,
                scope=state.cache_key.scope,
                adapters=list(adapters),
                num_tokens=state.length,
                num_bytes=parts[0].nbytes,
                kind=parts[0].dtype.str,
                tokens_check=zlib.crc32(numbers),
                state_check=checks[0],
                points=[
                    (point.length, part.nbytes, check, part.dtype.str)
                    for point, part, check in zip(state.points, parts[1:], checks[1:])
                ],
            )
        )
    ).encode()
    start = MAGIC + struct.pack("<II", len(head), zlib.crc32(head)) + head + numbers
    file.write(start)
    for part in parts:
        file.write(part.data.cast("B"))
    return len(start) + sum(part.nbytes for part in parts)


def read_head(file: BinaryIO, facts: dict[str, object]) -> Head:
    """Read the head, from the file's start. Raises ValueError for a damaged file or one made for other facts."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("it is not a saved state")
    length, check = struct.unpack("<II", file.read(8).ljust(8, b"\0"))
    if length > MOST_HEAD:
        raise ValueError("its header is too long")
    text = file.read(length)
    if zlib.crc32(text) != check:
        raise ValueError("its header is damaged")
    try:
        head = Head(**json.loads(text))
    except TypeError:
        raise ValueError("it was written by another version") from None
    if head.format != FORMAT:
        raise ValueError("it was written by another version")
    if head.facts != facts:
        raise ValueError("it was saved with another model or another build of llama.cpp")
    if not 0 < head.num_tokens < MOST_TOKENS or head.num_bytes <= 0:
        raise ValueError("its sizes are inconsistent")
    if not all(0 < length < head.num_tokens and size > 0 for length, size, _, _ in head.points):
        raise ValueError("its sizes are inconsistent")
    rest = 4 * head.num_tokens + head.num_bytes + sum(size for _, size, _, _ in head.points)
    if os.fstat(file.fileno()).st_size != file.tell() + rest:
        raise ValueError("it is truncated")
    return head


def read_tokens(file: BinaryIO, head: Head) -> array[int]:
    """Read the tokens, right after the head. Raises ValueError."""
    tokens = array("i")
    tokens.frombytes(file.read(4 * head.num_tokens))
    if len(tokens) != head.num_tokens or zlib.crc32(tokens.tobytes()) != head.tokens_check:
        raise ValueError("its tokens are damaged")
    return tokens


def read_state(file: BufferedIOBase, head: Head, tokens: array[int], cache_key: CacheKey) -> SavedState:
    """Read the state and its checkpoints, right after the tokens. Raises ValueError."""
    state = SavedState(tokens, _read_bytes(file, head.num_bytes, head.state_check, head.kind), cache_key)
    state.points = tuple(
        checkpoint(tokens[:length], _read_bytes(file, size, check, kind), cache_key)
        for length, size, check, kind in head.points
    )
    return state


def _read_bytes(file: BufferedIOBase, size: int, check: int, kind: str) -> LaneState:
    data = np.empty(size, np.uint8)
    if file.readinto(data.data) != len(data) or zlib.crc32(data.data) != check:
        raise ValueError("its state is damaged")
    return data.view(kind)
