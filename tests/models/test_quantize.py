"""Models in another number format: written whole or not at all, in a process of their own."""

from __future__ import annotations

import pytest
from model import tiny_models

from llamasrv.commands.quantize import run
from llamasrv.errors import ConfigError
from llamasrv.models import gguf
from llamasrv.models.quantize import QuantizeFailed, file_type, quantize


@pytest.fixture
def source(tmp_path):
    return tiny_models.llama(tmp_path / "m.gguf")


def test_a_file_is_written_in_the_type_that_was_asked_for(source, tmp_path):
    steps = list(quantize(source, tmp_path / "q.gguf", "q8_0", threads=1))
    header = gguf.read_header(tmp_path / "q.gguf")
    assert header.file_type == "Q8_0" and header.size < source.stat().st_size
    assert [step.done for step in steps] == list(range(1, len(header.tensors) + 1))
    assert {step.total for step in steps} == {len(header.tensors)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "q.gguf"]


def test_the_quantised_file_is_served(source, tmp_path):
    from llamasrv.engine.backend.context import open_model
    from llamasrv.engine.base.options import EngineOptions

    list(quantize(source, tmp_path / "q.gguf", "Q8_0", threads=1))
    options = EngineOptions(context_cells=64, batch_size=64, ubatch_size=64, threads=1, parallel=1)
    backend = open_model(str(tmp_path / "q.gguf"), options, lambda share: True)
    assert backend.info.file_type == "Q8_0"
    backend.close()


def test_who_stops_reading_ends_it_and_nothing_is_left(tmp_path):
    source = tiny_models.llama(tmp_path / "m.gguf", layers=20)
    work = quantize(source, tmp_path / "q.gguf", "q8_0", threads=1)
    next(work)
    work.close()
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_what_is_quantised_is_not_quantised_again_unless_that_is_meant(source, tmp_path, capsys):
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    list(quantize(source, first, "q8_0", threads=1))
    assert run(first, second, "q4_0", 1, False) == 65 and not second.exists()
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "requantizing" in line and "--allow-requantize permits it, at a loss of quality" in line
    assert run(first, second, "q4_0", 1, True) == 0 and gguf.read_header(second).file_type == "Q4_0"
    assert f"{second}: " in capsys.readouterr().out


def test_what_would_fail_later_is_reported_at_once(source, tmp_path):
    (tmp_path / "there.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_bytes(b"no model, but a text that is long enough")
    for wrong, target, line in (
        (source, tmp_path / "there.gguf", "the file exists"),
        (source, tmp_path / "none/q.gguf", "no such folder"),
        (tmp_path / "none.gguf", tmp_path / "q.gguf", "No such file"),
        (tmp_path / "text.gguf", tmp_path / "q.gguf", "magic bytes GGUF"),
    ):
        with pytest.raises(QuantizeFailed, match=line):
            next(quantize(wrong, target, "q8_0"))
    with pytest.raises(ConfigError, match="TYPE: unknown type 'q9'; use BF16, F16"):
        run(source, tmp_path / "q.gguf", "q9", 0, False)


def test_types_have_the_names_that_files_tell():
    assert (file_type("q4_k_m"), file_type("Q8_0"), file_type("bf16")) == (15, 7, 32)
