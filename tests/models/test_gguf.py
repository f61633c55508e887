"""Reading headers: what a good file says, and that no broken file does harm."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamasrv.errors import ConfigError
from llamasrv.models.gguf import KEEP_ITEMS, SETTLED, SkippedArray, read_header


def write_model(path: Path, *, words: int = 300, tensors: int = 2, **metadata: object) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("A tiny model")
    writer.add_context_length(512)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(8)
    writer.add_head_count_kv([2, 4])
    writer.add_token_list([f"w{n}" for n in range(words)])
    writer.add_chat_template("{{ messages }}")
    writer.add_file_type(7)
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    for n in range(tensors):
        data = np.zeros((4, 64), np.float32)
        writer.add_tensor(
            f"t{n}",
            gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q8_0),
            raw_dtype=gguf.GGMLQuantizationType.Q8_0,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model.gguf")


def refusal(path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(ConfigError) as error:
        read_header(path)
    line = str(error.value)
    assert str(path) in line and "\n" not in line
    return line


def test_it_describes_the_model(model):
    header = read_header(model)
    assert header.architecture == "llama"
    assert header.name == "A tiny model"
    assert header.file_type == "Q8_0"
    assert header.number("context_length") == 512
    assert header.get("attention.head_count_kv") == [2, 4]
    assert header.chat_template == "{{ messages }}"
    assert header.n_vocab == 300
    assert header.num_params == 2 * 4 * 64
    assert header.size == model.stat().st_size
    assert [t.name for t in header.tensors] == ["t0", "t1"]
    assert header.tensors[0].size == 8 * 34


def test_it_steps_over_a_long_vocabulary(tmp_path):
    header = read_header(write_model(tmp_path / "long.gguf", words=KEEP_ITEMS + 1))
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray(8, KEEP_ITEMS + 1)
    assert header.n_vocab == KEEP_ITEMS + 1


def test_it_reads_a_vocabulary_of_150_000_words_quickly(tmp_path):
    path = write_model(tmp_path / "big.gguf", words=150_000)
    began = time.process_time()
    read_header(path)
    assert time.process_time() - began < 0.3


def test_it_names_a_model_without_a_name_by_its_file(tmp_path):
    path = tmp_path / "some-model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_header(path).name == "some-model"


def test_it_refuses_a_missing_file(tmp_path):
    assert "No such file" in refusal(tmp_path / "none.gguf")


def test_it_refuses_a_folder(tmp_path):
    assert "directory" in refusal(tmp_path)


def test_it_refuses_an_empty_file(tmp_path):
    path = tmp_path / "empty.gguf"
    path.touch()
    assert refusal(path).endswith("the file is empty")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GGUF\3\0\0\0", "only 8 bytes"),
        (b"PK\3\4" + bytes(100), "does not start with the magic bytes GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(64), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sII", 3, 0, 1, 1, b"k", 77, 0) + bytes(64), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(64), "an array of type 9"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**60) + bytes(64), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**60) + bytes(64), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64), "architecture"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 2**31) + bytes(64), "dimensions"),
    ],
)
def test_it_refuses_what_is_no_model(tmp_path, content, reason):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    assert reason in refusal(path)


def test_it_refuses_a_key_given_twice(tmp_path):
    path = tmp_path / "twice.gguf"
    entry = struct.pack("<Q1sIB", 1, b"k", 0, 1)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry + entry)
    assert "twice" in refusal(path)


@pytest.mark.parametrize("alignment", [0, 2**31 - 1])
def test_it_refuses_an_impossible_alignment(tmp_path, alignment):
    path = write_model(tmp_path / "odd.gguf", general__alignment_=1)
    data = path.read_bytes().replace(b"general.alignment_", b"general.alignment!"[:17] + b"\0")
    key = b"general.alignment"
    at = data.index(key)
    # A key of 17 bytes instead of 18: rewrite its length, its value keeps its place.
    data = data[: at - 8] + struct.pack("<Q", 17) + key + struct.pack("<Ii", 5, alignment) + data[at + 18 + 8 :]
    path.write_bytes(data)
    assert "alignment" in refusal(path)


def test_a_file_cut_anywhere_is_refused(model):
    """Cut at every byte of the header and at many of the data: always one line, never another exception."""
    last = read_header(model).tensors[-1]
    whole = model.read_bytes().rstrip(b"\0")
    assert last.size is not None
    for length in [*range(0, 1000), *range(1000, len(whole) - last.size, 61)]:
        model.write_bytes(whole[:length])
        refusal(model)


def test_bytes_changed_anywhere_do_no_harm(model):
    """Every byte of the header turned over: the file is read or refused, never another exception, never much memory."""
    whole = model.read_bytes()
    for at in range(1500):
        model.write_bytes(whole[:at] + bytes([whole[at] ^ (0xFF, 0x80, 0x01)[at % 3]]) + whole[at + 1 :])
        try:
            read_header(model)
        except ConfigError as error:
            assert "\n" not in str(error)


def test_all_parts_of_a_split_model_count(tmp_path):
    first = write_model(tmp_path / "m-00001-of-00002.gguf", split__count=2)
    second = write_model(tmp_path / "m-00002-of-00002.gguf", split__count=2)
    header = read_header(first)
    assert header.paths == (first, second)
    assert header.size == first.stat().st_size + second.stat().st_size
    assert len(header.tensors) == 4


def test_it_refuses_a_split_model_with_a_part_missing(tmp_path):
    first = write_model(tmp_path / "m-00001-of-00002.gguf", split__count=2)
    assert "m-00002-of-00002.gguf is missing" in refusal(first)


def test_it_refuses_to_begin_with_a_later_part(tmp_path):
    write_model(tmp_path / "m-00001-of-00002.gguf", split__count=2)
    second = write_model(tmp_path / "m-00002-of-00002.gguf", split__count=2)
    assert "name the first part" in refusal(second)


def test_it_refuses_a_part_that_was_renamed(tmp_path):
    assert "-00001-of-00002.gguf" in refusal(write_model(tmp_path / "model.gguf", split__count=2))


def test_a_file_is_parsed_again_only_after_a_change(model, monkeypatch):
    """A start looked at its model three times: 0.1 s for 300,000 words and merges."""
    now = time.time_ns() + 2 * SETTLED
    monkeypatch.setattr(time, "time_ns", lambda: now)
    assert read_header(model).metadata is read_header(model).metadata
    write_model(model, words=17)
    assert read_header(model).n_vocab == 17


def test_a_file_that_was_just_written_is_parsed_each_time(model):
    """A second change within a tick of the clock would leave its times as they are."""
    assert read_header(model).metadata is not read_header(model).metadata
