"""The labels of a question's options, and the tokens with which a model writes them.

A label is a set of paths of tokens, disjoint from those of the other labels: all spellings that are one token where
there are such (`A`, ` A`), else the tokens of the first spelling. No path begins like another one that is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from math import inf
from string import ascii_uppercase
from typing import NamedTuple

from llamasrv.domain.decide import Kind
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.pipeline.decide.answers import log_sum

Path = tuple[int, ...]

YES, NO = "yes", "no"
LONGEST_TAIL = 64  # max characters before a label that can affect its tokenisation


class Labels(NamedTuple):
    """`texts`: as shown in the prompt. `paths`: for each, the token sequences that write it."""

    texts: tuple[str, ...]
    paths: tuple[tuple[Path, ...], ...]

    @property
    def reads(self) -> dict[Path, tuple[int, ...]]:
        """The inner nodes of the tree: after the tokens of a key, the log-probabilities of these are read. () is the
        root."""
        found: dict[Path, dict[int, None]] = {(): {}}
        for path in self._all():
            for length in range(len(path)):
                found.setdefault(path[:length], {})[path[length]] = None
        return {node: tuple(tokens) for node, tokens in found.items()}

    def logprobs(self, read: Mapping[Path, Mapping[int, float]]) -> list[float]:
        """The log-probability of each label, from those read at each node."""
        return [
            log_sum([sum(read[path[:i]].get(path[i], -inf) for i in range(len(path))) for path in paths])
            for paths in self.paths
        ]

    def _all(self) -> Iterable[Path]:
        return (path for paths in self.paths for path in paths)


class LabelMaker:
    """The labels of one model after one prompt end; `tail`: the text before the answer."""

    def __init__(self, vocab: Vocabulary, tail: str) -> None:
        self._vocab = vocab
        self._tail = tail[-LONGEST_TAIL:]
        self._before = vocab.tokenize(self._tail) if self._tail else []
        self._made: dict[tuple[Kind, int], Labels] = {}

    def make(self, kind: Kind, count: int) -> Labels:
        made = self._made.get((kind, count))
        if made is None:
            made = self._made[kind, count] = self._labels(kind, count)
        return made

    def _labels(self, kind: Kind, count: int) -> Labels:
        if kind == "predicate":
            return self._of((YES, NO))
        if kind == "score":
            width = len(str(count - 1))
            return self._of(tuple(f"{level:0{width}}" for level in range(count)))
        if count <= len(ascii_uppercase):
            return self._of(tuple(ascii_uppercase[:count]))
        pairs = ["".join(pair) for pair in product(ascii_uppercase, repeat=2)]
        whole = [pair for pair in pairs if self._single(pair)]
        if len(whole) < count:
            rest = set(whole)
            whole += [pair for pair in pairs if pair not in rest][: count - len(whole)]
        return self._of(tuple(whole[:count]))

    def _of(self, texts: tuple[str, ...]) -> Labels:
        taken: set[int] = set()
        paths: list[tuple[Path, ...]] = []
        for text in texts:
            singles = [token for token in map(self._single, _spellings(text)) if token is not None]
            mine = tuple((token,) for token in dict.fromkeys(singles) if token not in taken)
            taken.update(token for (token,) in mine)
            paths.append(mine or (self._tokens(text),))
        return Labels(texts, tuple(paths))

    def _single(self, text: str) -> int | None:
        tokens = self._tokens(text)
        return tokens[0] if len(tokens) == 1 else None

    def _tokens(self, text: str) -> Path:
        """Tokens of the text after the tail; of the text alone if tail and text share a token."""
        before = len(self._before)
        tokens = self._vocab.tokenize(self._tail + text) if before else []
        if tokens[:before] != self._before or len(tokens) == before:
            return tuple(self._vocab.tokenize(text, parse_special=False))
        return tuple(tokens[before:])


def _spellings(text: str) -> list[str]:
    """Equivalent spellings of a label, the usual one first."""
    words = dict.fromkeys((text, text.capitalize(), text.upper()) if text in (YES, NO) else (text,))
    return [space + word for space in ("", " ") for word in words]
