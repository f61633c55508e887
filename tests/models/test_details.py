"""What is known of a model before it is loaded."""

from __future__ import annotations

import pytest
from models.test_gguf import write_model

from llamasrv.models.details import describe
from llamasrv.models.gguf import read_header


def details(tmp_path, name="m.gguf", **metadata):
    return describe(read_header(write_model(tmp_path / name, **metadata)))


def test_a_file_is_described(tmp_path):
    found = details(tmp_path)
    assert (found.architecture, found.num_params, found.quantisation, found.context) == ("llama", 512, "Q8_0", 512)
    assert found.size == (tmp_path / "m.gguf").stat().st_size
    assert found.modified == (tmp_path / "m.gguf").stat().st_mtime
    assert found.template == "{{ messages }}" and found.parts == (tmp_path / "m.gguf",)


@pytest.mark.parametrize(
    ("template", "metadata", "expected"),
    [
        ("{{ messages }}", {}, ("completion",)),
        ("{% if tools %}{% endif %}", {}, ("completion", "tools")),
        ("{% if enable_thinking %}<think>{% endif %}", {}, ("completion", "thinking")),
        ("{% if reasoning %}<thinking>{% endif %}", {}, ("completion", "thinking")),
        ("{% if reasoning %}<|think|>{% endif %}", {}, ("completion", "thinking")),
        ("{{ messages }}", {"tokenizer__ggml__fim_pre_token_id": 1}, ("completion", "insert")),
        ("{{ messages }}", {"llama__pooling_type": 1}, ("embedding",)),
        ("{{ messages }}", {"llama__pooling_type": 4}, ("rerank",)),
        ("{{ messages }}", {"llama__attention__causal": False}, ("embedding",)),
        ("{{ messages }}", {"llama__pooling_type": 0}, ("completion",)),
    ],
)
def test_capabilities_come_from_the_file(tmp_path, template, metadata, expected):
    header = read_header(write_model(tmp_path / "m.gguf", **metadata))
    assert describe(header, template=template).capabilities == expected


def test_the_quantisation_is_the_type_of_most_numbers_where_the_file_is_silent(tmp_path):
    header = read_header(write_model(tmp_path / "m.gguf"))
    del header.metadata["general.file_type"]
    assert describe(header).quantisation == "Q8_0"


def test_equal_files_have_equal_digests_wherever_they_lie(tmp_path):
    one, two = details(tmp_path, "one.gguf"), details(tmp_path, "two.gguf")
    assert one.digest == two.digest and one.digest.startswith("sha256:") and len(one.digest) == 71


@pytest.mark.parametrize("change", ["metadata", "weights", "size"])
def test_another_file_has_another_digest(tmp_path, change):
    before = details(tmp_path)
    path = tmp_path / "m.gguf"
    if change == "metadata":
        write_model(path, general__author="somebody")
    elif change == "size":
        path.write_bytes(path.read_bytes() + b"\0")
    else:
        header = read_header(path)
        data = bytearray(path.read_bytes())
        data[header.data_start + header.tensors[1].offset] ^= 1
        path.write_bytes(data)
    assert describe(read_header(path)).digest != before.digest


def test_all_parts_of_a_split_model_count(tmp_path):
    digests = set()
    for author in ("me", "you"):
        write_model(tmp_path / "m-00001-of-00002.gguf", split__count=2)
        write_model(tmp_path / "m-00002-of-00002.gguf", split__count=2, general__author=author)
        digests.add(describe(read_header(tmp_path / "m-00001-of-00002.gguf")).digest)
    assert len(digests) == 2
