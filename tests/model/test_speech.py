"""Speech pairs: which files are one, and the rows of the token table."""

import gguf
import numpy as np
import pytest

from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.library import C
from llamasrv.engine.backend.model_handle import ModelHandle
from llamasrv.engine.backend.placement import load_model
from llamasrv.engine.backend.speech import LlamaSpeech, speech_kind
from llamasrv.engine.backend.vocabulary import LlamaVocabulary
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import EngineOptions


@pytest.fixture
def pocket_projector(tmp_path):
    path = tmp_path / "mmproj-pocket.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.gen.audio.projector_type", "pockettts_gen")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_speech_projector_is_told_by_its_generator(pocket_projector, tmp_path):
    (tmp_path / "text").write_text("no GGUF file")
    assert speech_kind(pocket_projector) == "pockettts"
    assert speech_kind(tmp_path / "text") == speech_kind(None) == ""


def test_a_projector_of_another_kind_of_model_is_refused(pocket_projector, model_path):
    path = model_path("swa")
    options = EngineOptions(mmproj=pocket_projector, gpu_layers=0)
    model = load_model(path, options, lambda share: True)
    handle = ModelHandle(model, C.llama_model_free)
    vocab = LlamaVocabulary(model, handle)
    with pytest.raises(LoadFailed, match="speaks for pockettts models"):
        LlamaSpeech(model, vocab, options, path=path)
    handle.release()


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_single_rows_of_a_table_are_dequantised(kind, tmp_path):
    path = tmp_path / "table.gguf"
    numbers = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    of_kind = gguf.GGMLQuantizationType[kind]
    raw = gguf.quants.quantize(numbers, of_kind)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("table", raw, raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with opened(path) as file:
        table = file.table("table", 64)
        assert file.table("table", 96) is None
        assert file.table("nothing", 64) is None
    wanted = gguf.quants.dequantize(raw, of_kind)
    assert [table.row(i).tolist() for i in range(5)] == wanted.tolist()
