"""The prefix tree: which timelines are kept, and by whom. One tree per cache key.

    root ── "system prompt " ──┬── "question one" ── "answer"     a lane, growing
                               └── "question two"                 a state in host memory, a file

A node is a run of tokens; a holder keeps the KV of the path from the root to the end of its node. Tokens are compared,
never hashes alone, and only within one cache key: the same tokens have different KV with different adapters, and across
scopes a quicker answer would reveal what another client has sent. A walk costs the length of the prompt, never the
number of holders. Decides nothing: knows neither values, nor sizes, nor who is evicted.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import common_prefix

EVERYBODY = CacheKey()


class HolderKind(IntEnum):
    LANE = 0  # KV of a running or resident sequence; its timeline may grow
    STATE = 1  # in host memory
    CHECKPOINT = 2  # in host memory: serves exactly the path to its node
    FILE = 3
    FILE_CHECKPOINT = 4  # a checkpoint inside a file
    HOLD = 5  # keeps nothing itself: a session will go on from here


class Holder:
    """Something that keeps the KV of a timeline. `tokens` may grow at its end while it is in the tree: the tree follows
    when a walk comes by."""

    __slots__ = ("kind", "tokens", "cache_key", "node")

    def __init__(self, kind: HolderKind, tokens: array[int], cache_key: CacheKey = EVERYBODY) -> None:
        self.kind = kind
        self.tokens = tokens
        self.cache_key = cache_key
        self.node: PrefixNode | None = None  # while it is in a tree

    @property
    def length(self) -> int:
        return len(self.tokens)


class PrefixNode:
    """The tokens [end - len(run), end) of every timeline that passes here."""

    __slots__ = ("parent", "run", "end", "children", "holders", "below")

    def __init__(self, parent: PrefixNode | None, run: array[int]) -> None:
        self.parent = parent
        self.run = run
        self.end: int = len(run) + (0 if parent is None else parent.end)
        self.children: dict[int, PrefixNode] = {}  # children by their first token
        self.holders: list[Holder] = []  # those whose timelines end here
        # By kind: those whose timelines end here or in a descendant, oldest first.
        self.below: defaultdict[HolderKind, dict[Holder, None]] = defaultdict(dict)

    def own(self, kind: HolderKind) -> Iterator[Holder]:
        return (holder for holder in self.holders if holder.kind is kind)


class PrefixPath:
    """What the tree knows of a timeline: the nodes on its way, from the root on, and the number of tokens they share
    with it. All but the last are shared whole."""

    __slots__ = ("nodes", "length")

    def __init__(self, nodes: list[PrefixNode], length: int) -> None:
        self.nodes = nodes
        self.length = length

    def may_have(self, kind: HolderKind) -> bool:
        """Whether any holder of this kind shares a token."""
        return bool(self.nodes and self.nodes[0].below.get(kind))

    def common(self, *kinds: HolderKind) -> int:
        """The longest prefix that any holder of these kinds shares, usable or not."""
        shared = (node.end for node in reversed(self.nodes) if any(node.below.get(kind) for kind in kinds))
        return min(next(shared, 0), self.length)

    def ending(self, kind: HolderKind) -> Iterator[Holder]:
        """Holders whose whole timelines lie on the path, longest first."""
        for node in reversed(self.nodes if self.may_have(kind) else []):
            if node.end <= self.length:
                yield from node.own(kind)

    def sharing(self, kind: HolderKind) -> Iterator[tuple[Holder, int]]:
        """(holder, length they share) of all holders, those that share most first; within a node the newest first."""
        seen: set[Holder] = set()
        for node in reversed(self.nodes):
            for holder in reversed(node.below.get(kind, {})):
                if holder not in seen:
                    seen.add(holder)
                    yield holder, min(node.end, self.length)


class PrefixTree:
    """Belongs to the engine thread."""

    def __init__(self) -> None:
        self._roots: dict[CacheKey, PrefixNode] = {}
        self._checked = 0  # holders that `check_some` has seen in this round

    def put(self, holder: Holder) -> None:
        """Register a holder with its present tokens, at least one."""
        assert holder.node is None and holder.tokens
        root = self._roots.get(holder.cache_key)
        if root is None:
            root = self._roots[holder.cache_key] = PrefixNode(None, array("i"))
        self._attach(holder, self._reach(root, holder.tokens, 0))

    def drop(self, holder: Holder) -> None:
        """Remove a holder, if it is here; its tokens may have changed."""
        node = holder.node
        if node is None:
            return
        holder.node = None
        node.holders.remove(holder)
        for above in _upwards(node):
            del above.below[holder.kind][holder]
        self._drop_empty(node, holder.cache_key)

    def walk(self, tokens: array[int], limit: int, cache_key: CacheKey = EVERYBODY) -> PrefixPath:
        """The path of `tokens[:limit]`."""
        nodes: list[PrefixNode] = []
        node = self._roots.get(cache_key)
        limit, at = min(limit, len(tokens)), 0
        while node is not None and at < limit:
            child = node.children.get(tokens[at])
            if child is None:
                break
            if child.holders:
                self._follow(child)
            at = _match(tokens, at, limit, child.run)
            nodes.append(child)
            node = child if at == child.end else None
        return PrefixPath(nodes, at)

    def drop_kinds(self, *kinds: HolderKind) -> None:
        """Drop all holders of these kinds."""
        for holder in list(self.holders()):
            if holder.kind in kinds:
                self.drop(holder)

    def exactly(self, tokens: array[int], cache_key: CacheKey, kind: HolderKind) -> Holder | None:
        """A holder of exactly these tokens."""
        longest = next(self.walk(tokens, len(tokens), cache_key).ending(kind), None)
        return longest if longest is not None and longest.length == len(tokens) else None

    def holders(self) -> Iterator[Holder]:
        for root in self._roots.values():
            for kind in HolderKind:
                yield from root.below[kind]

    def check_some(self, count: int) -> None:
        """Raises AssertionError if `count` of the holders, others with each call, are not where they belong."""
        some = list(islice(self.holders(), self._checked, self._checked + count))
        self._checked = self._checked + count if len(some) == count else 0
        for holder in some:
            self._check_holder(holder)

    def check(self) -> None:
        """Raises AssertionError if the tree is inconsistent. Looks at all of it."""
        for holder in self.holders():
            self._check_holder(holder)
        for root in self._roots.values():
            assert root.parent is None and not root.end and (root.children or root.holders), "an empty tree"
            for node in _nodes(root):
                assert node is root or node.run, "a node without tokens"
                assert node is root or node.holders or node.children, "a node without a holder"
                for kind in HolderKind:
                    below = [h for child in node.children.values() for h in child.below[kind]]
                    assert set(node.below[kind]) == {*below, *node.own(kind)}, "holders miscounted"

    def _check_holder(self, holder: Holder) -> None:
        node = holder.node
        assert node is not None and holder in node.holders and node.end <= holder.length, "a holder elsewhere"
        while node.parent is not None:
            start = node.parent.end
            assert holder.tokens[start : node.end] == node.run, "a holder of other tokens"
            assert node.parent.children[node.run[0]] is node, "a lost child"
            assert holder in node.below[holder.kind], "holders miscounted"
            node = node.parent
        assert self._roots[holder.cache_key] is node, "a holder of another key"

    # how it grows and shrinks

    def _reach(self, node: PrefixNode, tokens: array[int], at: int) -> PrefixNode:
        """The node where `tokens` end, made if need be; `node` is on their way and ends at `at`."""
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = node.children[tokens[at]] = PrefixNode(node, tokens[at:])
                return child
            end = _match(tokens, at, len(tokens), child.run)
            node = child if end == child.end else _split(child, end)
            at = end
        return node

    def _follow(self, node: PrefixNode) -> None:
        """Move the holders of a node whose timelines have grown beyond it."""
        for holder in [h for h in node.holders if len(h.tokens) > node.end]:
            if len(node.holders) == 1 and not node.children:
                node.run.extend(holder.tokens[node.end :])
                node.end = len(holder.tokens)
                return
            node.holders.remove(holder)
            longer = self._reach(node, holder.tokens, node.end)
            for below in _upwards(longer, node):
                below.below[holder.kind][holder] = None
            longer.holders.append(holder)
            holder.node = longer

    def _attach(self, holder: Holder, node: PrefixNode) -> None:
        holder.node = node
        node.holders.append(holder)
        for above in _upwards(node):
            above.below[holder.kind][holder] = None

    def _drop_empty(self, node: PrefixNode, key: CacheKey) -> None:
        """Drop nodes without a holder, and merge one that neither branches nor ends a timeline with its child."""
        while not node.holders and not node.children:
            if node.parent is None:
                del self._roots[key]
                return
            del node.parent.children[node.run[0]]
            node = node.parent
        if not node.holders and len(node.children) == 1 and node.parent is not None:
            (child,) = node.children.values()
            child.run = node.run + child.run
            child.parent = node.parent
            node.parent.children[child.run[0]] = child


def _match(tokens: array[int], at: int, limit: int, run: array[int]) -> int:
    """The end of what `tokens[at:limit]` and `run` have in common."""
    end = at + len(run)
    if end <= limit and tokens[at:end] == run:  # as a rule
        return end
    return at + common_prefix(tokens[at : min(end, limit)], run)


def _split(node: PrefixNode, at: int) -> PrefixNode:
    """Cut a node in two; returns the upper one, which ends at `at`."""
    assert node.parent is not None
    cut = len(node.run) - (node.end - at)
    upper = PrefixNode(node.parent, node.run[:cut])
    node.parent.children[upper.run[0]] = upper
    for kind, holders in node.below.items():
        upper.below[kind] = holders.copy()
    node.run = node.run[cut:]
    node.parent = upper
    upper.children[node.run[0]] = node
    return upper


def _upwards(node: PrefixNode | None, end: PrefixNode | None = None) -> Iterator[PrefixNode]:
    """A node and those above it, up to the root or before `end`."""
    while node is not end and node is not None:
        yield node
        node = node.parent


def _nodes(root: PrefixNode) -> Iterator[PrefixNode]:
    """The root and all nodes below it."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()
