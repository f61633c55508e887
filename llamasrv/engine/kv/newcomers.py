"""The prompts that one step starts: among those with a common prefix, one computes it and the others wait."""

from __future__ import annotations

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.tree import Holder, HolderKind, PrefixTree


class _Newcomer(Holder):
    __slots__ = ("seq",)

    def __init__(self, seq: Sequence) -> None:
        super().__init__(HolderKind.LANE, seq.tokens, seq.spec.cache_key)
        self.seq = seq


class Newcomers:
    """A separate prefix tree, built for each look at those that wait. `follows`: whether this memory can share computed
    cells."""

    def __init__(self, follows: bool = False) -> None:
        self._follows = follows
        self._tree = PrefixTree()
        self._added: list[Sequence] = []  # not in the tree yet: most plans have one newcomer, and nobody asks
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, seq: Sequence) -> None:
        self._count += 1
        if self._follows and seq.spec.cache_prompt:
            self._added.append(seq)

    def ahead_of(self, seq: Sequence) -> tuple[Sequence, int] | None:
        """The newcomer with the longest prefix that this sequence can reuse once it is computed, and its length."""
        if not self._count or not (self._follows and seq.spec.cache_prompt) or seq.spec.prompt_logprobs:
            return None
        for one in self._added:
            self._tree.put(_Newcomer(one))
        self._added.clear()
        path = self._tree.walk(seq.tokens, seq.num_tokens - 1, seq.spec.cache_key)
        holder, length = next(path.sharing(HolderKind.LANE), (None, 0))
        if not isinstance(holder, _Newcomer):
            return None
        return holder.seq, length if seq.media is None else seq.media.cut(length)
