"""Models that the library loads and cannot compute are refused in one line, before anything is computed."""

import architectures
import pytest

from llamasrv.engine.backend.context import open_model
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import EngineOptions


@pytest.mark.parametrize(
    "arch, reason", [("dream", "diffusion"), ("t5", "an encoder of its own"), ("plm", "aborts"), ("qwen3tts", "speech")]
)
def test_a_model_that_cannot_generate_is_refused_at_load(tmp_path, arch, reason):
    """T5 and PLM aborted the process at the first request; LLaDA and Dream answered it with noise."""
    path = architectures.make(arch, tmp_path / "model.gguf")
    options = EngineOptions(context_cells=256, threads=1)
    with pytest.raises(LoadFailed, match=f"{arch} models cannot be served: .*{reason}"):
        open_model(str(path), options, lambda share: True)
