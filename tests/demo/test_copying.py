"""How the network begins: it copies before it has learned anything. Needs the extra `train`."""

import random

import pytest

torch = pytest.importorskip("torch")

from llamasrv.demo.model import DemoModel  # noqa: E402
from llamasrv.demo.train_batches import copying  # noqa: E402


def test_a_new_network_finds_what_followed_the_same_token():
    torch.manual_seed(1)
    model, rng = DemoModel(), random.Random(5)
    right, all_of_them = 0, 0
    for _ in range(4):
        batch = copying(1024, model.config.vocabulary, rng)
        with torch.no_grad():
            best = model.logits(model(batch.tokens, batch.positions)).argmax(-1)
        right += int((best == batch.targets).sum())
        all_of_them += len(batch.targets)
    assert right / all_of_them > 0.5
