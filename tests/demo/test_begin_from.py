"""Training goes on from the file that ships: its weights come back as they were written."""

import gguf
import pytest

from llamasrv.demo import MODEL


def test_the_weights_of_the_file_make_the_same_file(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra `train`")
    from llamasrv.demo.export import export, weights_of
    from llamasrv.demo.model import DemoModel

    weights = weights_of(MODEL, DemoModel().state_dict())
    DemoModel().load_state_dict(weights)
    torch.save({"model": weights}, tmp_path / "run.pt")
    export([tmp_path / "run.pt"], tmp_path / "again.gguf")
    first, again = (
        {t.name: t.data.tobytes() for t in gguf.GGUFReader(p).tensors} for p in (MODEL, tmp_path / "again.gguf")
    )
    assert first == again
