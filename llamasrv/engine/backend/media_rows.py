"""Decodes rows of embeddings instead of tokens."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from llamasrv.engine.backend.library import C
from llamasrv.engine.base.batch import MediaRows


def decode_rows(context: Any, batch: Any, rows: MediaRows, *, width: int, dimensions: int, ubatch_size: int) -> int:
    """Returns llama_decode's code. `batch`: a llama_batch with the rows' lanes and outputs; its tokens are ignored."""
    count = len(rows.embeddings)
    # The library would read past the end of these, or abort.
    assert rows.embeddings.shape == (count, width) and rows.positions.shape == (dimensions, count)
    assert not rows.whole or count <= ubatch_size, "a non-causal chunk exceeds the ubatch"
    embeddings = np.ascontiguousarray(rows.embeddings, np.float32)
    positions = np.ascontiguousarray(rows.positions, np.int32)
    b: Any = C.llama_batch()
    b.n_tokens, b.n_seq_id, b.seq_id, b.logits = count, batch.n_seq_id, batch.seq_id, batch.logits
    b.embd = embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    b.pos = positions.ctypes.data_as(ctypes.POINTER(C.llama_pos))
    if not rows.whole:
        return int(C.llama_decode(context, b))
    C.llama_set_causal_attn(context, False)
    try:
        return int(C.llama_decode(context, b))
    finally:
        C.llama_set_causal_attn(context, True)
