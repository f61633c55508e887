"""The header of a GGUF file: what the model is, what it needs, and whether the file is complete.

Reads only the header, never weights, and trusts no count or length before comparing it with the file's size. Long
arrays (the vocabulary) are skipped. An unusable file raises ConfigError with one line: file and reason. Knows nothing
of llama.cpp.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from llamasrv.errors import ConfigError

MAX_ENTRIES = 1 << 16  # metadata entries
MAX_TENSORS = 1 << 20
MAX_KEY = 1 << 16  # bytes of a key
KEEP_ITEMS = 4096  # of longer arrays only type and length are kept
SETTLED = 2_000_000_000  # ns since the last change after which a file's times identify its content

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# Tensor type -> (numbers per block, bytes per block).
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


# Names of tensor types, for files without a file type.
_KINDS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4",
}  # fmt: skip


class SkippedArray(NamedTuple):
    """A long array whose items were skipped."""

    kind: int
    length: int


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # from the start of the data

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int | None:
        """Bytes in the file; None for an unknown type."""
        block = _BLOCKS.get(self.kind)
        if block is None:
            return None
        return -(-self.numbers // block[0]) * block[1]


@dataclass(frozen=True)
class Header:
    """The metadata of a GGUF file. `paths`: all files of a split model, this one first."""

    path: Path
    version: int
    size: int
    metadata: dict[str, Any] = field(repr=False)
    tensors: tuple[Tensor, ...] = field(repr=False)  # of all parts, this file's first
    paths: tuple[Path, ...] = ()
    data_start: int = 0  # file position at which the tensors' offsets start
    num_own_tensors: int = 0

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the model's architecture: `get("context_length")` reads `llama.context_length`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: int = 0) -> int:
        """Like `get` for integers; anything else counts as missing."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    @property
    def architecture(self) -> str:
        return self._text("general.architecture")

    @property
    def is_bidirectional(self) -> bool:
        """Tokens also attend to later tokens: the model can embed, but not generate."""
        return self.get("attention.causal") is False

    @property
    def only_embeds(self) -> bool:
        # llama.cpp's saver writes -1 (unspecified) as an unsigned number.
        return self.is_bidirectional or self.number("pooling_type") not in (0, 2**32 - 1)

    @property
    def name(self) -> str:
        return self._text("general.name") or self.path.stem

    @property
    def file_type(self) -> str:
        """The file's quantisation; if it has none, the type of most of its weights."""
        said = FILE_TYPES.get(self.metadata.get("general.file_type", -1), "")
        if said or not self.tensors:
            return said
        kinds: Counter[int] = Counter()
        for tensor in self.tensors:
            kinds[tensor.kind] += tensor.numbers
        return _KINDS.get(kinds.most_common(1)[0][0], "")

    @property
    def chat_template(self) -> str | None:
        return self._text("tokenizer.chat_template") or None

    @property
    def n_vocab(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.length if isinstance(tokens, SkippedArray) else len(tokens) if isinstance(tokens, list) else 0

    @property
    def num_params(self) -> int:
        return sum(tensor.numbers for tensor in self.tensors)

    def _text(self, key: str) -> str:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""


def read_header(path: Path) -> Header:
    """The validated header of a model file, with all parts of a split model."""
    first = _read_one(path)
    parts = split_parts(path, first.metadata.get("split.count", 1))
    size, tensors = first.size, first.tensors
    for part in parts[1:]:
        other = _read_one(part)
        size += other.size
        tensors += other.tensors
    if not first.architecture:
        raise ConfigError(f"{path}: not a model: its metadata lacks general.architecture")
    return dataclasses.replace(first, size=size, tensors=tensors, paths=parts)


def split_parts(path: Path, count: Any) -> tuple[Path, ...]:
    """The files of a split model; all must exist, and `path` must be the first."""
    if not isinstance(count, int) or count <= 1:
        return (path,)
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[3]) != count or count > 1000:
        raise ConfigError(f"{path}: one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf")
    if int(match[2]) != 1:
        raise ConfigError(f"{path}: part {int(match[2])} of a split model; name the first part instead")
    parts = tuple(path.with_name(f"{match[1]}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1))
    for part in parts:
        if not part.is_file():
            raise ConfigError(f"{path}: part {part.name} is missing")
    return parts


def _read_one(path: Path) -> Header:
    try:
        stat = os.stat(path)
        changed = max(stat.st_mtime_ns, stat.st_ctime_ns)
        if time.time_ns() - changed < SETTLED:  # a later change could have the same timestamp
            return _read(path)
        return _read_settled(path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


@lru_cache(maxsize=16)
def _read_settled(path: Path, identity: tuple[int, ...]) -> Header:
    """A start reads the model's header three times, and skipping 300,000 strings takes 30 ms each. The worker inherits
    the master's cache."""
    return _read(path)


def _read(path: Path) -> Header:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ConfigError(f"{path}: the file is empty")
            if size < 24:
                raise ConfigError(f"{path}: not a GGUF file: only {size} bytes")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data, size)
    except _Truncated as error:
        raise ConfigError(f"{path}: truncated: {error}") from None
    except _Invalid as error:
        raise ConfigError(f"{path}: not a valid GGUF file: {error}") from None


class _Truncated(Exception):
    """The file is shorter than announced."""


class _Invalid(Exception):
    """The file is invalid."""


def _parse(path: Path, data: mmap.mmap, size: int) -> Header:
    if data[:4] != b"GGUF":
        if data[:12] == b"version http":
            raise _Invalid("a Git LFS pointer; fetch the file itself with `git lfs pull`")
        raise _Invalid("it does not start with the magic bytes GGUF")
    (version,) = struct.unpack_from("<I", data, 4)
    if version not in (2, 3):
        raise _Invalid(
            "written for big-endian machines" if version & 0xFFFF == 0 else f"version {version} is not supported"
        )
    reader = _Reader(data, size)
    reader.at = 8
    num_tensors, num_entries = reader.count(24), reader.count(13)
    if num_tensors > MAX_TENSORS or num_entries > MAX_ENTRIES:
        raise _Invalid(f"it declares {num_tensors} tensors and {num_entries} metadata entries")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = reader.text(MAX_KEY)
        if key in metadata:
            raise _Invalid(f"duplicate metadata key {key!r}")
        metadata[key] = reader.value(reader.scalar("<I"))
    tensors = tuple(reader.tensors(num_tensors))
    start = _check_data(tensors, metadata.get("general.alignment", 32), reader.at, size)
    return Header(path, version, size, metadata, tensors, (path,), start, len(tensors))


def _check_data(tensors: tuple[Tensor, ...], alignment: Any, header_end: int, size: int) -> int:
    """The offset at which the data starts. Raises if the file does not contain all of it."""
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise _Invalid(f"alignment {alignment!r}")
    start = -(-header_end // alignment) * alignment
    for tensor in tensors:
        length = tensor.size
        if length is not None and start + tensor.offset + length > size:
            raise _Truncated(
                f"tensor {tensor.name!r} ends at byte {start + tensor.offset + length}, the file at {size}"
            )
    return start


class _Reader:
    """A position in the file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data = data
        self.size = size
        self.at = 0

    def take(self, length: int) -> int:
        """Skip `length` bytes; returns where they begin."""
        at = self.at
        if length > self.size - at:
            raise _Truncated(f"the header runs past the end of the file ({self.size} bytes)")
        self.at = at + length
        return at

    def scalar(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code)))[0]

    def count(self, least: int) -> int:
        """A number of things, each at least `least` bytes long."""
        number: int = self.scalar("<Q")
        if number * least > self.size:
            raise _Truncated(f"{number} items do not fit into {self.size} bytes")
        return number

    def text(self, longest: int | None = None) -> str:
        length = self.count(1)
        if longest is not None and length > longest:
            raise _Invalid(f"a name of {length} bytes")
        at = self.take(length)
        return self.data[at : at + length].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        code = _SCALARS.get(kind)
        if code is None:
            raise _Invalid(f"metadata of unknown type {kind}")
        return self.scalar(code)

    def _array(self) -> Any:
        kind: int = self.scalar("<I")
        code = _SCALARS.get(kind)
        if code is not None:
            width = struct.calcsize(code)
            count = self.count(width)
            at = self.take(count * width)
            if count > KEEP_ITEMS:
                return SkippedArray(kind, count)
            return list(struct.unpack_from(f"<{count}{code[1]}", self.data, at))
        if kind != _STRING:
            raise _Invalid(f"an array of type {kind}")
        count = self.count(8)
        if count <= KEEP_ITEMS:
            return [self.text() for _ in range(count)]
        self._skip_texts(count)
        return SkippedArray(kind, count)

    def _skip_texts(self, count: int) -> None:
        # The one loop that runs once for each word of the vocabulary: kept free of calls to our own methods.
        data, at, last = self.data, self.at, self.size - 8
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > last:
                raise _Truncated(f"the header runs past the end of the file ({self.size} bytes)")
            at += 8 + unpack(data, at)[0]
        if at > self.size:
            raise _Truncated(f"the header runs past the end of the file ({self.size} bytes)")
        self.at = at

    def tensors(self, count: int) -> Iterator[Tensor]:
        for _ in range(count):
            name = self.text(MAX_KEY)
            dimensions: int = self.scalar("<I")
            if dimensions > 8:
                raise _Invalid(f"tensor {name!r} has {dimensions} dimensions")
            shape = tuple(self.scalar("<Q") for _ in range(dimensions))
            yield Tensor(name, shape, self.scalar("<I"), self.scalar("<Q"))
