"""Why a prompt was computed again: what changed since the most similar earlier request of the same key.

    CacheBook      fingerprints of each key's latest requests, and counts of what changed between them
    CacheReport    of one request: tokens that were found in a cache, and what changed first

Bounded, kept in memory only, and never compared across keys.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import NamedTuple

from llamasrv.domain.events import Usage
from llamasrv.pipeline.fingerprint import BLOCK, Fingerprint, num_common

MOST_REQUESTS = 256  # of one key, that later ones are compared with
MOST_HASHES = 65_536  # of one key: these requests' messages and blocks together
MOST_KEYS = 1_024


class Change(NamedTuple):
    """The first part that differs: model, adapters, scope (another `cache_salt`), system, tools, template, messages;
    or evicted, where the prompt begins as before."""

    part: str
    at: int | None = None  # index of the tool or message; messages count from the first after the system prompt

    def __str__(self) -> str:
        return self.part if self.at is None else f"{self.part}[{self.at}]"


class _Request:
    """A request that later ones may be compared with."""

    __slots__ = ("fingerprint", "marks", "heads", "latest", "id", "is_computed")

    def __init__(self, fingerprint: Fingerprint, latest: _Latest) -> None:
        self.fingerprint = fingerprint
        self.marks = fingerprint.marks
        self.heads = tuple(map(hash, fingerprint.heads))
        self.latest = latest
        self.id: str | None = None  # of its reply
        self.is_computed = False

    @property
    def keys(self) -> Iterator[object]:
        """Under which it is found."""
        for mark in self.marks:
            yield mark
            for head in self.heads:
                yield head, mark

    @property
    def num_hashes(self) -> int:
        return len(self.marks) + len(self.fingerprint.blocks)


class CacheReport:
    """What is known about one request. `num_reused` returns how many tokens of its prompt were cached, or None until
    the engine has taken it up."""

    def __init__(
        self,
        num_prompt: int,
        book: CacheBook | None = None,
        request: _Request | None = None,
        before: _Request | None = None,
        *,
        was_named: bool = False,
    ) -> None:
        self.num_prompt = num_prompt
        self.was_named = was_named  # the client named the request to compare with
        self.was_found = before is not None
        self.num_reused: Callable[[], int | None] = lambda: None
        self.num_held: Callable[[], int] = lambda: 0  # tokens that were kept for its session
        self._book = book
        self._request = request
        self._changed: Change | None = None
        self._num_alike = self._num_before = 0
        if request is not None and before is not None:
            ours, theirs = request.fingerprint, before.fingerprint
            self._num_before = theirs.num_tokens
            self._num_alike = ours.tokens_alike(theirs) if before.is_computed else 0
            self._changed = _first_change(ours, theirs)

    def change(self) -> Change | None:
        """What changed first; None if nothing is known to have changed so far."""
        reused = self.num_reused()
        if reused is not None and reused >= self.num_prompt - 1:
            return None  # everything was cached: two names of a role, say, may have the same tokens
        if self._changed is not None:
            return self._changed
        # Part of a block may have been computed again, and the last token always is.
        if reused is not None and reused + BLOCK < self._num_alike:
            return Change("evicted")
        return None

    @property
    def num_missed(self) -> int:
        """About how many more tokens would have been cached if nothing had changed."""
        reused = self.num_reused()
        return max(0, min(self._num_before, self.num_prompt) - (self._num_alike if reused is None else reused))

    def answered_as(self, id: str) -> None:
        """Let later requests refer to this one by the id of its reply."""
        if self._book is not None and self._request is not None:
            self._book.name(self._request, id)

    def ended(self, usage: Usage) -> None:
        """The request has ended with this usage."""
        if self._request is None or self._book is None or usage.prompt_tokens < self.num_prompt:
            return
        self._request.is_computed = True
        change = self.change()
        if change is not None:
            self._book.changes[self._request.fingerprint.model, change.part] += 1

    def __str__(self) -> str:
        """As a structured header field: hit=120, prompt=345, changed="messages[3]"."""
        reused, change = self.num_reused(), self.change()
        parts = [] if reused is None else [f"hit={reused}"]
        parts.append(f"prompt={self.num_prompt}")
        if held := self.num_held():
            parts.append(f"held={held}")
        if change is not None:
            parts.append(f'changed="{change}"')
        return ", ".join(parts)


class CacheBook:
    """One per process. `changes` counts by model and by what changed."""

    def __init__(
        self, *, max_keys: int = MOST_KEYS, max_requests: int = MOST_REQUESTS, max_hashes: int = MOST_HASHES
    ) -> None:
        """`max_requests` and `max_hashes` are per key."""
        self._max_keys, self._max_requests, self._max_hashes = max_keys, max_requests, max_hashes
        self.changes: Counter[tuple[str, str]] = Counter()
        self._keys: OrderedDict[str, _Latest] = OrderedDict()
        self._lock = Lock()

    def compare(self, owner: str, fingerprint: Fingerprint, previous: str | None = None) -> CacheReport:
        """Compare with the request that was answered as `previous`; without that, with the same owner's request that
        it resembles most. Later requests are compared with this one, too."""
        with self._lock:
            latest = self._keys.get(owner)
            if latest is None:
                latest = self._keys[owner] = _Latest(self._max_requests, self._max_hashes)
                if len(self._keys) > self._max_keys:
                    self._keys.popitem(last=False)
            else:
                self._keys.move_to_end(owner)
            request = _Request(fingerprint, latest)
            before = latest.alike(request) if previous is None else latest.by_id.get(previous)
            latest.add(request)
        return CacheReport(fingerprint.num_tokens, self, request, before, was_named=previous is not None)

    def name(self, request: _Request, id: str) -> None:
        with self._lock:
            request.latest.name(request, id)


class _Latest:
    """The latest requests of one key."""

    def __init__(self, max_requests: int, max_hashes: int) -> None:
        self._max_requests, self._max_hashes = max_requests, max_hashes
        self.by_id: dict[str, _Request] = {}
        self._requests: OrderedDict[_Request, None] = OrderedDict()
        self._by_mark: dict[
            object, _Request
        ] = {}  # the latest request with that mark, keyed with and without its heads
        self._num_hashes = 0

    def alike(self, request: _Request) -> _Request | None:
        """The request that shares the most messages, counted from the first; else the one that shares the system
        prompt, or the first tool."""
        by_mark = self._by_mark
        for mark in reversed(request.marks):
            if mark in by_mark:
                keys = [(head, mark) for head in request.heads]
                return next((by_mark[key] for key in keys if key in by_mark), by_mark[mark])
        return None

    def add(self, request: _Request) -> None:
        self._requests[request] = None
        self._num_hashes += request.num_hashes
        self._by_mark.update(dict.fromkeys(request.keys, request))
        while len(self._requests) > self._max_requests or self._num_hashes > self._max_hashes:
            if len(self._requests) == 1:  # keep it however long it is: the next one is compared with it
                break
            self._drop(next(iter(self._requests)))

    def name(self, request: _Request, id: str) -> None:
        if request in self._requests:
            request.id = id
            self.by_id[id] = request

    def _drop(self, request: _Request) -> None:
        del self._requests[request]
        self._num_hashes -= request.num_hashes
        if request.id is not None:
            self.by_id.pop(request.id, None)
        for key in request.keys:
            if self._by_mark.get(key) is request:
                del self._by_mark[key]


def _first_change(ours: Fingerprint, theirs: Fingerprint) -> Change | None:
    for part in ("model", "build", "adapters", "scope", "system"):
        if getattr(ours, part) != getattr(theirs, part):
            return Change("model" if part == "build" else part)
    if ours.tools != theirs.tools:
        shared = zip(ours.tools, theirs.tools)
        alike = next((i for i, (a, b) in enumerate(shared) if a != b), min(len(ours.tools), len(theirs.tools)))
        return Change("tools", alike)
    if ours.template != theirs.template:
        return Change("template")
    common = num_common(ours.messages, theirs.messages)
    if common < min(len(ours.messages), len(theirs.messages)):
        return Change("messages", common)
    # The same conversation, written in another way: a template may write the time, or leave old reasoning out.
    return Change("template") if _is_rewritten(ours, theirs) else None


def _is_rewritten(ours: Fingerprint, theirs: Fingerprint) -> bool:
    """Whether the tokens differ well before the end of the shorter prompt: the last ones of each only ask for the
    answer, and need not be part of the next prompt."""
    return ours.tokens_alike(theirs) < min(ours.num_tokens, theirs.num_tokens) - 2 * BLOCK
