"""Training goes on from the file that ships: its weights come back as they were written."""

import gguf
import pytest

from llamasrv.demo import MODEL


def test_the_weights_of_the_file_make_the_same_file(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra `train`")
    from llamasrv.demo.export import export, model_of

    torch.save({"model": model_of(MODEL).state_dict()}, tmp_path / "run.pt")
    export([tmp_path / "run.pt"], tmp_path / "again.gguf")
    first, again = (
        {t.name: t.data.tobytes() for t in gguf.GGUFReader(p).tensors} for p in (MODEL, tmp_path / "again.gguf")
    )
    assert first == again


def test_a_model_that_grows_by_two_layers_writes_what_it_wrote():
    torch = pytest.importorskip("torch", reason="needs the extra `train`")
    from llamasrv.demo.export import model_of
    from llamasrv.demo.model import Config, DemoModel, grow

    small = model_of(MODEL)
    large = DemoModel(Config(layers=small.config.layers + 2))
    grow(large, small.state_dict())
    tokens, places = torch.arange(40)[None], torch.arange(40)
    with torch.no_grad():
        one, other = (model.logits(model(tokens, places)) for model in (small, large))
    assert torch.equal(one, other)
