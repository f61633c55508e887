"""Context shift: when a context is full, part of it is dropped so that the answer can continue.

    [0, keep)               stays: the start token, and as much of the prompt as requested
    [keep, keep + count)    is dropped
    [keep + count, n)       moves up

The shortened timeline is recomputed, so KV matches its tokens with every kind of memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamasrv.engine.base.sequence import Sequence

if TYPE_CHECKING:
    from llamasrv.engine.core import EngineCore

SPARE = 4  # tokens of the context that are never kept, whatever a request says


def shift(core: EngineCore, seq: Sequence) -> None:
    """Drop tokens of a sequence that has filled its context."""
    keep, count = forgotten(seq, context=core.backend.context, default=core.options.keep, bos=core.backend.vocab.bos)
    if seq.lane is not None:
        core.preempt(seq, save=False)
    else:
        core.admission.drop_saved(seq)
    seq.own_sampling.drop(keep, count)
    seq.num_forgotten += count
    core.metrics.context_shifts += 1


def forgotten(seq: Sequence, *, context: int, default: int, bos: int | None) -> tuple[int, int]:
    """(keep, count): how many first tokens stay, and how many after them are dropped: half of the rest, unless the
    request sets it."""
    wanted = default if seq.spec.keep is None else seq.spec.keep
    keep = seq.num_prompt if wanted < 0 else wanted + (seq.tokens[0] == bos)
    keep = max(0, min(keep, context - SPARE))
    rest = seq.num_tokens - 1 - keep  # the last token is not in KV yet
    return keep, max(1, min(seq.spec.discard or rest // 2, rest - 1))
