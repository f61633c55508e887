"""How the network begins: it copies and knows letters before it has learned anything. Needs the extra `train`."""

import random

import pytest

torch = pytest.importorskip("torch")

from llamasrv.demo.model import DemoModel, begin_spelling  # noqa: E402
from llamasrv.demo.tokenizer import vocabulary_and_merges  # noqa: E402
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


def test_a_new_network_knows_the_first_letters_of_tokens_that_it_was_not_asked_about():
    torch.manual_seed(1)
    model, tokens = DemoModel(), vocabulary_and_merges()[0]
    begin_spelling(model, tokens)
    words = [
        i for i, text in enumerate(tokens) if text.isascii() and text.isalpha() and text.islower() and len(text) > 1
    ]
    random.Random(5).shuffle(words)
    asked, others = words[: len(words) // 2], words[len(words) // 2 :]
    letter = torch.tensor([[float(ord(tokens[i][0]) - ord("a") == n) for n in range(26)] for i in words])
    embedding = model.embedding.detach()
    read = torch.linalg.lstsq(embedding[asked], letter[: len(asked)]).solution
    right = (embedding[others] @ read).argmax(-1) == letter[len(asked) :].argmax(-1)
    assert right.float().mean() > 0.8


def test_only_one_process_trains_in_a_folder(tmp_path):
    from llamasrv.demo.train import lock

    first = lock(tmp_path / "lock")
    with pytest.raises(SystemExit, match="another process trains in"):
        lock(tmp_path / "lock")
    first.close()
    lock(tmp_path / "lock").close()
