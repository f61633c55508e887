"""Muon for the matrices, Adam for everything else.

Owns the update rules and their state. The learning rate's course over time belongs to train.py.
"""

import torch

from llamasrv.demo.model import added

MUON_RATE = 0.02
ADAM_RATE = 3e-3
TABLE_RATE = 1e-3  # of the embedding and the head: rows of rare tokens must not run away
GROUP = 3  # matrices of one shape that are made orthogonal at once


class Optimiser:
    """One object for both rules, so that a checkpoint holds one state."""

    def __init__(self, model, spread=map, dtype=torch.bfloat16, keep=1.0):
        """`spread` is a `map`, maybe of several threads; `dtype` is that of Muon's products; `keep` is a factor on the rates
        of all but the `added` layers."""
        named = dict(model.named_parameters())
        tables = [named.pop("embedding"), named.pop("head")]
        places = tuple(f"blocks.{place}." for place in added(model.config.layers))
        new = {name: p for name, p in named.items() if name.startswith(places)}
        old = {name: p for name, p in named.items() if name not in new}
        self.adam = torch.optim.AdamW(
            [
                {"params": [p for p in new.values() if p.dim() == 1], "rate": ADAM_RATE},
                {"params": [p for p in old.values() if p.dim() == 1], "rate": keep * ADAM_RATE},
                {"params": tables, "rate": keep * TABLE_RATE},
            ],
            lr=ADAM_RATE,
            betas=(0.9, 0.98),
            weight_decay=0.0,
        )
        matrices = [p for p in (*new.values(), *old.values()) if p.dim() == 2]
        count = sum(p.dim() == 2 for p in new.values())
        self.muon = Muon(matrices, spread, dtype, factors=[1.0] * count + [keep] * (len(matrices) - count))

    def step(self, scale):
        """One update; `scale` multiplies both learning rates."""
        for group in self.adam.param_groups:
            group["lr"] = group["rate"] * scale
        self.adam.step()
        self.muon.step(MUON_RATE * scale)
        self.adam.zero_grad(set_to_none=True)
        self.muon.zero_grad()

    def state_dict(self):
        return {"adam": self.adam.state_dict(), "muon": self.muon.momentum}

    def load_state_dict(self, state):
        self.adam.load_state_dict(state["adam"])
        for ours, saved in zip(self.muon.momentum, state["muon"], strict=True):
            ours.copy_(saved)


class Muon:
    """Momentum whose direction is made orthogonal, so that every direction of a matrix learns at the same pace."""

    def __init__(self, matrices, spread=map, dtype=torch.bfloat16, momentum=0.95, decay=0.01, factors=None):
        self.momentum_factor, self.decay, self.spread, self.dtype = momentum, decay, spread, dtype
        self.by_shape = {}
        for index, matrix in enumerate(matrices):
            self.by_shape.setdefault(matrix.shape, []).append(index)
        self.matrices, self.factors = matrices, factors or [1.0] * len(matrices)
        self.momentum = [torch.zeros_like(m) for m in matrices]

    def step(self, rate):
        parts = [indices[at : at + GROUP] for indices in self.by_shape.values() for at in range(0, len(indices), GROUP)]
        for _ in self.spread(lambda indices: self._step(indices, rate), parts):
            pass

    @torch.no_grad()
    def _step(self, indices, rate):
        looked_ahead = []
        for i in indices:
            gradient = self.matrices[i].grad
            self.momentum[i].lerp_(gradient, 1 - self.momentum_factor)
            looked_ahead.append(gradient.lerp(self.momentum[i], self.momentum_factor))
        updates = orthogonal(torch.stack(looked_ahead).to(self.dtype))
        rows, columns = self.matrices[indices[0]].shape
        size = max(1.0, rows / columns) ** 0.5
        for i, update in zip(indices, updates, strict=True):
            own = rate * self.factors[i]
            self.matrices[i].mul_(1 - own * self.decay).add_(update, alpha=-own * size)

    def zero_grad(self):
        for matrix in self.matrices:
            matrix.grad = None


def orthogonal(batch, rounds=5):
    """The nearest orthogonal matrices, roughly: Newton-Schulz with a quintic, over a batch of one shape, in its dtype."""
    x = batch
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()
