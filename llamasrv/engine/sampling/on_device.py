"""Sampling where the logits are: the library applies a sequence's chain in its graph, and hands out the token alone.

On a GPU that spares copying a row of logits for each token, and choosing from it here. Sequences that need the row, or
a sampler that only this side has, are sampled the ordinary way in the same step. The library calls it experimental; a
seed gives another text than the ordinary way, so it is off unless `--backend-sampling` is given.
"""

from __future__ import annotations

from llamasrv.domain.params import SamplingParams, samplers_of
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.interface import Backend
from llamasrv.engine.sampling.sampler import is_greedy, seeded


def is_eligible(spec: SequenceSpec, *, constrained: bool) -> bool:
    """Whether a sequence needs neither its rows of logits nor a sampler that only runs on our side."""
    p = spec.params
    told = spec.logprobs is None and not spec.sampled_probs and not spec.prompt_logprobs
    plain = not p.logit_bias and not p.ignore_eos and not p.min_tokens and not constrained
    return told and plain and _has_all(p)


def _has_all(p: SamplingParams) -> bool:
    return not p.mirostat and all(kind.on_device(p) for kind in samplers_of(p, greedy=is_greedy(p)))


class DeviceSampler:
    """One sequence's chain. It keeps its state while the sequence has no lane."""

    __slots__ = ("_chain", "_backend", "_lane", "_is_used")

    def __init__(self, params: SamplingParams, backend: Backend) -> None:
        self._chain = backend.chain(seeded(params), greedy=is_greedy(params))
        self._backend = backend
        self._lane: int | None = None
        self._is_used = False

    def attach(self, lane: int) -> bool:
        """Have the device choose from the next rows of this lane; False if the library refuses."""
        self.detach()
        if self._is_used:  # the library aborts where it is given one for the second time
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
