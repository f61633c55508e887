"""Sessions: the last prefix of a conversation is kept while its client runs a tool.

A hold costs nothing as long as the prefix is in KV. When its lane must go, the state moves to host memory as a pin, for
the rest of the hold's time and within its owner's share. A hold ends when its session goes on from it, when the session
is closed, or with its time. Where there is a disk, a session's last prefix is remembered beyond that: once the session
speaks again, its file is read before its prompt is there. Belongs to the engine thread.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator

from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.kv.host_tier import HostTier
from llamasrv.engine.kv.match import SHORTEST
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.timelines import LaneTimeline
from llamasrv.engine.kv.tree import Holder, HolderKind, PrefixTree

MOST_HOLDS = 64  # max holds of one owner; the oldest ends first
MOST_TOKENS = 4 << 20  # max tokens in the last prefixes of all sessions, 4 bytes each


class Hold(Holder):
    """A prefix that a session will go on from; it has no KV of its own. `state`: the one that was pinned for it."""

    __slots__ = ("session", "owner", "until", "state")

    def __init__(self, tokens: array[int], cache_key: CacheKey, *, session: str, owner: str, until: float) -> None:
        super().__init__(HolderKind.HOLD, tokens, cache_key)
        self.session, self.owner, self.until = session, owner, until
        self.state: SavedState | None = None


class Sessions:
    """The holds of one context."""

    def __init__(
        self,
        host: HostTier,
        tree: PrefixTree,
        backend: Backend,
        *,
        most: int = MOST_HOLDS,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self._host, self._tree, self._backend = host, tree, backend
        self._most, self._most_tokens = most, most_tokens
        self._last: OrderedDict[tuple[str, str], tuple[array[int], CacheKey]] = OrderedDict()  # by owner and session
        self._num_tokens = 0  # tokens in `_last`
        self._holds: dict[str, list[Hold]] = {}  # by owner, oldest first
        tree.drop_kinds(HolderKind.HOLD)

    def hold(self, session: str, owner: str, tokens: array[int], cache_key: CacheKey, seconds: float) -> None:
        """Keep what is in a cache of this prefix, until the session goes on."""
        if not self._host.pins.limit or self._backend.traits.split or len(tokens) < SHORTEST or seconds <= 0:
            return
        self._drop_expired()
        holds = self._holds.setdefault(owner, [])
        for other in [one for one in holds if one.session == session and one.tokens == tokens]:
            self._end(other)
        hold = Hold(tokens, cache_key, session=session, owner=owner, until=self._host.pins.clock() + seconds)
        self._tree.put(hold)
        holds = self._holds.setdefault(owner, [])
        holds.append(hold)
        while len(holds) > self._most:
            self._end(holds[0])
        if self._covering(hold, HolderKind.LANE) is None:  # it was evicted before its reply was read
            self._pin_state(hold)

    def remember(self, session: str, owner: str, tokens: array[int], cache_key: CacheKey) -> None:
        """This is the session's last prefix. Beyond the limit the oldest are dropped."""
        self._drop_last(session, owner)
        self._last[owner, session] = tokens, cache_key
        self._num_tokens += len(tokens)
        while self._num_tokens > self._most_tokens:
            other, name = next(iter(self._last))
            self._drop_last(name, other)

    def last(self, session: str, owner: str) -> tuple[array[int], CacheKey] | None:
        """The session's last prefix, if it is remembered."""
        return self._last.get((owner, session))

    def _drop_last(self, session: str, owner: str) -> None:
        last = self._last.pop((owner, session), None)
        if last is not None:
            self._num_tokens -= len(last[0])

    def go_on(self, spec: SequenceSpec, tokens: array[int]) -> int:
        """A session speaks: end its holds that this prompt begins with. Returns the length of the longest."""
        found = [hold for hold in self._along(tokens, len(tokens), spec.cache_key) if hold.session == spec.session]
        for hold in found:
            self._end(hold)
        return max((hold.length for hold in found), default=0)

    def close(self, session: str, owner: str) -> int:
        """End all holds of a session; returns how many there were."""
        self._drop_last(session, owner)
        self._drop_expired()
        found = [hold for hold in self._holds.get(owner, ()) if hold.session == session]
        for hold in found:
            self._end(hold)
        return len(found)

    def save_held(self, timeline: LaneTimeline, length: int, left: int = 0) -> None:
        """A lane with `length` tokens is about to keep only the first `left` of them: save what is held."""
        if not self._holds:
            return
        self._drop_expired()
        state: SavedState | None = None
        for hold in self._along(timeline.tokens, length, timeline.cache_key):
            if hold.length <= left or self._covering(hold, HolderKind.LANE, timeline) or self._pin_state(hold):
                continue
            if state is None:
                if self._backend.saved_size(timeline.lane) > self._host.pins.limit:
                    return
                state = SavedState(timeline.tokens[:length], self._backend.save(timeline.lane), timeline.cache_key)
            self._pin(hold, state)

    def standing(self) -> int:
        """How many holds there are."""
        self._drop_expired()
        return sum(map(len, self._holds.values()))

    def _along(self, tokens: array[int], length: int, cache_key: CacheKey) -> Iterator[Hold]:
        """The holds that these tokens begin with, longest first."""
        if self._holds:
            for hold in list(self._tree.walk(tokens, length, cache_key).ending(HolderKind.HOLD)):
                assert isinstance(hold, Hold)
                yield hold

    def _covering(self, hold: Hold, kind: HolderKind, but: Holder | None = None) -> Holder | None:
        path = self._tree.walk(hold.tokens, hold.length, hold.cache_key)
        shared = ((holder, length) for holder, length in path.sharing(kind) if holder is not but)
        return next((holder for holder, length in shared if length == hold.length), None)

    def _pin_state(self, hold: Hold) -> bool:
        """Pin a state in host memory that has the prefix; False if there is none."""
        state = self._covering(hold, HolderKind.STATE)
        if not isinstance(state, SavedState):
            return False
        self._pin(hold, state)
        return True

    def _pin(self, hold: Hold, state: SavedState) -> None:
        pins = self._host.pins
        seconds = hold.until - pins.clock()
        if pins.keeps(state):
            pins.prolong(state, seconds)
            ours = any(other.state is state for holds in self._holds.values() for other in holds)
            hold.state = state if ours else None
        elif self._host.pin(
            state.tokens, state.cache_key, hold.owner, seconds, size=state.num_bytes, make=lambda: state
        ):
            hold.state = state

    def _drop_expired(self) -> None:
        now = self._host.pins.clock()
        for holds in list(self._holds.values()):
            for hold in [hold for hold in holds if hold.until <= now]:
                self._end(hold)

    def _end(self, hold: Hold) -> None:
        holds = self._holds[hold.owner]
        holds.remove(hold)
        if not holds:
            del self._holds[hold.owner]
        self._tree.drop(hold)
        state = hold.state
        if state is not None and not any(one.state is state for others in self._holds.values() for one in others):
            self._host.pins.release(state)
