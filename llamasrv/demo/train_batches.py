"""Batches for training: random strings to copy first, then documents of the corpus.

Owns shapes: a batch is whole documents of about one length, one a row, so that nothing is computed for padding or
across documents. Knows nothing of optimisers.
"""

import random
from dataclasses import dataclass

import torch

LENGTHS = (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)
POOL = 96


@dataclass
class Batch:
    """`tokens` (rows, length); `positions` are flat places whose next token is learned: `targets`, with `weights`."""

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    skills: list  # the skill of each target

    def to(self, device):
        return Batch(*(getattr(self, n).to(device) for n in ("tokens", "positions", "targets", "weights")), self.skills)


def copying(batch_tokens, vocabulary, rng):
    """Random tokens, then the same again: only the second time can be learned, and only by looking back."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    half = rng.choice((8, 12, 16, 24, 32, 48, 64))
    lead = rng.randrange(0, 16)
    rows = max(1, batch_tokens // (2 * half + lead))
    text = torch.randint(0, vocabulary, (rows, half), generator=generator)
    noise = torch.randint(0, vocabulary, (rows, lead), generator=generator)
    tokens = torch.cat((noise, text, text), 1)
    length = tokens.shape[1]
    flat = torch.arange(rows)[:, None] * length + torch.arange(lead + half, length - 1)[None]
    targets = tokens[:, lead + half + 1 :].flatten()
    return Batch(tokens, flat.flatten(), targets, torch.ones(len(targets)), ["copying"] * len(targets))


class DocumentBatches:
    """An endless stream of batches. `taken` counts documents, so that a resumed run goes on behind them."""

    def __init__(self, documents, encode, batch_tokens, *, seed, taken=0):
        self.documents, self.encode, self.batch_tokens = documents, encode, batch_tokens
        self.taken = taken
        self.rng = random.Random(f"{seed} {taken}")
        self.buckets = {length: [] for length in LENGTHS}
        self.pool = []

    def next(self):
        # Short documents fill their buckets in bursts; drawing from a pool keeps a step's mixture even.
        while len(self.pool) < POOL:
            self._fill()
        return self.pool.pop(self.rng.randrange(len(self.pool)))

    def _fill(self):
        document = next(self.documents)
        self.taken += 1
        tokens, learned = self.encode(document)
        length = next((n for n in LENGTHS if n >= len(tokens) - 1), None)
        if length is None:
            return
        bucket = self.buckets[length]
        bucket.append((tokens, learned, document.skill))
        if len(bucket) >= max(1, self.batch_tokens // length):
            self.pool.append(_collate(bucket, length))
            self.buckets[length] = []


def _collate(rows, length):
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    positions, targets, weights, skills = [], [], [], []
    for row, (ids, learned, skill) in enumerate(rows):
        kept = min(len(ids), length)
        tokens[row, :kept] = torch.tensor(ids[:kept])
        places = [i - 1 for i in range(1, len(ids)) if learned[i]]
        positions += [row * length + i for i in places]
        targets += [ids[i + 1] for i in places]
        # Between one vote per token and one vote per document: a story must not drown fifty one-word answers.
        weights += [len(places) ** -0.5] * len(places)
        skills += [skill] * len(places)
    return Batch(tokens, torch.tensor(positions), torch.tensor(targets), torch.tensor(weights), skills)
