"""Warm-up steps: they touch the weights once and measure what steps cost."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING

import numpy as np

from llamasrv.engine.backend.padding import BLOCK

if TYPE_CHECKING:
    from llamasrv.engine.backend.context import LlamaBackend


def warm_up(backend: LlamaBackend) -> None:
    """Touch all weights once, so that the first request does not pay for it; record what steps cost."""
    backend.timings = []
    if backend.embeddings is not None:
        backend.embeddings.embed([array("i", [backend.vocab.bos or 0] * min(8, backend.embeddings.context))])
    if not backend.generates:
        return
    whole = 2 * BLOCK
    for rows in (1, 1, *(min(n, backend.num_lanes) for n in (whole, whole - 1, whole))):
        start = time.perf_counter()
        _decode_row(backend, [backend.vocab.bos or 0] * rows, position=0)
        backend.timings.append((0, rows, time.perf_counter() - start))
        for lane in range(rows):
            backend.clear(lane)
    del backend.timings[0]  # it paid for reading the weights
    if backend.num_lanes >= whole:
        (_, _, padded), (_, _, plain), (_, _, again) = backend.timings[-3:]
        backend.padding.begin(plain, min(padded, again))
    b, n = backend.batch, min(32, backend.batch.capacity)
    b.token[:n], b.position[:n], b.lane[:n], b.wants_logits[:n] = backend.vocab.bos or 0, range(n), 0, 0
    b.num_rows, b.num_outputs = n, 0
    start = time.perf_counter()
    backend.decode()
    backend.timings.append((n, 0, time.perf_counter() - start))
    backend.clear(0)


def measure_decode(backend: LlamaBackend, prompts: list[int], num_tokens: int) -> float:
    """Tokens/s of plain decodes of one token for each of `len(prompts)` lanes. `prompts` are the lengths with which
    the lanes start: attention covers them."""
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


def _decode_row(backend: LlamaBackend, tokens: list[int], position: int | np.ndarray) -> None:
    """One token for each of the first lanes."""
    n = len(tokens)
    b = backend.batch
    b.token[:n], b.position[:n], b.lane[:n], b.wants_logits[:n] = tokens, position, range(n), 1
    b.num_rows = b.num_outputs = n
    backend.decode()
