"""Dummy steps: one to warm up a model, many to measure its speed."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING

import numpy as np

from llamasrv.engine.base.arrays import Int32s

if TYPE_CHECKING:
    from llamasrv.engine.backend.context import LlamaBackend


def warm_up(backend: LlamaBackend) -> None:
    """Compute one row, so that the first request does not pay for reading weights and starting threads. The cost model
    learns from requests only: measuring here would delay the start of a large model."""
    if backend.embeddings is not None:
        backend.embeddings.embed([array("i", [backend.vocab.bos or 0] * min(8, backend.embeddings.context))])
    if backend.generates:
        _decode_row(backend, [backend.vocab.bos or 0], position=0)
        backend.clear(0)


def measure_decode(backend: LlamaBackend, prompts: list[int], num_tokens: int) -> float:
    """Tokens/s of decoding one token per lane and step. `prompts`: the length of each lane at the start."""
    n, b = len(prompts), backend.batch
    for lane, length in enumerate(prompts):
        b.token[:length], b.position[:length], b.lane[:length] = 17 % backend.vocab.size, range(length), lane
        b.wants_logits[:length] = 0
        b.num_rows, b.num_outputs = length, 0
        backend.decode()
    positions = np.array(prompts, np.int32)
    tokens = [17 % backend.vocab.size] * n
    start = 0.0
    for step in range(num_tokens):
        if step == 1:
            start = time.perf_counter()
        _decode_row(backend, tokens, positions + step)
    seconds = time.perf_counter() - start
    for lane in range(n):
        backend.clear(lane)
    return n * (num_tokens - 1) / seconds


def _decode_row(backend: LlamaBackend, tokens: list[int], position: int | Int32s) -> None:
    """Decode one token for each of the first `len(tokens)` lanes."""
    n = len(tokens)
    b = backend.batch
    b.token[:n], b.position[:n], b.lane[:n], b.wants_logits[:n] = tokens, position, range(n), 1
    b.num_rows = b.num_outputs = n
    backend.decode()
