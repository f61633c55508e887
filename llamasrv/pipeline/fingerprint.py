"""Keyed hashes of a prompt's parts: enough to tell which part changed, and nothing else.

The key is drawn when the process starts and never leaves it, so a hash reveals nothing to others. Hashes of messages
and of blocks of tokens are chained: each covers all those before it.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.request import ChatPrompt, Message, ToolChoice
from llamasrv.domain.sequence_spec import CacheKey

BLOCK = 64
"""Tokens per hash: the resolution at which common beginnings of two prompts are measured."""

_KEY = secrets.token_bytes(32)
_SIZE = 8
_SYSTEM = frozenset(("system", "developer"))


class Fingerprint(NamedTuple):
    """The fingerprint of one chat. A part that the chat lacks is empty."""

    model: str
    build: str  # of the model's file, as it is loaded
    adapters: tuple[tuple[int, float], ...]
    scope: bytes  # who shares its prefixes
    system: bytes  # the leading system messages
    tools: tuple[bytes, ...]
    template: bytes  # the template's other arguments
    messages: tuple[bytes, ...]  # those after the system messages
    blocks: tuple[bytes, ...]  # of the prompt's tokens
    num_tokens: int

    @property
    def heads(self) -> tuple[tuple[object, ...], ...]:
        """Everything but the messages, then what its prefix must have in common with another one to be shared."""
        return self[:7], self[:4]

    @property
    def marks(self) -> list[bytes]:
        """The parts that another request may share with it, largest part last."""
        marks = list(self.messages)
        if self.system:
            marks.insert(0, b"s" + self.system)
        if self.tools:
            marks.insert(0, b"t" + self.tools[0])
        return marks

    def tokens_alike(self, other: Fingerprint) -> int:
        """Length of the common beginning in tokens, in whole blocks."""
        return BLOCK * num_common(self.blocks, other.blocks)


def fingerprint_of(
    prompt: ChatPrompt, tokens: Sequence[int], *, model: str, build: str, cache_key: CacheKey, choice: ToolChoice
) -> Fingerprint:
    messages = prompt.messages
    head = 0
    while head < len(messages) and messages[head].role in _SYSTEM:
        head += 1
    tools = prompt.tools if choice.mode != "none" else ()
    options = (prompt.template_kwargs, prompt.thinks_by_default)
    return Fingerprint(
        model,
        build,
        cache_key.adapters,
        _hash(cache_key.scope.encode()),
        _hash(b"".join(map(_bytes, messages[:head]))) if head else b"",
        tuple([_hash(_bytes(tool)) for tool in tools]),
        _hash(_bytes(options)),
        tuple(_chain(map(_bytes, messages[head:]), prompt.before)),
        tuple(_blocks(tokens)),
        len(tokens),
    )


def conversation_keys(messages: Iterable[Message], *about: str) -> list[bytes]:
    """A key for the conversation up to each message; `about` distinguishes conversations with equal messages."""
    return list(_chain(map(_bytes, messages), tuple("\0".join(about).encode("utf-8", "surrogatepass"))))


def num_common(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """How many hashes two chains have in common, from their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[middle - 1] == b[middle - 1] else (low, middle - 1)
    return low


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=_SIZE, key=_KEY).digest()


def _chain(pieces: Iterable[bytes], before: tuple[int, ...] = ()) -> Iterable[bytes]:
    hasher = blake2b(array("i", before).tobytes(), digest_size=_SIZE, key=_KEY)
    for piece in pieces:
        hasher.update(piece)
        yield hasher.digest()


def _blocks(tokens: Sequence[int]) -> Iterable[bytes]:
    """The hashes of whole blocks only."""
    data = array("i", tokens).tobytes()
    size = BLOCK * array("i").itemsize
    return _chain(data[start : start + size] for start in range(0, len(data) - size + 1, size))


def _bytes(value: Any) -> bytes:
    """Bytes that differ for different values."""
    if type(value) is Message and type(value.content) is str and not _has_more(value):
        try:
            return f"{value.role}\0{value.name}\0{value.tool_call_id}\0{value.content}\0".encode()
        except UnicodeEncodeError:
            pass
    try:
        return orjson.dumps(value, default=_of_bytes)
    except orjson.JSONEncodeError:  # half a surrogate pair, or nested too deeply
        return repr(value).encode("utf-8", "surrogatepass")


def _has_more(message: Message) -> bool:
    return bool(message.tool_calls or message.reasoning or message.added_tools or message.removed_tools)


def _of_bytes(value: Any) -> Any:
    """The bytes of a picture or a sound, and of other values that JSON cannot express."""
    return _hash(value).hex() if isinstance(value, bytes) else repr(value)
