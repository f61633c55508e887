"""The file format of saved states, shared by saved slots and the disk tier.

    MAGIC, head's length, head's check    the two as 32-bit little-endian numbers
    head                                  JSON: see `Head`
    tokens                                32-bit each
    state                                 the backend's own bytes
    points                                states of prefixes of these tokens, one after another

Everything read is validated; errors are ValueErrors that complete the sentence "the file cannot be used: ...". Knows no
folders.
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

from llamasrv.engine.base.arrays import LaneState

MAGIC = b"llamasrv state\n"
FORMAT = 4
MOST_HEAD = 65_536  # bytes
MOST_TOKENS = 1 << 30


@dataclass(frozen=True, slots=True)
class Head:
    """`facts`: what the state is valid for: the model, the library, the number formats."""

    facts: dict[str, object]
    scope: str
    adapters: list[tuple[str, float]]  # digest and scale of each adapter it was computed with
    num_tokens: int
    num_bytes: int  # of the state
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
    file: BinaryIO,
    tokens: array[int],
    state: LaneState,
    *,
    facts: dict[str, object],
    scope: str = "",
    adapters: list[tuple[str, float]] | None = None,
    points: Sequence[tuple[int, LaneState]] = (),
) -> int:
    """Returns the number of bytes written. `points`: (length of the prefix, state) of each checkpoint."""
    data = np.ascontiguousarray(state)
    raw, numbers = data.data.cast("B"), tokens.tobytes()
    others = [(length, np.ascontiguousarray(point)) for length, point in points]
    head = json.dumps(
        asdict(
            Head(
                facts=facts,
                scope=scope,
                adapters=adapters or [],
                num_tokens=len(tokens),
                num_bytes=data.nbytes,
                kind=data.dtype.str,
                tokens_check=zlib.crc32(numbers),
                state_check=zlib.crc32(raw),
                points=[(length, o.nbytes, zlib.crc32(o.data.cast("B")), o.dtype.str) for length, o in others],
            )
        )
    ).encode()
    start = MAGIC + struct.pack("<II", len(head), zlib.crc32(head)) + head + numbers
    file.write(start)
    file.write(raw)
    for _, point in others:
        file.write(point.data.cast("B"))
    return len(start) + data.nbytes + sum(point.nbytes for _, point in others)


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


def read_state(file: BufferedIOBase, head: Head) -> LaneState:
    """Read the state, right after the tokens. Raises ValueError."""
    return _read_bytes(file, head.num_bytes, head.state_check, head.kind)


def read_points(file: BufferedIOBase, head: Head) -> list[tuple[int, LaneState]]:
    """Read the checkpoints, right after the state. Raises ValueError."""
    return [(length, _read_bytes(file, size, check, kind)) for length, size, check, kind in head.points]


def _read_bytes(file: BufferedIOBase, size: int, check: int, kind: str) -> LaneState:
    data = np.empty(size, np.uint8)
    if file.readinto(data.data) != len(data) or zlib.crc32(data.data) != check:
        raise ValueError("its state is damaged")
    return data.view(kind)
