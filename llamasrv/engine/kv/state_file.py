"""One format for a state in a file: of saved slots, and of the disk tier.

    MAGIC, head's length, head's check    the two as 32-bit little-endian numbers
    head                                  JSON: see `Head`
    tokens                                32-bit each
    state                                 the backend's own bytes

Everything is checked before it is believed; what is wrong is a ValueError with half a sentence. Knows no folders.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import BinaryIO

import numpy as np

MAGIC = b"llamasrv state\n"
FORMAT = 3
MOST_HEAD = 65_536  # bytes
MOST_TOKENS = 1 << 30


@dataclass(frozen=True, slots=True)
class Head:
    """`facts` tell what the state can be used for: the model, the library, the number formats."""

    facts: dict[str, object]
    scope: str
    adapters: list[tuple[str, float]]  # digest and scale of each that it was computed with
    num_tokens: int
    num_bytes: int  # of the state
    kind: str  # numpy's name for its numbers
    tokens_check: int
    state_check: int
    format: int = FORMAT


def as_facts(facts: Mapping[str, object]) -> dict[str, object]:
    """As they come back from a file."""
    result: dict[str, object] = json.loads(json.dumps(facts))
    return result


def write(
    file: BinaryIO, tokens: array[int], state: np.ndarray, *, facts: dict[str, object], scope: str = "",
    adapters: list[tuple[str, float]] | None = None,
) -> int:  # fmt: skip
    """How many bytes were written."""
    data = np.ascontiguousarray(state)
    raw, numbers = data.data.cast("B"), tokens.tobytes()
    head = json.dumps(asdict(Head(
        facts=facts, scope=scope, adapters=adapters or [], num_tokens=len(tokens), num_bytes=data.nbytes,
        kind=data.dtype.str, tokens_check=zlib.crc32(numbers), state_check=zlib.crc32(raw),
    ))).encode()  # fmt: skip
    start = MAGIC + struct.pack("<II", len(head), zlib.crc32(head)) + head + numbers
    file.write(start)
    file.write(raw)
    return len(start) + data.nbytes


def read_head(file: BinaryIO, facts: dict[str, object]) -> Head:
    """From the file's beginning. Raises ValueError for any file that is not whole and made for these facts."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("it is no saved state")
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
    if os.fstat(file.fileno()).st_size != file.tell() + 4 * head.num_tokens + head.num_bytes:
        raise ValueError("it is truncated")
    return head


def read_tokens(file: BinaryIO, head: Head) -> array[int]:
    """After the head."""
    tokens = array("i")
    tokens.frombytes(file.read(4 * head.num_tokens))
    if len(tokens) != head.num_tokens or zlib.crc32(tokens.tobytes()) != head.tokens_check:
        raise ValueError("its tokens are damaged")
    return tokens


def read_state(file: BinaryIO, head: Head) -> np.ndarray:
    """After the tokens."""
    data = np.empty(head.num_bytes, np.uint8)
    if file.readinto(data.data) != len(data) or zlib.crc32(data.data) != head.state_check:  # type: ignore[attr-defined]
        raise ValueError("its state is damaged")
    return data.view(head.kind)
