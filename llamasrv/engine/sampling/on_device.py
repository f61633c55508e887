"""Sampling on the device: the library applies a sequence's chain in its graph and returns only the token.

On a GPU that saves copying a row of logits per token and sampling on the CPU. Sequences that need the row, or a sampler
that the device lacks, are sampled normally in the same step. The library calls it experimental, and a seed gives
another text than normal sampling, so it is off without `--backend-sampling`.
"""

from __future__ import annotations

from llamasrv.domain.params import SamplingParams, samplers_of
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.sampling.late_chain import seeded


def is_eligible(spec: SequenceSpec, *, constrained: bool) -> bool:
    """Whether a sequence needs neither its rows of logits nor a sampler that the device lacks."""
    p = spec.params
    quiet = spec.logprobs is None and not spec.sampled_probs and not spec.prompt_logprobs and not spec.reads
    plain = not p.logit_bias and not p.ignore_eos and not p.min_tokens and not constrained
    return quiet and plain and _has_all(p)


def _has_all(p: SamplingParams) -> bool:
    return not p.mirostat and all(kind.on_device(p) for kind in samplers_of(p))


class DeviceSampler:
    """One sequence's chain on the device. Keeps its state while the sequence has no lane."""

    __slots__ = ("_chain", "_backend", "_lane", "_is_used")

    def __init__(self, params: SamplingParams, backend: Backend) -> None:
        self._chain = backend.chain(seeded(params))
        self._backend = backend
        self._lane: int | None = None
        self._is_used = False

    def attach(self, lane: int) -> bool:
        """Sample the next rows of this lane on the device; False if the library refuses."""
        self.detach()
        if self._is_used:  # the library aborts if a chain is attached twice: attach a clone
            used, self._chain = self._chain, self._chain.clone()
            used.close()
        self._is_used = True
        if self._backend.sample_lane(lane, self._chain):
            self._lane = lane
        return self._lane is not None

    def detach(self) -> None:
        if self._lane is not None:
            self._backend.sample_lane(self._lane, None)
            self._lane = None

    def close(self) -> None:
        self.detach()
        self._chain.close()
