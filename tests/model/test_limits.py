"""Models that the library loads and cannot compute are refused in one line, before anything is computed."""

import architectures
import pytest
import tiny_models

from llamasrv.engine.backend.context import open_model
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import EngineOptions


@pytest.mark.parametrize(
    "arch, reason",
    [("dream", "diffusion"), ("t5", "an encoder of its own"), ("plm", "aborts"), ("qwen3tts", "makes speech")],
)
def test_a_model_that_cannot_generate_is_refused_at_load(tmp_path, arch, reason):
    """T5 and PLM aborted the process at the first request; LLaDA and Dream answered it with noise."""
    path = architectures.make(arch, tmp_path / "model.gguf")
    options = EngineOptions(context_cells=256, threads=1)
    with pytest.raises(LoadFailed, match=f"{arch} models cannot be served: .*{reason}"):
        open_model(str(path), options, lambda share: True)


@pytest.mark.parametrize("kind", ["kev", "laya", "clef", "lfm2-d1-omni", "vllm-d3"])
def test_a_decision_model_whose_head_the_library_lacks_is_refused_by_its_type(tmp_path, kind):
    path = tiny_models.llama(tmp_path / "model.gguf", decides=kind)
    with pytest.raises(LoadFailed, match=f"decision models of type {kind} cannot be served"):
        open_model(str(path), EngineOptions(context_cells=256, threads=1), lambda share: True)


@pytest.mark.parametrize("kind", ["openjev", "lev", "nimble", "pplx-decider", "lfm2-d1"])
def test_a_decision_model_that_reads_tokens_is_an_ordinary_model(tmp_path, kind):
    path = tiny_models.llama(tmp_path / "model.gguf", decides=kind)
    open_model(str(path), EngineOptions(context_cells=256, threads=1), lambda share: True).close()
