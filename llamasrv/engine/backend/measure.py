"""Measures a model's memory on each device by opening it without weights. If the library reports no sizes
(breakdown.py), the caller must estimate.
"""

from __future__ import annotations

import dataclasses

from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.breakdown import breakdown, can_measure, devices_of, ours
from llamasrv.engine.backend.context import LlamaBackend
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.use import HOST, DeviceUse, MeasuredUse

__all__ = ["can_measure", "measure"]


def measure(path: str, options: EngineOptions) -> MeasuredUse:
    """Memory that the model would take with these options, and free memory. Raises LoadFailed."""
    # Leave out what does not affect the layout (adapters would be read in full) or would change this thread.
    bare = dataclasses.replace(
        options, adapters=(), control_vectors=(), mmproj=None, draft_model=None, cpu_range=(), prio=0, load_mode="none"
    )
    if options.draft_model is None:
        return _measured(path, bare)
    draft = dataclasses.replace(bare, gpu_layers=options.draft_gpu_layers, override_kv=(), override_tensor=())
    first, beside = _measured(path, bare), _measured(str(options.draft_model), draft)
    for name, use in beside.uses.items():
        first.uses[name] = first.uses.get(name, DeviceUse()) + use
    return first


def _measured(path: str, bare: EngineOptions) -> MeasuredUse:
    backend = LlamaBackend(path, bare, lambda share: True, weights=False)
    try:
        uses: dict[str, DeviceUse] = {HOST: DeviceUse(0, 0, ours(backend.vocab.size, backend.max_outputs))}
        for number, context in enumerate(backend.contexts):
            for name, use in breakdown(context).items():
                # All contexts share the model's weights: count them once.
                uses[name] = uses.get(name, DeviceUse()) + (use if not number else dataclasses.replace(use, weights=0))
        return MeasuredUse(uses, rpc.memory_of(devices_of(backend.model)), backend.context)
    finally:
        backend.close()
