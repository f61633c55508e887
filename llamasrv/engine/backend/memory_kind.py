"""A model's kind of memory: whether lanes can be cut anywhere, and if not, what bringing them back takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from llamasrv.engine.backend.library import C
from llamasrv.engine.base.interface import ATTENTION, HYBRID, RECURRENT, WINDOW, MemoryTraits
from llamasrv.engine.base.options import EngineOptions

PARTIAL = int(C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
# Compressed caches with their own streams: ranges of a lane cannot be copied, and a partial state is not enough.
_WHOLE_ONLY = ("deepseek4",)
# The file specifies a window, but the library keeps all tokens.
_KEEPS_ALL = ("exaone4",)


_ROLLBACK = 3  # the last token and a draft of this length fill a block of rows


class MemoryKind(NamedTuple):
    stateful: bool  # a lane has a state of fixed size, whatever its length
    window: int  # size of the sliding window; 0: none
    traits: MemoryTraits


def kind_of(model: Any, architecture: str, *, swa_full: bool) -> MemoryKind:
    window = 0 if architecture in _KEEPS_ALL else int(C.llama_model_n_swa(model))
    recurrent, hybrid = C.llama_model_is_recurrent(model), C.llama_model_is_hybrid(model)
    if recurrent or architecture in _WHOLE_ONLY:
        return MemoryKind(True, window, RECURRENT)
    if hybrid:
        return MemoryKind(True, window, HYBRID)
    if window and not swa_full:
        return MemoryKind(False, window, WINDOW)
    # A saved state lacks tokens outside the window.
    return MemoryKind(False, window, ATTENTION._replace(can_cut_saved=not window))


def rollback_wanted(options: EngineOptions, ubatch_size: int) -> int:
    """How many earlier states to keep per lane: the max length of a draft that can be rolled back."""
    if options.spec == "off" or options.deterministic:
        return 0
    wanted = _ROLLBACK if options.draft_rollback is None else options.draft_rollback
    return max(0, min(wanted, ubatch_size - 2))  # with more, the library aborts at the first decode
